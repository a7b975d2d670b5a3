"""How many cases the tests draw: few in `make test`, many in `make test-full` (RLAUNCH_TEST_FULL=1)."""

from __future__ import annotations

import os

FULL = os.environ.get("RLAUNCH_TEST_FULL", "0") not in ("", "0")


def cases(few: int, many: int) -> int:
    """One of the two numbers."""
    return many if FULL else few
