"""A debugger in a rank, at the terminal of the pytest process: ``--pdb`` and ``breakpoint()``.

One rank of a test has the terminal: the first that asks for it. The others go on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ..task import ANY_RANK

if TYPE_CHECKING:
    from types import FrameType

    from ..messages import Link


# The mode of the lock's file once a rank has had the terminal: other ranks may ask after that one has ended.
_TAKEN = 0o400


def ignore_interrupts(debug_rank: int | None) -> None:
    """Has this rank ignore Ctrl-C, which is for the debugger's prompt, if a rank may enter the debugger.

    The rank may have been started with SIGINT blocked. The parent ends ranks if it has to.
    """
    if debug_rank is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


class Debugger:
    """Decides whether this rank enters the debugger, and runs it at the terminal."""

    def __init__(
        self, rank: int, link: Link, terminal_lock: int, debug_rank: int | None, cls: Any, worker: str | None
    ) -> None:
        """
        Args:
            terminal_lock: a file that all ranks have; the rank that has locked it may use the terminal.
            debug_rank: the rank that enters the debugger when its test fails, ANY_RANK, or None.
            cls: the names of the debugger's module and class; None: pdb.
            worker: the worker of pytest-xdist that runs the test; None without pytest-xdist.
        """
        self._rank = rank
        self._link = link
        self._terminal_lock = terminal_lock
        self._debug_rank = debug_rank
        self._cls = cls
        self._worker = worker
        self._has_terminal = False
        # Copies of the standard descriptors while the terminal has their place.
        self._originals: list[int] = []
        sys.breakpointhook = self._handle_breakpoint

    def try_to_enter(self) -> bool:
        """After a failure: returns whether this rank enters the debugger. The parent then stops its timer."""
        return self._debug_rank in (ANY_RANK, self._rank) and self._lock_terminal()

    def post_mortem(self, text: str, error: BaseException) -> None:
        """Prints the failure at the terminal and runs the debugger where the exception was raised."""
        try:
            if self._attach():
                print(f"\n{text}\n>>> rank {self._rank}: entering PDB (post mortem)", flush=True)
                debugger = self._make_debugger()
                debugger.reset()
                debugger.interaction(None, error.__traceback__)
                if getattr(debugger, "quitting", False):
                    self._debug_rank = None  # Not for the next subtest either.
                    self._link.send("quit")
        finally:
            self._detach()
            self._link.send("debugging", False)

    def _lock_terminal(self) -> bool:
        if not self._has_terminal:
            try:
                # A lock of this process (fcntl(2)): it is released when the process ends.
                fcntl.lockf(self._terminal_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            if stat.S_IMODE(os.fstat(self._terminal_lock).st_mode) == _TAKEN:
                return False
            os.fchmod(self._terminal_lock, _TAKEN)
            self._has_terminal = True
        self._link.send("debugging", True)
        return True

    def _handle_breakpoint(self, *args: Any, **kwargs: Any) -> None:
        # The chosen rank stops, else rank 0. It keeps the terminal for the rest of its test.
        chosen = 0 if self._debug_rank in (None, ANY_RANK) else self._debug_rank
        __tracebackhide__ = True
        if self._rank != chosen:
            return
        if self._worker is not None:
            where = f"{self._worker}, a worker of pytest-xdist, has none; run the test with -n 0"
            pytest.fail(f"breakpoint() needs a terminal, but {where}")
        if not self._originals:
            if not self._lock_terminal():
                return
            if not self._attach():
                self._link.send("debugging", False)
                pytest.fail("breakpoint() needs a terminal, but pytest has none")
        frame: FrameType | None = sys._getframe(1)
        print(f"\n>>> rank {self._rank}: entering PDB (breakpoint)", flush=True)
        self._make_debugger().set_trace(frame)

    def _make_debugger(self) -> Any:
        if self._cls:
            import importlib

            module, name = self._cls
            cls: Any = importlib.import_module(module)
            for part in name.split("."):
                cls = getattr(cls, part)
            return cls()
        import pdb

        return pdb.Pdb()

    def _attach(self) -> bool:
        """Makes the terminal this process's stdin, stdout and stderr."""
        try:
            terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            print(f"rank {self._rank}: cannot start the debugger: no terminal: {error}", file=sys.stderr)
            return False
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number in range(3):
            self._originals.append(os.dup(number))
            os.dup2(terminal, number)
        os.close(terminal)
        # A new object: the old one may have been made for a file that is no terminal.
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return True

    def _detach(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        for number, original in enumerate(self._originals):
            os.dup2(original, number)
            os.close(original)
        self._originals.clear()
