"""Measures how long a rank imports installed packages, which other tests could have from a preload server."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_INSTALLED = ("/site-packages/", "/dist-packages/")


class ImportClock:
    """A finder that finds nothing: it sees when the import of each module begins.

    An import lasts at least until the last one that begins while it is in progress. Frames of its own, as
    those of a replaced ``__import__``, would be in tracebacks and in warnings of modules.

    Attributes:
        seconds: of each import in the main thread that no other installed module has caused.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._name = ""
        self._start = 0.0

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        now = time.monotonic()
        if _is_imported_now(self._name):
            self.seconds[self._name] = now - self._start
            return
        # Another finder may have found the package, or imported others to do so.
        package = name.partition(".")[0]
        self._name, self._start = package if _is_imported_now(package) else name, now


def _is_imported_now(name: str) -> bool:
    """Returns whether this is an installed module whose code runs."""
    spec: Any = getattr(sys.modules.get(name), "__spec__", None)
    origin = str(getattr(spec, "origin", None))
    return getattr(spec, "_initializing", False) and any(folder in origin for folder in _INSTALLED)
