"""Installs rlaunch in place of ``paddle.distributed.spawn``: scripts and test suites run on it unchanged."""

from __future__ import annotations

import sys

from ._install.monkeypatch import Installation

_current: Installation | None = None


def install() -> Installation:
    """Replaces ``paddle.distributed.spawn`` by ``rlaunch.spawn`` in this process. Imports Paddle.

    If it is installed already, nothing changes, and the returned object undoes nothing.

    Returns:
        An object whose ``uninstall()`` undoes it, also at the end of a ``with`` block.

    Raises:
        ImportError: Paddle is not installed.
    """
    global _current
    if _current is not None and _current.is_active:
        return Installation([])
    import paddle.distributed

    from ._spawn.context import MultiprocessContext
    from ._spawn.plan.options import check_option_names
    from ._spawn.plan.paddle_devices import default_nprocs
    from ._spawn.plan.ranks import get_environs
    from ._spawn.spawn import spawn

    replacements = {
        "spawn": spawn,
        "MultiprocessContext": MultiprocessContext,
        "_get_subprocess_env_list": get_environs,
        "_options_valid_check": check_option_names,
        "_get_default_nprocs": default_nprocs,
    }
    # As an attribute of its package, `spawn` is the function; the module is only in sys.modules.
    module = sys.modules["paddle.distributed.spawn"]
    targets = [(module, name, value) for name, value in replacements.items()]
    _current = Installation([(paddle.distributed, "spawn", spawn), *targets])
    return _current


def uninstall() -> None:
    """Undoes ``install``."""
    if _current is not None:
        _current.uninstall()
