"""The status pipe: through it the launcher reports a job's end to the program that started it."""

from __future__ import annotations

import os

# Names the descriptor. `rlaunch.launch` and `rlaunch.run.run` set it for the launcher; ranks do not get it.
VARIABLE = "RLAUNCH_RECORD_FD"


def take_descriptor() -> int:
    """In the launcher: returns the descriptor and removes the variable; -1 if there is none."""
    value = os.environ.pop(VARIABLE, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else -1
