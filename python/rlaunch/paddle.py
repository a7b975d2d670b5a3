"""Installs rlaunch in place of ``paddle.distributed.spawn`` and ``launch``: programs run on it unchanged."""

from __future__ import annotations

from ._install import installed
from ._install.monkeypatch import Installation

__all__ = ["install", "uninstall"]


def install() -> Installation:
    """Replaces ``spawn`` and ``launch`` of ``paddle.distributed`` in this process. Imports Paddle.

    ``spawn`` becomes ``rlaunch.spawn``. ``launch()``, also as ``python -m paddle.distributed.launch`` run by
    ``runpy`` in this process, runs ``python -m rlaunch`` with the arguments ``sys.argv[1:]``, and raises
    SystemExit with its exit status, as Paddle's does.

    A module that imported one of them by name before calls rlaunch too. If it is installed already, nothing
    changes, and the returned object undoes nothing.

    Returns:
        An object whose ``uninstall()`` undoes it, also at the end of a ``with`` block.

    Raises:
        ImportError: Paddle is not installed.
    """
    return installed.install("paddle")


def uninstall() -> None:
    """Undoes ``install``."""
    installed.uninstall("paddle")
