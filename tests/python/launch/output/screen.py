"""A terminal window with a job in it: the user sees the screen, presses keys and resizes the window."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator

import pyte
from launching import LIMIT, Place, environment
from torch_launching import TorchPlace

ROWS, COLUMNS = 60, 90


class Window:
    """What the terminal has received, and what it shows."""

    def __init__(self, ours: int, launcher: subprocess.Popen[bytes], size: tuple[int, int]) -> None:
        self.ours = ours
        self.launcher = launcher
        self.received = b""
        self._screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self._screen)
        self._drawn = 0

    @property
    def screen(self) -> pyte.Screen:
        """The screen as it is now. It is drawn when it is looked at: a megabyte takes pyte seconds."""
        self._stream.feed(self.received[self._drawn :])
        self._drawn = len(self.received)
        return self._screen

    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    def read(self) -> bool:
        """Shows what comes next; returns False at the end of the job."""
        assert select.select([self.ours], [], [], LIMIT)[0], self.lines()
        try:
            data = os.read(self.ours, 65536)
        except OSError:  # EIO: no process has the terminal open.
            return False
        self.received += data
        return data != b""

    def show_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < deadline, self.lines()
            assert self.read(), self.lines()

    def show_all(self) -> int:
        """Shows the rest; returns the exit status."""
        while self.read():
            pass
        return self.launcher.wait(LIMIT)

    def press(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def resize(self, columns: int, rows: int = ROWS) -> None:
        """The kernel sends SIGWINCH to the terminal's foreground process group."""
        self.screen.resize(rows, columns)
        set_size(self.ours, columns, rows)


def set_size(terminal: int, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@contextlib.contextmanager
def at_terminal(
    place: Place, *args: str, size: tuple[int, int] = (COLUMNS, ROWS), **changes: str
) -> Iterator[Window]:
    """A job in the foreground of a terminal of so many columns and rows, with these variables."""
    ours, theirs = pty.openpty()
    set_size(theirs, *size)
    variables = place.environment if isinstance(place, TorchPlace) else environment
    with place.start(
        *args,
        env=variables(**{"TERM": "xterm", **changes}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as launcher:
        os.close(theirs)
        try:
            yield Window(ours, launcher, size)
        finally:
            os.close(ours)
