"""Parents, in processes of their own, whose ranks leave processes behind. Imports no pytest."""

from __future__ import annotations

import ctypes
import functools
import glob
import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import uuid
from typing import Any

import rlaunch._spawn.start_processes
from rlaunch._spawn import torch_context
from rlaunch.torch import start_processes
from stress import MARK, children, join, me, sleep_for_ever, spawn, tell


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


def fork_and_leave_behind(end: str) -> None:
    """The same without an execve: processes that show the environment of the first of them."""
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


def leave_marked(end: str) -> None:
    """Starts two processes with sessions of their own; the first is to live. The rank is not marked."""
    assert "RLAUNCH_NO_SWEEP" not in os.environ
    left = []
    for env in ({**os.environ, "RLAUNCH_NO_SWEEP": "1"}, os.environ):
        # Not the parent's stderr, which the test reads to its end.
        left.append(
            subprocess.Popen(["sleep", "600"], start_new_session=True, env=env, stderr=subprocess.DEVNULL)
        )
    tell({"pid": os.getpid(), "left": [process.pid for process in left]})
    if end == "stay":
        sleep_for_ever()
    os._exit(0)


def parent_of_markers(method: str, end: str) -> None:
    os.environ["RLAUNCH_NO_SWEEP"] = "1"
    join(spawn(leave_marked, method, 1, (end,), join=False))
    tell("fine")


def guardian_is_no_child_of_the_host() -> None:
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


def two_threads() -> None:
    import threading

    threads = [threading.Thread(target=spawn, args=(time.sleep, "spawn", 2, (0.5,))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tell("done")


def forks_a_bystander() -> None:
    ctx = spawn(leave_behind, "spawn", 1, ("stay",), join=False)
    if os.fork() == 0:
        # Holds none of what the guardian waits for.
        sleep_for_ever()
    ctx.join()


def no_interpreter() -> None:
    multiprocessing.set_executable("/nowhere/python")
    spawn(time.time, "fork", 1)
    tell("done")


def parent_that_is_its_executable(kind: str, executable: str) -> None:
    """A program that sys.executable names, as in one that is frozen or embeds Python."""
    python, sys.executable = sys.executable, executable
    multiprocessing.set_executable(executable)
    if kind == "frozen":
        sys.frozen = True  # type: ignore[attr-defined]
    elif kind == "embeds":
        sys.orig_argv.clear()
    else:
        multiprocessing.set_executable(python)
    spawn(leave_behind, "fork", 1, ("stay",), join=False).join()


def spawns_twice() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    spawn(time.time, "fork", 1)
    tell("first")
    signal.sigwait([signal.SIGUSR1])
    spawn(leave_behind, "fork", 1, ("stay",), join=False).join()


def leave_behind_by_index(index: int, end: str) -> None:
    os.environ["PADDLE_TRAINER_ID"] = str(index)
    leave_behind(end)


def joins_for_ever(framework: str) -> None:
    if framework == "torch":
        start_processes(leave_behind_by_index, ("stay",), 1, start_method="fork")
    else:
        spawn(leave_behind, "fork", 1, ("stay",))


def wait_for_file(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.005)


def whose_guardian_ends_at_once(executable: str) -> None:
    multiprocessing.set_executable(executable)
    spawn(wait_for_file, "fork", 1, (executable + ".end",))


def share(pid: int) -> str:
    """What a process of this number shares through Paddle has the number in its name, and is mapped."""
    name = f"/dev/shm/paddle_{pid}_0_{uuid.uuid4().int}"
    with open(name, "x+b") as file:
        file.truncate(4096)
        kept.append(mmap.mmap(file.fileno(), 4096))
    return name


kept: list[mmap.mmap] = []


def share_as_paddle(end: str) -> None:
    """As a worker of Paddle's DataLoader and its rank."""
    read, write = os.pipe()
    worker = os.fork()
    if worker == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(write, share(os.getpid()).encode())
        sleep_for_ever()
    of_worker = os.read(read, 100).decode()
    tell([of_worker, share(os.getpid())])
    if end == "stay":
        sleep_for_ever()
    if end == "fail alone":
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
    os._exit(3)


def parent_of_sharers(method: str, end: str) -> None:
    """Tells the error, and the files that are left then."""
    try:
        join(spawn(share_as_paddle, method, 1, (end,), join=False))
    except Exception as error:
        tell([type(error).__name__, *glob.glob("/dev/shm/paddle_*")])


def share_and_fail(folder: str) -> None:
    """Rank 1 fails. Its worker ends by itself during the stop, before rank 0 does."""
    go, note = os.path.join(folder, "go"), os.path.join(folder, "worker")
    if me() == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        tell("ready")
        signal.sigwait([signal.SIGTERM])
        with open(note) as file:
            worker = file.read()
        open(go, "w").close()
        while os.path.exists(f"/proc/{worker}/exe"):  # A zombie has none.
            time.sleep(0.001)
        os._exit(0)
    worker = os.fork()
    while worker == 0:
        if os.path.exists(go):
            os._exit(0)
        time.sleep(0.001)
    name = share(worker)
    with open(note, "w") as file:
        file.write(str(worker))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    tell(name)
    signal.sigwait([signal.SIGUSR1])
    os._exit(3)


def parent_of_a_failing_sharer(method: str, folder: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    context = spawn(share_and_fail, method, 2, (folder,), join=False)
    signal.sigwait([signal.SIGUSR2])
    context.processes[1].send_signal(signal.SIGUSR1)
    try:
        join(context)
    except Exception as error:
        tell([type(error).__name__, *glob.glob("/dev/shm/paddle_*")])


PR_SET_PTRACER, PR_SET_PTRACER_ANY, PTRACE_SEIZE = 0x59616D61, -1, 0x4206


def be_traced(traced: Any) -> None:
    """Has a process that never waits for this one trace it, so that it cannot be reaped. Never returns."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Without Yama the kernel has no such call, and needs none.
    libc.prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)
    rank = os.getpid()
    if os.fork() == 0:
        os.setsid()
        zero = ctypes.c_void_p(0)
        assert not libc.ptrace(ctypes.c_long(PTRACE_SEIZE), ctypes.c_long(rank), zero, zero), (
            ctypes.get_errno()
        )
        tell({"pid": rank, "tracer": os.getpid()})
        traced.set()
        # Not swept with the ranks, and without the parent's stderr, which the test reads to its end.
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.closerange(3, 1 << 16)  # The pipe of the resource tracker, which has that stderr, too.
        os.execvpe("sleep", ["sleep", "600"], {MARK: os.environ[MARK], "PATH": os.environ["PATH"]})
    sleep_for_ever()


def traced_or_failing(traced: Any, late: Any = None) -> None:
    traced_or_failing_by_index(me(), traced)


def traced_or_failing_by_index(i: int, traced: Any) -> None:
    """Rank 0 is traced; rank 1 fails then."""
    if i == 1:
        traced.wait()
        sys.exit(3)
    be_traced(traced)


def parent_of_a_traced_rank(after_torch: bool) -> None:
    traced = multiprocessing.get_context("spawn").Event()
    ctx: Any
    if after_torch:
        ctx = start_processes(traced_or_failing_by_index, (traced,), 2, join=False, start_method="spawn")
        join_once = functools.partial(ctx.join, grace_period=0.5)
    else:
        ctx = spawn(traced_or_failing, "spawn", 2, (traced,), join=False, grace_period=0.5)
        join_once = ctx.join
    traced.wait()
    began = time.process_time()
    try:
        while not join_once():
            pass
    except Exception as error:
        tell(str(error))
    tell(time.process_time() - began)
    tell([multiprocessing.active_children(), ctx.sentinels])


def parent_that_is_interrupted_beside_a_traced_rank(after_torch: bool) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    traced = multiprocessing.get_context("spawn").Event()
    torch_context.DEFAULT_GRACE = rlaunch._spawn.start_processes.DEFAULT_GRACE = 0.5
    try:
        if after_torch:
            start_processes(traced_or_failing_by_index, (traced,), 1, start_method="spawn")
        else:
            spawn(traced_or_failing, "spawn", 1, (traced,), grace_period=0.5)
    except KeyboardInterrupt:
        tell(multiprocessing.active_children())


class FailsToReachRank1:
    """Cannot be pickled again once rank 0 is traced."""

    def __init__(self, traced: Any) -> None:
        self._traced = traced
        self._is_sent = False

    def __reduce__(self) -> Any:
        if self._is_sent:
            self._traced.wait()
            raise rlaunch.RankError("of the user", 0, 1)
        self._is_sent = True
        return int, ()


def parent_that_cannot_start_all_beside_a_traced_rank() -> None:
    traced = multiprocessing.get_context("spawn").Event()
    try:
        spawn(traced_or_failing, "spawn", 2, (traced, FailsToReachRank1(traced)), grace_period=0.5)
    except rlaunch.RankError as error:
        tell([str(error), multiprocessing.active_children()])
