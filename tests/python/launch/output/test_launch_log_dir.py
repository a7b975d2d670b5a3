"""Two jobs at one time with one log folder: the second one is warned, and both keep running."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import stat
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


LINES = 400


@pytest.mark.parametrize("by", ["master", "elastic"])
def test_nodes_that_share_a_log_folder_keep_their_logs_apart(place: Place, by: str) -> None:
    place.script(
        f"""
        for number in range({LINES}):
            print(f"rank {{rank}} line {{number}} " + "x" * 200, flush=True)
        tell("ready", os.getpid())
        await_file("go")
        """,
        "talk.py",
    )
    port = free_ports(1)
    endpoint = f"127.0.0.1:{port}"
    ways = {
        "master": [(f"--master={endpoint}", "--nnodes=2", f"--rank={rank}") for rank in range(2)],
        "elastic": [(f"--master={endpoint}", "--nnodes=2:3")] * 2,
    }
    one_args, two_args = ways[by]
    with place.start(*one_args, "talk.py") as one, place.start(*two_args, "talk.py") as two:
        place.ready(2)
        go(place)
        ends = [place.wait(launcher) for launcher in (one, two)]
        assert [end.status for end in ends] == [0, 0], ends
    assert not any(IN_USE in end.stderr for end in ends), ends
    inner = f"log/node-{socket.gethostname()}"
    logs = {folder: place.log(folder=folder).decode() for folder in ("log", inner)}
    ranks = {folder: text.split()[1] for folder, text in logs.items()}
    assert sorted(ranks.values()) == ["0", "1"]
    for folder, rank in ranks.items():
        whole = [f"rank {rank} line {number} " + "x" * 200 for number in range(LINES)]
        assert logs[folder].splitlines() == whole, folder
        result = json.loads(place.text(f"{folder}/rlaunch/result.json"))
        assert result["log_dir"] == str(place.folder / folder)
    # The launcher of each node shows the ranks of its own, and the one whose logs are elsewhere says where.
    shown = {end.stdout.decode().split()[1]: end for end in ends}
    assert shown.keys() == {"0", "1"}
    assert str(place.folder / inner) in shown[ranks[inner]].stderr
    assert all(f"rank {1 - int(rank)} " not in end.stdout.decode() for rank, end in shown.items())


# Its first attempt fails.
FAILS_ONCE = """
attempt = int(os.environ["RLAUNCH_RANK_KEY"].split("/")[1])
print("attempt", attempt, flush=True)
if attempt == 0:
    tell("ready", os.getpid())
    await_file("go")
    sys.exit(3)
"""


def lose_logs(place: Place) -> None:
    """As `rm -rf log` does while the job runs."""
    place.ready(2)
    shutil.rmtree(place.folder / "log")
    go(place)


def test_a_removed_log_folder_is_made_again_at_a_restart(place: Place) -> None:
    place.script(FAILS_ONCE)
    options = ("--nproc_per_node=2", "--max_restart=1", "--restart_delay=0", "train.py")
    with place.start(*options) as launcher:
        lose_logs(place)
        ended = place.wait(launcher)
    assert ended.status == 0, ended.stderr
    assert [place.log(rank) for rank in range(2)] == [b"attempt 1\n"] * 2
    assert stat.S_IMODE((place.folder / "log").stat().st_mode) == 0o700
    assert place.result()["restarts"] == 1


def test_the_report_says_that_a_log_was_removed(place: Place) -> None:
    place.script(FAILS_ONCE)
    with place.start("--nproc_per_node=2", "train.py") as launcher:
        lose_logs(place)
        ended = place.wait(launcher)
    assert ended.status == 3
    assert "it wrote nothing" not in ended.stderr
    assert "its log was removed" in ended.stderr
