"""A debugger in a rank of a test, at the terminal of the pytest that started it: ``--pdb``, ``breakpoint()``.

One rank of a test has it, and the first that asks keeps it: the others go on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

    from ._pytest_hub import Link

ANY = -1


def leave_interrupts(wanted: int | None) -> None:
    """In a rank, which may have been started with SIGINT held: Ctrl-C is for whoever sits at the prompt.

    The parent ends the others if it has to.
    """
    if wanted is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


class Debugger:
    """Whether, and how, this rank stops for somebody to look."""

    def __init__(self, rank: int, link: Link, turn: int, wanted: int | None, cls: Any) -> None:
        """``turn``: a file that all ranks have; who has locked it has the terminal. ``wanted``: the rank that
        stops when its test fails, ANY for the first that does, None for none. ``cls``: the names of the
        debugger's module and class, None for Python's own.
        """
        self._rank = rank
        self._link = link
        self._turn = turn
        self._wanted = wanted
        self._cls = cls
        self._before: list[int] = []
        sys.breakpointhook = self._at_breakpoint

    def takes(self) -> bool:
        """Whether this rank has the terminal when its test has failed; if so, the parent knows, and waits."""
        return self._wanted in (ANY, self._rank) and self._take_turn()

    def look(self, said: str, error: BaseException) -> None:
        """Shows the failure at the terminal, and lets somebody look where it happened."""
        try:
            if self._attach():
                print(f"\n{said}\n>>> rank {self._rank}: entering PDB (post mortem)", flush=True)
                debugger = self._made()
                debugger.reset()
                debugger.interaction(None, error.__traceback__)
                if getattr(debugger, "quitting", False):
                    self._link.send("quit")
        finally:
            self._detach()
            self._link.send("debugging", False)

    def _take_turn(self) -> bool:
        try:
            # Of this process (fcntl(2)), so it is free when that has ended.
            fcntl.lockf(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        self._link.send("debugging", True)
        return True

    def _at_breakpoint(self, *args: Any, **kwargs: Any) -> None:
        """The rank that was asked for stops, else rank 0. Its test goes on at the terminal."""
        chosen = 0 if self._wanted in (None, ANY) else self._wanted
        if self._rank != chosen or not (self._before or (self._take_turn() and self._attach())):
            return
        frame: FrameType | None = sys._getframe(1)
        print(f"\n>>> rank {self._rank}: entering PDB (breakpoint)", flush=True)
        self._made().set_trace(frame)

    def _made(self) -> Any:
        if self._cls:
            import importlib

            module, name = self._cls
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
            return found()
        import pdb

        return pdb.Pdb()

    def _attach(self) -> bool:
        """Makes the terminal this process's stdin, stdout and stderr."""
        try:
            terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            print(f"rank {self._rank}: no debugger, for want of a terminal: {error}", file=sys.stderr)
            return False
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number in range(3):
            self._before.append(os.dup(number))
            os.dup2(terminal, number)
        os.close(terminal)
        # Not the module's constants: a terminal has a prompt.
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return True

    def _detach(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        for number, before in enumerate(self._before):
            os.dup2(before, number)
            os.close(before)
        self._before.clear()
