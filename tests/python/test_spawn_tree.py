"""What ranks of ``rlaunch.spawn`` start is ended with the job, and when the parent is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest
from hardship import METHODS, Parent, all_gone, children, join, me, sleep_for_ever, spawn, tell

each_method = pytest.mark.parametrize("method", METHODS)


def leave_behind(end: str) -> None:
    """Starts a child, one with a session of its own, and an orphan with one; then tells, and ends."""
    sleep = ["sleep", "600"]
    pids = [subprocess.Popen(sleep).pid, subprocess.Popen(sleep, start_new_session=True).pid]
    orphan = subprocess.run(
        ["sh", "-c", "setsid sleep 600 > /dev/null & echo $!"], stdout=subprocess.PIPE, check=True
    )
    pids.append(int(orphan.stdout))
    tell({"rank": me(), "pid": os.getpid(), "left": pids})
    if end == "stay":
        sleep_for_ever()
    if end == "fail":
        raise RuntimeError("enough")


def parent_of_leavers(method: str, end: str) -> None:
    try:
        join(spawn(leave_behind, method, 2, (end,), join=False))
    except Exception as error:
        tell(type(error).__name__)
    else:
        tell("fine")
    tell(sorted(children()))


@each_method
@pytest.mark.parametrize("end", ["well", "fail"])
def test_what_ranks_leave_is_swept_and_named(method: str, end: str) -> None:
    with Parent(parent_of_leavers, method, end) as parent:
        told: list[Any] = []
        while not isinstance(told[-1:] and told[-1], str):
            told.append(parent.heard())
        left = [pid for item in told[:-1] for pid in item["left"]]
        assert told[-1] == ("fine" if end == "well" else "RankError")
        assert not any(map(psutil.pid_exists, left)) or all_gone(left, 2)
        parent.heard()
        assert parent.ends() == 0
        # A rank that is ended in the middle of this has left what it had.
        count = len(left) if end == "well" else r"\d+"
        assert re.search(rf"rlaunch: swept {count} leftover processes of the job \(", parent.complaints())
        assert parent.leaves_nobody()


@each_method
def test_what_ranks_started_dies_with_a_parent_that_is_killed(method: str) -> None:
    with Parent(parent_of_leavers, method, "stay") as parent:
        told = [parent.heard() for _ in range(2)]
        left = [pid for item in told for pid in [item["pid"], *item["left"]]]
        assert all(map(psutil.pid_exists, left))
        os.kill(parent.process.pid, signal.SIGKILL)
        assert all_gone(left, 2)
        assert parent.leaves_nobody()


def fork_and_leave_behind(end: str) -> None:
    """The same without an execve: processes that show the environment of who was forked first."""
    read, write = os.pipe()
    for daemon in (False, True):
        if os.fork() == 0:
            if daemon:
                os.setsid()
                if os.fork() > 0:
                    os._exit(0)
            os.write(write, b"%d\n" % os.getpid())
            sleep_for_ever()
    text = b""
    while text.count(b"\n") < 2:
        text += os.read(read, 100)
    tell({"rank": me(), "pid": os.getpid(), "left": [int(pid) for pid in text.split()]})
    if end == "stay":
        sleep_for_ever()
    # Past all that Python does about children when it ends.
    os._exit(0)


def parent_of_forkers(method: str, end: str) -> None:
    join(spawn(fork_and_leave_behind, method, 2, (end,), join=False))
    tell("fine")


@each_method
def test_what_ranks_forked_without_an_execve_is_swept(method: str) -> None:
    with Parent(parent_of_forkers, method, "well") as parent:
        left = [pid for _ in range(2) for pid in parent.heard()["left"]]
        assert parent.heard() == "fine"
        assert all_gone(left, 2)
        assert parent.ends() == 0
        assert "rlaunch: swept 4 leftover processes of the job (" in parent.complaints()
        assert parent.leaves_nobody()


@each_method
def test_what_ranks_forked_dies_with_a_parent_that_is_killed(method: str) -> None:
    with Parent(parent_of_forkers, method, "stay") as parent:
        left = [pid for _ in range(2) for told in [parent.heard()] for pid in [told["pid"], *told["left"]]]
        os.kill(parent.process.pid, signal.SIGKILL)
        assert all_gone(left, 2)
        assert parent.leaves_nobody()


def guardian_is_nobodys_child() -> None:
    seen = []
    signal.signal(signal.SIGCHLD, lambda *_: seen.append(True))
    spawn(time.time, "fork", 1)
    # The rank's own.
    tell(len(seen))
    tell(sorted(children()))
    try:
        os.wait()
    except ChildProcessError:
        tell("no child")


def test_the_guardian_is_no_child_of_the_host() -> None:
    with Parent(guardian_is_nobodys_child) as parent:
        assert [parent.heard() for _ in range(3)] == [1, [], "no child"]
        assert parent.ends() == 0
        assert parent.leaves_nobody()


def two_threads() -> None:
    import threading

    threads = [threading.Thread(target=spawn, args=(time.sleep, "spawn", 2, (0.5,))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tell("done")


def test_the_guardian_of_one_thread_lets_the_ranks_of_another_be() -> None:
    with Parent(two_threads) as parent:
        assert parent.heard() == "done"
        assert parent.ends() == 0
        assert parent.complaints() == ""
        assert parent.leaves_nobody()


def forks_a_bystander() -> None:
    ctx = spawn(leave_behind, "spawn", 1, ("stay",), join=False)
    if os.fork() == 0:
        # Holds none of what the guardian waits for.
        sleep_for_ever()
    ctx.join()


def test_a_fork_of_the_parent_does_not_keep_the_guardian_waiting() -> None:
    with Parent(forks_a_bystander) as parent:
        told = parent.heard()
        os.kill(parent.process.pid, signal.SIGKILL)
        assert all_gone([told["pid"], *told["left"]], 2)


def no_interpreter() -> None:
    sys.executable = "/nowhere/python"
    import multiprocessing.spawn as mp_spawn

    tell(mp_spawn.get_executable() != sys.executable)
    spawn(time.time, "fork", 1)
    tell("done")


def test_ranks_run_where_no_guardian_can_be_started() -> None:
    with Parent(no_interpreter) as parent:
        assert [parent.heard() for _ in range(2)] == [True, "done"]
        assert parent.ends() == 0
