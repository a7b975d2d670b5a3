"""Checks for a script without a main guard."""

from __future__ import annotations

import sys


def check_main_guard() -> None:
    """Fails if this process is a rank that still imports its main module: a script without a main guard.

    Raises:
        RuntimeError: multiprocessing's own, which says what to write.
    """
    spawn = sys.modules.get("multiprocessing.spawn")
    if spawn is not None:
        spawn._check_not_importing_main()
