"""``python -m rlaunch.run`` at a terminal: reports of failures, Ctrl-C, what is said once a day."""

from __future__ import annotations

import fcntl
import os
import pty
import termios
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import pytest
from launching import LIMIT, until
from torch_launching import TorchPlace

RANKS = 4
# A module whose import takes long. That of the last rank fails when it is interrupted.
SLOW = f"""
import os, time
rank = int(os.environ["RANK"])
try:
    open(f"importing.{{rank}}", "w").close()
    while True:
        time.sleep(0.01)
except KeyboardInterrupt:
    if rank < {RANKS - 1}:
        raise
    raise OSError("not saved")
"""


def at_terminal(
    place: TorchPlace, *words: str, act: Callable[[FileIO], None] = lambda _: None, **changes: str
) -> tuple[int, bytes]:
    """Runs a job at a terminal of its own. Returns the exit status and all that the terminal received."""
    ours, theirs = pty.openpty()
    with (
        open(ours, "rb+", buffering=0) as keyboard,
        place.start(
            *words,
            **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
            env=place.environment(**changes),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
        ) as launcher,
    ):
        os.close(theirs)
        act(keyboard)
        screen = b""
        while True:
            try:
                screen += keyboard.read(65536)
            except OSError:  # No process has the terminal any more.
                break
        return launcher.wait(LIMIT), screen


FAILS = """
def fault():
    raise KeyError("label")
print("a line of a log", file=sys.stderr)
fault() if rank == 1 else sleep()
"""
TRACEBACK = b"Traceback (most recent call last)"


@pytest.mark.parametrize(
    "options", [[], ["--tee=3"], ["--redirects=3"]], ids=["captured", "tee", "redirected"]
)
@pytest.mark.parametrize("colour", [True, False])
def test_the_report_begins_with_the_rank_and_its_error(
    tmp_path: Path, options: list[str], colour: bool
) -> None:
    place = TorchPlace(tmp_path)
    place.script(FAILS)
    words = ("--nproc-per-node=2", "--log-dir=log", *options, "train.py")
    status, screen = at_terminal(place, *words, NO_COLOR="" if colour else "1")
    assert status == 1
    assert screen.count(TRACEBACK) == 1, screen
    head, frame = screen.rsplit(b"train.py FAILED", 1)
    assert head.rindex(b"rank 1 failed: exit code 1") < head.rindex(b"KeyError: 'label'")
    assert (b"\x1b[1;31mrank 1 failed" in head, b"\x1b[1m  KeyError: 'label'" in head) == (colour, colour), (
        head
    )
    assert head.index(b"in fault", head.rindex(b"KeyError")) < len(head)
    for line in (b"Failures:\r\n  <NO_OTHER_FAILURES>", b"Root Cause (first observed failure):\r\n[0]:"):
        assert line in frame
    assert (TRACEBACK in frame) == (options == ["--redirects=3"]), frame
    # For programs nothing differs.
    assert TRACEBACK.decode() in place.result_of_run()["verdict"]


def test_the_openmp_message_comes_once_a_day(tmp_path: Path) -> None:
    place = TorchPlace(tmp_path)
    place.script("")
    words, message = ("--nproc-per-node=2", "train.py"), b"Setting OMP_NUM_THREADS"

    def said(**changes: str) -> bool:
        status, screen = at_terminal(place, *words, **changes)
        assert status == 0
        return message in screen

    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert said(**cache)
    assert not said(**cache)
    # A log has it always.
    assert message in place.run(*words, env=place.environment(**cache)).stderr.encode()
    (file,) = (tmp_path / "cache/rlaunch").iterdir()
    file.write_text("2026-01-01")
    assert said(**cache)
    (tmp_path / "file").touch()
    unusable = {"XDG_CACHE_HOME": str(tmp_path / "file")}
    assert said(**unusable)
    assert said(**unusable)


@pytest.mark.parametrize("options", [[], ["--tee=3"]], ids=["captured", "tee"])
def test_ctrl_c_while_ranks_import_is_one_report(tmp_path: Path, options: list[str]) -> None:
    place = TorchPlace(tmp_path)
    (place.folder / "slow.py").write_text(SLOW)
    (place.folder / "train.py").write_text("import slow\n")

    def interrupt(keyboard: FileIO) -> None:
        for rank in range(RANKS):
            until((place.folder / f"importing.{rank}").exists, f"rank {rank}")
        keyboard.write(b"\x03")

    words = (f"--nproc-per-node={RANKS}", "--log-dir=log", *options, "train.py")
    status, screen = at_terminal(place, *words, act=interrupt)
    assert status == 130
    run = place.run_folder()
    said = f"rlaunch: KeyboardInterrupt in {RANKS - 1} rank(s); the tracebacks are in the logs in {run}\r\n"
    assert screen.count(said.encode()) == 1, screen
    # What is chained to an interrupt stays, with all of it.
    assert screen.count(b"Traceback") == 2, screen
    assert screen.count(b"KeyboardInterrupt\r\n") == 1
    assert b"OSError: not saved\r\n" in screen
    logs = [path.read_text() for path in run.rglob("stderr.log" if options else "output.log")]
    assert [log.count("KeyboardInterrupt\n") for log in logs] == [1] * RANKS
