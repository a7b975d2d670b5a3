"""Puts rlaunch under ``paddle.distributed.spawn``, so that unchanged scripts and test suites run on it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import spawn as _function

if TYPE_CHECKING:
    from types import ModuleType, TracebackType

_ours = sys.modules[f"{__package__}.spawn"]
assert _ours.spawn is _function

_REPLACED = (
    "spawn",
    "MultiprocessContext",
    "_get_subprocess_env_list",
    "_options_valid_check",
    "_get_default_nprocs",
)


class Installation:
    """What ``install`` did; undone by ``uninstall()`` or at the end of a ``with`` block."""

    def __init__(self, saved: list[tuple[ModuleType, str, Any]]) -> None:
        self._saved = saved

    def uninstall(self) -> None:
        """Puts back what was there. Doing it twice does nothing more."""
        while self._saved:
            module, name, value = self._saved.pop()
            setattr(module, name, value)

    def __enter__(self) -> Installation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.uninstall()


_current: Installation | None = None


def install() -> Installation:
    """Puts rlaunch under ``paddle.distributed.spawn`` in this process; imports Paddle if need be.

    Calling it again changes nothing; what it returns then undoes nothing.

    Raises:
        ImportError: there is no Paddle.
    """
    global _current
    if _current is not None and _current._saved:
        return Installation([])
    import paddle.distributed

    # The attribute `spawn` of the package is the function; the module is only among sys.modules.
    module = sys.modules["paddle.distributed.spawn"]
    saved: list[tuple[ModuleType, str, Any]] = []
    for target, name in [(paddle.distributed, "spawn"), *((module, name) for name in _REPLACED)]:
        saved.append((target, name, getattr(target, name)))
        setattr(target, name, getattr(_ours, name))
    _current = Installation(saved)
    return _current


def uninstall() -> None:
    """Undoes ``install``."""
    if _current is not None:
        _current.uninstall()
