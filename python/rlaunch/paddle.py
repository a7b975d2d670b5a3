"""Puts rlaunch under ``paddle.distributed.spawn``, so that unchanged scripts and test suites run on it."""

from __future__ import annotations

import sys

from . import spawn as _function
from ._installation import Installation

_ours = sys.modules[f"{__package__}.spawn"]
assert _ours.spawn is _function

_REPLACED = (
    "spawn",
    "MultiprocessContext",
    "_get_subprocess_env_list",
    "_options_valid_check",
    "_get_default_nprocs",
)


_current: Installation | None = None


def install() -> Installation:
    """Puts rlaunch under ``paddle.distributed.spawn`` in this process; imports Paddle if need be.

    Calling it again changes nothing; what it returns then undoes nothing.

    Raises:
        ImportError: there is no Paddle.
    """
    global _current
    if _current is not None and _current.stands:
        return Installation([])
    import paddle.distributed

    # The attribute `spawn` of the package is the function; the module is only among sys.modules.
    module = sys.modules["paddle.distributed.spawn"]
    targets = [(paddle.distributed, "spawn"), *((module, name) for name in _REPLACED)]
    _current = Installation((target, name, getattr(_ours, name)) for target, name in targets)
    return _current


def uninstall() -> None:
    """Undoes ``install``."""
    if _current is not None:
        _current.uninstall()
