"""Installs ``rlaunch.run`` in place of ``torch.distributed.run``."""

from __future__ import annotations

from .. import run
from .monkeypatch import Installation

_current: Installation | None = None


def install() -> Installation:
    """See ``rlaunch.torch.install``."""
    global _current
    if _current is not None and _current.is_active:
        return Installation([])
    import torch.distributed.run

    _current = Installation((torch.distributed.run, name, getattr(run, name)) for name in run.__all__)
    return _current


def uninstall() -> None:
    """See ``rlaunch.torch.uninstall``."""
    if _current is not None:
        _current.uninstall()
