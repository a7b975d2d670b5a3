"""pytest plugin: with RLAUNCH_INSTALL=1 a suite that uses ``paddle.distributed.spawn`` runs on rlaunch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_YES = ("1", "true", "yes", "on")


def _wanted() -> bool:
    return os.environ.get("RLAUNCH_INSTALL", "").lower() in _YES


def pytest_configure(config: pytest.Config) -> None:
    if _wanted():
        from .paddle import install

        config.add_cleanup(install().uninstall)


def pytest_report_header() -> list[str]:
    return ["rlaunch: installed under paddle.distributed.spawn"] if _wanted() else []
