"""A terminal with a job at it: keys to press, and the output to expect."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from job import Job
from launchers import Launcher


class Terminal:
    """Its screen, which is read all the time, and its keyboard."""

    def __init__(self, ours: int) -> None:
        self.ours = ours
        self.screen = bytearray()
        self.closing = os.pipe()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        while True:
            ready, _, _ = select.select([self.ours, self.closing[0]], [], [])
            if self.closing[0] in ready:
                return
            try:
                data = os.read(self.ours, 65536)
            except OSError:  # EIO: no process has the other end open.
                return
            self.screen += data

    def press(self, key: bytes) -> None:
        os.write(self.ours, key)

    def close(self) -> None:
        os.close(self.closing[1])
        self.reader.join()
        os.close(self.closing[0])
        os.close(self.ours)


def set_size(terminal: int, rows: int, columns: int) -> None:
    """Resizes the window; `terminal` is either end."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@contextlib.contextmanager
def at_terminal(
    launcher: Launcher, folder: Path, body: str, *args: str, size: tuple[int, int] = (0, 0), **options: Any
) -> Iterator[tuple[Job, Terminal]]:
    """A job whose session has a terminal of its own, of so many rows and columns (0 where no size is set)."""
    ours, theirs = pty.openpty()
    set_size(theirs, *size)
    job = Job(
        launcher,
        folder,
        body,
        *args,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        before_exec=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        **options,
    )
    os.close(theirs)
    terminal = Terminal(ours)
    try:
        with job:
            yield job, terminal
    finally:
        terminal.close()
