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

    signal.signal(signal.SIGQUIT, end)
    try:
        yield
    finally:
        # The test may have set another one.
        if signal.getsignal(signal.SIGQUIT) is end:
            signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def _has_default_action() -> bool:
    """Returns whether SIGQUIT is neither ignored nor caught (proc_pid_status(5)).

    ``signal.getsignal`` does not know the handlers of ``faulthandler.register``.
    """
    with open("/proc/self/status", encoding="utf-8", errors="surrogateescape") as file:
        masks = [int(line.split()[1], 16) for line in file if line.startswith(("SigIgn:", "SigCgt:"))]
    return not any(mask >> (signal.SIGQUIT - 1) & 1 for mask in masks)
