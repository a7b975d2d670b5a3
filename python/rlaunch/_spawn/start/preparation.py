"""What a rank's preparation data does while the rank unpickles it, before it imports the main module."""

from __future__ import annotations

import linecache
import sys
from typing import Any


class RunOnUnpickling:
    """Unpickles by running code with these variables."""

    def __init__(self, code: str, **variables: Any) -> None:
        self._code = code
        self._variables = variables

    def __reduce__(self) -> tuple[Any, tuple[str, dict[str, Any]]]:
        return exec, (self._code, self._variables)


# The call then raises the exception, as if the function had (`Call.take`).
_KEEP_ERROR = """
from multiprocessing import spawn

def keep_error(import_main):
    def import_or_keep_error(where):
        try:
            import_main(where)
        except Exception as error:
            from rlaunch._spawn.sending.call import Call
            Call.main_error = error
    return import_or_keep_error

for name in ("_fixup_main_from_name", "_fixup_main_from_path"):
    setattr(spawn, name, keep_error(getattr(spawn, name)))
"""


def keep_error_of_main(data: dict[str, Any]) -> None:
    """Has a rank report an exception of its import of the main module to its parent."""
    data["_rlaunch_main"] = RunOnUnpickling(_KEEP_ERROR)


def add_cell_sources(data: dict[str, Any]) -> None:
    """Adds the source lines of what was typed in a notebook or at a prompt, which are in no file.

    A rank receives such functions by value. Its tracebacks and ``inspect.getsource`` read their lines from
    linecache.
    """
    if not hasattr(sys, "ps1"):
        return
    # An entry of a file has a time of modification; one that is loaded on demand has one item.
    entries = list(linecache.cache.items())
    sources = {name: entry for name, entry in entries if len(entry) == 4 and entry[1] is None}
    if sources:
        update = "import linecache; linecache.cache.update(sources)"
        data["_rlaunch_sources"] = RunOnUnpickling(update, sources=sources)
