"""Two jobs at one time with one log folder: the second one is warned, and both keep running."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import psutil
import pytest
from launching import Place, await_gone, free_ports, supervisor_of

IN_USE = "is in use by another running job"
# Runs until the test creates the file "go".
WAIT = "tell('ready', os.getpid())\nawait_file('go')\n"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.script(WAIT, "wait.py")
    place.script("print('rank', rank)")
    return place


def go(place: Place) -> None:
    (place.folder / "go").touch()


def started(place: Place) -> list[str]:
    """The jobs whose start the journal has."""
    return [event["job_id"] for event in place.events() if event["event"] == "job_started"]


def test_a_job_is_warned_of_another_running_job_in_its_log_folder(place: Place) -> None:
    with place.start("--job_id=first", "wait.py") as first:
        place.ready(1)
        supervisor = supervisor_of(first).pid
        for _ in range(2):
            second = place.run("--job_id=second", "train.py")
            assert (second.status, second.stdout) == (0, b"rank 0\n"), second.stderr
            (line,) = (line for line in second.stderr.splitlines() if IN_USE in line)
            assert line.startswith("LAUNCH WARNING ")
            holder = f"(job id first, pid {supervisor} on {socket.gethostname()})"
            for words in (f"log folder {place.folder / 'log'} ", holder, "give each job its own --log_dir"):
                assert words in line
        elsewhere = place.run("--log_dir=other", "train.py")
        assert (elsewhere.status, IN_USE in elsewhere.stderr) == (0, False), elsewhere.stderr
        go(place)
        ended = place.wait(first)
    assert (ended.status, IN_USE in ended.stderr) == (0, False), ended.stderr
    # The second job has kept the events of the first.
    assert started(place) == ["first", "second", "second"]
    after = place.run("train.py")
    assert (after.status, IN_USE in after.stderr) == (0, False), after.stderr
    assert started(place) == ["default"]


def test_a_killed_job_leaves_no_lock(place: Place) -> None:
    with place.start("wait.py") as first:
        ranks = place.ready(1)
        supervisor = supervisor_of(first)
        for process in (supervisor, psutil.Process(first.pid)):
            process.send_signal(signal.SIGKILL)
        place.wait(first)
        await_gone(supervisor, *ranks)
    after = place.run("train.py")
    assert (after.status, IN_USE in after.stderr) == (0, False), after.stderr


def test_ranks_do_not_inherit_the_lock(place: Place) -> None:
    place.script(
        """
        for fd in os.listdir("/proc/self/fd"):
            path = f"/proc/self/fd/{fd}"
            if os.path.lexists(path) and "rlaunch" in os.readlink(path):
                sys.exit(f"inherited {os.readlink(path)}")
        """
    )
    ended = place.run("--nproc_per_node=2", "train.py")
    assert ended.status == 0, ended.stderr


def test_restarts_and_nested_launchers_are_no_other_jobs(place: Place) -> None:
    place.script(
        """
        import subprocess
        is_restarted = os.path.exists(f"started.{rank}")
        tell("started")
        status = subprocess.call([sys.executable, "-m", "rlaunch", "train.py"])
        sys.exit(status or not is_restarted)
        """,
        "outer.py",
    )
    ended = place.run("--max_restart=1", "--restart_delay=0", "outer.py")
    assert (ended.status, IN_USE in ended.stderr) == (0, False), ended.stderr
    for log in (place.folder / "log").rglob("workerlog.0"):
        assert IN_USE not in log.read_text()


def test_the_nodes_of_one_job_that_share_a_log_folder_are_warned(place: Place) -> None:
    args = ["--nnodes=2", f"--master=127.0.0.1:{free_ports(1)}", "wait.py"]
    with place.start("--rank=0", *args) as one, place.start("--rank=1", *args) as two:
        place.ready(2)
        other = place.run("train.py")
        assert (other.status, IN_USE in other.stderr) == (0, True), other.stderr
        go(place)
        ends = [place.wait(launcher) for launcher in (one, two)]
    assert [end.status for end in ends] == [0, 0]
    (line,) = (line for end in ends for line in end.stderr.splitlines() if IN_USE in line)
    assert "if that is another node of this job, the logs of both nodes mix" in line
