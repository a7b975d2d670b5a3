"""Logs that are kept short while their ranks write to them: not a byte is lost, doubled or moved."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import ATTEMPT, INOTIFY, LIMIT, Ended, Place, environment, supervisor_of, until

SHORT = "--log_max_size=1M"
MB = 1 << 20

# Twelve megabytes of numbered lines, as fast as they go.
COUNT = 120_000
WRITER = f"""
for number in range({COUNT}):
    print(f"{{number:09d}} {{'x' * 90}}")
"""
NUMBERED = b"".join(b"%09d %s\n" % (number, b"x" * 90) for number in range(COUNT))


@pytest.fixture(params=["disk", "memory"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A folder on a file system that can take a range out of a file, and on one that makes it a hole."""
    if request.param == "disk":
        yield Place(tmp_path)
    else:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            yield Place(Path(folder))


def parts(place: Place, rank: int = 0, folder: str = "log") -> list[bytes]:
    """All that is left of a log, the oldest part first."""
    log = place.folder / folder / f"workerlog.{rank}"
    older = (Path(f"{log}.{number}") for number in itertools.count(1))
    there = [path.read_bytes() for path in itertools.takewhile(Path.exists, older)]
    return [*reversed(there), log.read_bytes()]


def test_no_byte_is_lost_doubled_or_moved(where: Place) -> None:
    where.script(WRITER)
    options = ("--nproc_per_node=2", "--console_ranks=none", SHORT, "--log_backups=100")
    ended = where.run(*options, "train.py")
    assert ended.status == 0, ended.stderr
    for rank in (0, 1):
        found = parts(where, rank)
        assert len(found) > 2, "nothing was moved"
        assert b"".join(found) == NUMBERED
    assert {mode for name, mode in where.modes().items() if name.startswith("workerlog")} == {0o600}
    assert not [name for name in where.names("log") if name.endswith(".new")]


def test_all_output_is_shown(place: Place) -> None:
    """The console follows a log whose beginning goes away."""
    # It writes on only once the console has caught up, which a slow machine's need not; and no more at a time
    # than is shown at one go: what is taken out before is in the log alone.
    place.script(
        """
        for number in range(160):
            print(f"{number:09d}" * (1 << 12), flush=True)
            tell(f"written-{number}")
            await_file(f"read-{number}")
        """
    )
    with place.start("--nproc_per_node=1", SHORT, "--log_backups=1", "train.py") as launcher:
        assert launcher.stdout is not None
        for number in range(160):
            line = launcher.stdout.readline()
            assert line == b"%09d" % number * (1 << 12) + b"\n"
            (place.folder / f"read-{number}").touch()
        ended = place.wait(launcher)
    assert (ended.status, ended.stdout) == (0, b""), ended.stderr
    assert len(parts(place)) == 2


def test_only_so_many_older_parts_are_kept(where: Place) -> None:
    # Without the wait the log may grow by much more than a megabyte before it is rotated.
    where.script(f"""
        def is_short():
            return os.fstat(1).st_size - os.lseek(1, 0, os.SEEK_DATA) < {MB}

        for number in range({COUNT}):
            print(f"{{number:09d}} {{'x' * 90}}")
            if number % 12_000 == 0:
                sys.stdout.flush()
                until(is_short, "a rotated log")
    """)
    for backups in (2, 0):
        options = (f"--log_backups={backups}", "--console_ranks=none", "--log_overwrite=1")
        ended = where.run("--nproc_per_node=1", SHORT, *options, "train.py")
        assert ended.status == 0, ended.stderr
        found = parts(where)
        assert len(found) == backups + 1
        left = b"".join(found)
        assert NUMBERED.endswith(left)
        assert len(left) < (backups + 1) * 3 * MB
        for number in range(1, backups + 1):
            # Parts that a later job without so many would otherwise leave between its own.
            (where.folder / f"log/workerlog.0.{number}").unlink()


def test_an_older_job_s_parts_go_when_logs_are_overwritten(place: Place) -> None:
    place.script("print('short')")
    (place.folder / "log").mkdir()
    for number in (1, 2, 3):
        (place.folder / f"log/workerlog.0.{number}").write_text("of an earlier job\n")
    options = ("--nproc_per_node=1", SHORT, "--log_backups=2")
    assert place.run(*options, "train.py").status == 0
    assert len(parts(place)) == 4, "appended to, nothing goes"
    assert place.run(*options, "--log_overwrite=1", "train.py").status == 0
    assert place.names("log") & {f"workerlog.0.{n}" for n in (1, 2, 3)} == {"workerlog.0.3"}
    assert place.log() == b"short\n"


def test_a_failure_is_explained_by_the_remaining_parts(where: Place) -> None:
    where.script(WRITER + "raise RuntimeError('in the end')\n")
    ended = where.run("--nproc_per_node=1", "--console_ranks=none", SHORT, "train.py")
    assert ended.status == 1
    assert "RuntimeError: in the end" in ended.stderr
    assert f"{COUNT - 1:09d} xxx" in ended.stderr, "its last lines"
    assert where.log().endswith(b"RuntimeError: in the end\n")
    assert b"\0" not in where.log()


def test_each_attempt_keeps_its_own_parts(where: Place) -> None:
    where.script(WRITER + "sys.exit(3)\n")
    again = ("--max_restart=1", "--restart_delay=0")
    options = ("--nproc_per_node=1", "--console_ranks=none", SHORT, "--log_backups=100")
    assert where.run(*options, *again, "train.py").status == 3
    for folder in ("log", "log/rlaunch/attempt-0"):
        found = parts(where, folder=folder)
        assert len(found) > 2
        assert b"".join(found) == NUMBERED


def test_a_console_that_is_too_slow_shows_how_much_it_missed(place: Place) -> None:
    place.script(WRITER + "tell('written')\nawait_file('go')\n")
    with place.start("--nproc_per_node=1", SHORT, "--log_backups=1", "train.py") as launcher:
        until((place.folder / "written.0").exists, "the rank, which waits for no reader")
        until(lambda: len(parts(place)[-1]) < 2 * MB, "its log being short")
        (place.folder / "go").touch()
        ended = place.wait(launcher)
    assert ended.status == 0
    assert "bytes of output in time; they are only in" in ended.stderr
    # It shows a beginning and an end, in order.
    assert ended.stdout.endswith(NUMBERED[-1000:])
    numbers = [int(line[:9]) for line in ended.stdout.splitlines() if len(line) == 100]
    assert numbers == sorted(set(numbers))


def test_rotation_in_all_attempts_shares_one_inotify_instance(place: Place) -> None:
    place.script(
        INOTIFY
        + ATTEMPT
        + """
# That of rank 1 is watched for its rotation alone, while it does not grow.
until(lambda: watches() == 2, "the end of the watches of earlier attempts")
tell(f"instances-{attempt}", len(instances()))
await_file(f"instances-{attempt}.{1 - rank}")
sys.exit(attempt < 3)
"""
    )
    options = ("--nproc_per_node=2", SHORT, "--max_restart=3", "--restart_delay=0")
    ended = place.run(*options, "train.py")
    assert ended.status == 0, ended.stderr
    assert {place.text(f"instances-{attempt}.{rank}") for attempt in range(4) for rank in (0, 1)} == {"1"}


def test_idle_logs_cause_no_wakeups(place: Place) -> None:
    place.script("print('hello', flush=True)\ntell('ready', os.getpid())\nawait_file('go')\n")
    with place.start("--nproc_per_node=2", SHORT, "train.py") as launcher:
        place.ready(2)
        thread = until(lambda: thread_named(supervisor_of(launcher).pid, "rotation"), "its thread")
        seen = (0, 0.0)

        def asleep() -> bool:
            """It has not woken up for ten of the pauses that it makes while a log grows."""
            nonlocal seen
            now = time.monotonic()
            if wakeups(thread) != seen[0]:
                seen = (wakeups(thread), now)
            return now - seen[1] > 0.5

        until(asleep, "the thread's sleep")
        (place.folder / "go").touch()
        assert place.wait(launcher).status == 0


def thread_named(pid: int, name: str) -> Path | None:
    """A thread of a process, by its name."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return next((task for task in tasks if (task / "comm").read_text().strip() == name), None)


def wakeups(task: Path) -> int:
    lines = (task / "status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("10", "is too small for a log; give 1M or more"),
        ("much", "is not a size; give bytes, or a number with K, M, G or T, such as 100M"),
        ("-5M", "is not a size"),
    ],
)
def test_an_invalid_size_is_refused(place: Place, value: str, why: str) -> None:
    place.script("")
    ended = place.run(f"--log_max_size={value}", "train.py")
    assert ended.status == 2
    assert f"--log_max_size {value}: {why}" in ended.stderr
    assert not (place.folder / "log").exists()


def test_an_invalid_number_of_parts_is_refused(place: Place) -> None:
    place.script("")
    ended = place.run("--log_backups=-1", "train.py")
    assert (ended.status, "--log_backups -1: is not a number of files" in ended.stderr) == (2, True)


def test_a_file_system_that_cannot_is_refused_before_anything_starts(place: Place) -> None:
    """ramfs can neither take a range out of a file nor make a hole in one."""
    place.script("tell('ran')")
    (place.folder / "log").mkdir()
    inside = 'mount -t ramfs -o mode=700 none log && "$@"'
    command = [sys.executable, "-m", "rlaunch", SHORT, "train.py"]
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    done = subprocess.run(
        ["unshare", *as_root, "--mount", "sh", "-c", inside, "sh", *command],
        cwd=place.folder, env=environment(), capture_output=True, timeout=LIMIT,
    )  # fmt: skip
    ended = Ended(done.returncode, done.stdout, done.stderr.decode())
    assert ended.status == 66, ended.stderr
    assert "Operation not supported" in ended.stderr
    assert "leave it out, or name a --log_dir on another file system" in ended.stderr
    assert not (place.folder / "ran.0").exists()
