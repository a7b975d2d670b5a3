"""Blocks signals while a process starts."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@contextlib.contextmanager
def blocked_signals(signals: Iterable[int] | None = None) -> Iterator[None]:
    """Blocks signals (default: all) in this thread until the block ends, so that it runs to its end."""
    # In a call of its own: blocking runs the handlers of signals that are pending, which may raise.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() if signals is None else signals)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
