"""Ctrl-C at a terminal while the ranks import: one report, and no traceback of each rank."""

from __future__ import annotations

import fcntl
import os
import pty
import termios
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


@pytest.mark.parametrize("options", [[], ["--tee=3"]], ids=["captured", "tee"])
def test_ctrl_c_while_ranks_import_is_one_report(tmp_path: Path, options: list[str]) -> None:
    place = TorchPlace(tmp_path)
    (place.folder / "slow.py").write_text(SLOW)
    (place.folder / "train.py").write_text("import slow\n")
    ours, theirs = pty.openpty()
    words = [f"--nproc-per-node={RANKS}", "--log-dir=log", *options, "train.py"]
    terminal = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    with (
        open(ours, "rb+", buffering=0) as keyboard,
        place.start(
            *words,
            **terminal,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
        ) as launcher,
    ):
        os.close(theirs)
        for rank in range(RANKS):
            until((place.folder / f"importing.{rank}").exists, f"rank {rank}")
        keyboard.write(b"\x03")
        screen = b""
        while True:
            try:
                screen += keyboard.read(65536)
            except OSError:  # No process has the terminal any more.
                break
        assert launcher.wait(LIMIT) == 130
    run = place.run_folder()
    said = f"rlaunch: KeyboardInterrupt in {RANKS - 1} rank(s); the tracebacks are in the logs in {run}\r\n"
    assert screen.count(said.encode()) == 1, screen
    # What is chained to an interrupt stays, with all of it.
    assert screen.count(b"Traceback") == 2, screen
    assert screen.count(b"KeyboardInterrupt\r\n") == 1
    assert b"OSError: not saved\r\n" in screen
    logs = [path.read_text() for path in run.rglob("stderr.log" if options else "output.log")]
    assert [log.count("KeyboardInterrupt\n") for log in logs] == [1] * RANKS
