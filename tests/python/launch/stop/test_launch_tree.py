"""Nothing of a job outlives it: leftovers of ranks, and processes of a launcher that is killed."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from launching import (
    LEFT_TO_A_TRACKER,
    RANK,
    Ended,
    Place,
    await_gone,
    await_none_marked,
    environment,
    gone,
    marked,
    runs,
    supervisor_of,
    until,
)

# Six processes: a child, one with a session of its own, two orphans, and a daemon with a child.
LEAVE = """
import subprocess

def leave():
    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    subprocess.run(["sh", "-c", "sleep 600 & sleep 600 &"])
    subprocess.run(["sh", "-c", "setsid sh -c 'trap : TERM HUP INT; sleep 600 & wait; wait' &"])
"""
LEFT = 6


def sweep_messages(ended: Ended) -> list[str]:
    return [line.removeprefix("rlaunch: ") for line in ended.stderr.splitlines() if "swept" in line]


@pytest.mark.parametrize("how", ["exit 0", "exit 7", "signal 11"])
def test_processes_that_a_rank_leaves_are_swept_and_named(place: Place, mark: str, how: str) -> None:
    word, number = how.split()
    end = f"os._exit({number})" if word == "exit" else f"os.kill(os.getpid(), {number})"
    place.script(LEAVE + f"leave()\ntell('ready', os.getpid())\nawait_file('end')\n{end}")
    with place.start("train.py", env=environment(MARK=mark)) as launcher:
        place.ready(1)
        until(lambda: len(marked(mark)) == 3 + LEFT, "all leftovers")
        (place.folder / "end").touch()
        ended = Place.wait(launcher)
    assert marked(mark) == []
    assert ended.status == int(number) + (128 if word == "signal" else 0)
    assert sweep_messages(ended) == ["swept 6 leftover processes of rank 0 (sleep, sh)"]


def test_a_leftover_with_the_name_of_a_reader_of_stacks_is_named(place: Place, mark: str) -> None:
    place.script("""
        import ctypes
        if os.fork() == 0:
            os.setsid()
            ctypes.CDLL(None).prctl(15, b"rlaunch-look")  # PR_SET_NAME
            tell("named", os.getpid())
            sleep()
        await_file("named.0")
    """)
    ended = place.run("train.py", env=environment(MARK=mark))
    assert marked(mark) == []
    assert sweep_messages(ended) == ["swept 1 leftover process of rank 0 (rlaunch-look)"]


def test_a_rank_is_swept_while_the_others_go_on(place: Place, mark: str) -> None:
    """Its own leftovers alone: a daemon of a rank that lives stays."""
    place.script(LEAVE + "leave()\ntell('ready', os.getpid())\nawait_file(f'end.{rank}')")
    with place.start("--nproc_per_node=2", "train.py", env=environment(MARK=mark)) as launcher:
        first, second = place.ready(2)
        until(lambda: len(marked(mark)) == 4 + 2 * LEFT, "all leftovers")
        (place.folder / "end.0").touch()
        until(lambda: gone(first), "the end of rank 0")
        until(lambda: len(marked(mark)) == 3 + LEFT, "the sweep")
        assert not gone(second)
        (place.folder / "end.1").touch()
        ended = Place.wait(launcher)
    assert (ended.status, marked(mark)) == (0, [])
    assert sweep_messages(ended) == [
        f"swept 6 leftover processes of rank {rank} (sleep, sh)" for rank in (0, 1)
    ]


def test_a_leftover_that_hides_its_environment_ends_with_the_job(place: Place, mark: str) -> None:
    place.script("""
        import subprocess
        tell("ready", subprocess.Popen(["sleep", "600"], start_new_session=True, env={}).pid)
    """)
    ended = place.run("train.py", env=environment(MARK=mark))
    assert ended.status == 0
    assert sweep_messages(ended) == ["swept 1 leftover process of the job (sleep)"]
    assert not runs(int(place.text("ready.0")), "sleep")


@pytest.mark.parametrize("code", [0, 3])
def test_a_resource_tracker_cleans_up_before_it_goes(place: Place, code: int) -> None:
    """Shared memory that a rank left is unlinked, and nothing is called a leftover."""
    place.script(LEFT_TO_A_TRACKER + f"sys.stdout.flush()\nos._exit({code})\n")
    ended = place.run("train.py")
    assert ended.status == code
    assert sweep_messages(ended) == []
    assert not Path("/dev/shm", place.text("ready.0")).exists()


def test_a_fork_server_that_ends_by_itself_is_no_leftover(place: Place) -> None:
    place.script("""
        import multiprocessing

        def nothing():
            pass

        if __name__ == "__main__":
            process = multiprocessing.get_context("forkserver").Process(target=nothing)
            process.start()
            process.join()
    """)
    ended = place.run("--nproc_per_node=2", "train.py")
    assert ended.status == 0, ended.stderr
    assert sweep_messages(ended) == []


def test_a_job_that_leaves_nothing_has_nothing_swept(place: Place) -> None:
    place.script("import subprocess; subprocess.run(['sleep', '0'])")
    assert sweep_messages(place.run("--nproc_per_node=2", "train.py")) == []


# --- Launchers that are killed. --------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["front", "supervisor"])
def test_nothing_is_left_when_any_process_of_the_launcher_is_killed(
    place: Place, mark: str, victim: str
) -> None:
    place.script(LEAVE + "leave()\ntell('ready', os.getpid())\nsleep()")
    with place.start("--nproc_per_node=2", "train.py", env=environment(MARK=mark)) as launcher:
        place.ready(2)
        until(lambda: len(marked(mark)) == 4 + 2 * LEFT, "all leftovers")
        (launcher if victim == "front" else supervisor_of(launcher)).send_signal(signal.SIGKILL)
        await_none_marked(mark, 2)
        ended = Place.wait(launcher)
    if victim == "front":
        assert ended.status == -9
    else:
        assert ended.status == 72
        assert "supervisor process ended by signal SIGKILL" in ended.error_lines()[0]


def test_a_front_that_is_killed_while_a_rank_fails_leaves_nothing(place: Place, mark: str) -> None:
    """The supervisor sees both in one turn, in which it looks twice."""
    place.script(
        LEAVE
        + "leave()\ntell('ready', os.getpid())\nawait_file('end') if rank == 0 else sleep()\nos._exit(3)"
    )
    with place.start("--nproc_per_node=2", "train.py", env=environment(MARK=mark)) as launcher:
        first, _ = place.ready(2)
        supervisor = supervisor_of(launcher)
        supervisor.send_signal(signal.SIGSTOP)
        until(lambda: supervisor.status() == psutil.STATUS_STOPPED, "the stop of the supervisor")
        (place.folder / "end").touch()
        until(lambda: gone(first), "the end of rank 0")
        launcher.kill()
        launcher.wait()
        supervisor.send_signal(signal.SIGCONT)
        await_none_marked(mark)
    assert (place.result()["outcome"], place.result()["culprit"]) == ("failed", 0)


def test_a_supervisor_that_gives_up_leaves_nothing(place: Place, mark: str) -> None:
    """Without descriptors it can neither look for what is left nor say anything."""
    place.script(LEAVE + "leave()\ntell('ready', os.getpid())\nawait_file('end')")
    with place.start("train.py", env=environment(MARK=mark)) as launcher:
        place.ready(1)
        resource.prlimit(supervisor_of(launcher).pid, resource.RLIMIT_NOFILE, (3, 3))
        (place.folder / "end").touch()
        ended = Place.wait(launcher)
    assert (ended.status, marked(mark)) == (70, [])
    # Another launcher that starts beside it just now may end them first, by their cgroup.
    assert all(
        re.fullmatch(r"swept \d leftover process(es)? of the job \(.*\)", line)
        for line in sweep_messages(ended)
    ), ended
    why = "the launcher's supervisor process had to give up, exit code 70, and the job with it"
    assert why in ended.error_lines()[-1]
    assert (place.result()["outcome"], place.result()["exit_status"]) == ("supervisor_lost", 70)


def test_both_killed_at_once_leave_no_rank_and_nothing_in_its_session(place: Place, mark: str) -> None:
    place.script("""
        import subprocess
        children = [subprocess.Popen(["sh", "-c", "trap : TERM HUP INT; sleep 600 & wait; wait"])]
        tell("ready", os.getpid())
        sleep()
    """)
    with place.start("--nproc_per_node=2", "train.py", env=environment(MARK=mark)) as launcher:
        place.ready(2)
        until(lambda: len(marked(mark)) == 4 + 2 * 2, "all children")
        supervisor = supervisor_of(launcher)
        # The first of the two cannot act any more before it is dead as well.
        supervisor.suspend()
        launcher.kill()
        supervisor.kill()
        await_none_marked(mark, 2)


@pytest.mark.parametrize("victim", ["front", "supervisor"])
def test_processes_from_before_the_launcher_are_left_alone(place: Place, mark: str, victim: str) -> None:
    """`sleep & exec python -m rlaunch` makes the launcher the parent of a stranger."""
    place.script("tell('ready', os.getpid())\nsleep()")
    line = 'sleep 600 & echo $! > elder; exec "$@"'
    args = ["bash", "-c", line, "bash", sys.executable, "-m", "rlaunch", "train.py"]
    launcher = subprocess.Popen(args, cwd=place.folder, env=environment(MARK=mark), stderr=subprocess.DEVNULL)
    place.launcher = launcher
    with Place.cleaned(launcher):
        ranks = place.ready(1)
        elder = psutil.Process(int(place.text("elder")))
        supervisor = next(p for p in psutil.Process(launcher.pid).children() if p != elder)
        (launcher if victim == "front" else supervisor).send_signal(signal.SIGKILL)
        await_gone(*ranks, supervisor)
        launcher.wait()
        assert not gone(elder)


def test_the_supervisor_takes_no_signal_of_the_terminal(place: Place) -> None:
    place.script("tell('ready', os.getpid())\nsleep()")
    with place.start("train.py") as launcher:
        place.ready(1)
        supervisor = supervisor_of(launcher).pid
        assert os.getsid(supervisor) == os.getpgid(supervisor) == supervisor
        launcher.send_signal(signal.SIGINT)
        ended = Place.wait(launcher)
    assert ended.status == 130
    assert "second signal" not in ended.stderr


# --- As the first process of a container. ----------------------------------------------------------------


def test_as_pid_1_the_launcher_stops_and_collects_orphans(place: Place) -> None:
    (place.folder / "train.py").write_text(
        RANK
        + """
import subprocess
subprocess.run(["sh", "-c", "sleep 0 & sleep 0 & setsid sleep 600 &"])

def stats():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            yield open(f"/proc/{pid}/stat").read().split()
        except OSError:
            pass  # It has ended meanwhile.

def sleepers(daemon):
    return [stat for stat in stats() if stat[1] == "(sleep)" and (stat[0] == stat[5]) == daemon]

# Those that have ended are gone, and not zombies.
deadline = time.monotonic() + 20
while (sleepers(False) or not sleepers(True)) and time.monotonic() < deadline:
    time.sleep(0.01)
tell("left", sleepers(False))
tell("pids", os.getppid())
sleep()
"""
    )
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
    launcher = subprocess.Popen(
        [*unshare, sys.executable, "-m", "rlaunch", "train.py"],
        cwd=place.folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    place.launcher = launcher
    with Place.cleaned(launcher):
        until((place.folder / "pids.0").exists, "the rank")
        assert place.text("left.0") == "[]"
        (front,) = psutil.Process(launcher.pid).children()
        assert re.search(r"^NSpid:.*\t1$", Path(f"/proc/{front.pid}/status").read_text(), re.MULTILINE)
        front.terminate()
        ended = Place.wait(launcher)
    assert ended.status == 143
    assert sweep_messages(ended) == ["swept 1 leftover process of rank 0 (sleep)"]
