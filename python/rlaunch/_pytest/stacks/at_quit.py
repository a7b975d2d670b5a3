"""Prints stacks when this process receives SIGQUIT (Ctrl-\\), which then ends it as any other process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The handler that is set, if one is.
_handler: Callable[..., None] | None = None


@contextlib.contextmanager
def stacks_at_quit(describe: Callable[[], str]) -> Iterator[None]:
    """In the block, SIGQUIT prints ``describe()`` to stderr before it ends this process.

    A handler that is set already stays. Python lets only the main thread set one.
    """
    if threading.current_thread() is not threading.main_thread() or not _has_default_action():
        yield
        return

    def end(*_: object) -> None:
        try:
            print(f"\n{describe()}", file=sys.stderr, flush=True)
        finally:
            signal.signal(signal.SIGQUIT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGQUIT)

    global _handler
    _handler = end
    signal.signal(signal.SIGQUIT, end)
    try:
        yield
    finally:
        _remove_handler()


def _remove_handler() -> None:
    global _handler
    # The test may have set another one.
    if _handler is not None and signal.getsignal(signal.SIGQUIT) is _handler:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    _handler = None


# A forked rank writes stacks of its own, and other children have none to show.
os.register_at_fork(after_in_child=_remove_handler)


def _has_default_action() -> bool:
    """Returns whether SIGQUIT is neither ignored nor caught (proc_pid_status(5)).

    ``signal.getsignal`` does not know the handlers of ``faulthandler.register``.
    """
    with open("/proc/self/status", encoding="utf-8", errors="surrogateescape") as file:
        masks = [int(line.split()[1], 16) for line in file if line.startswith(("SigIgn:", "SigCgt:"))]
    return not any(mask >> (signal.SIGQUIT - 1) & 1 for mask in masks)
