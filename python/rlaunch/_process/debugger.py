"""Lets a debugger of this program (pydevd: debugpy in VS Code, PyCharm) debug the ranks too.

pydevd replaces the functions with which Python starts processes: a new interpreter first runs code that
connects to the debugger. rlaunch starts processes without these functions, and so passes that code on itself.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The code, for a rank (python/data/purelib/rlaunch_rank.py).
VARIABLE = "RLAUNCH_DEBUGGER"


def build_code() -> str:
    """Returns code that connects a new interpreter to the debugger; empty if none debugs subprocesses."""
    pydevd: Any = sys.modules.get("_pydev_bundle.pydev_monkey")
    # pydevd keeps the functions that it has replaced.
    if pydevd is None or not hasattr(os, "original_execv"):
        return ""
    nothing = "pass"
    *_, code = pydevd.patch_args([sys.executable, "-c", nothing])
    return "" if code == nothing else str(code)
