"""Which modules the zygote of a test session imports."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest


def list_modules(preload: str, config: pytest.Config) -> str:
    """Returns comma-separated modules: those of ``preload``, pytest's in use, and installed plugins.

    Plugins of the test suite itself are left out: each rank rewrites their asserts.
    """
    entry_points = {
        point.value.partition(":")[0]
        for distribution in _list_distributions(config)
        for point in distribution.entry_points
        if point.group == "pytest11"
    }
    pytests = (name for name in sys.modules if name.startswith("_pytest."))
    plugins = (name for name in entry_points if name in sys.modules)
    return ",".join([preload, "pytest", *sorted(pytests), *sorted(plugins), "rlaunch._pytest.rank.session"])


def _list_distributions(config: pytest.Config) -> Iterable[Any]:
    unique = {id(dist): dist for _, dist in config.pluginmanager.list_plugin_distinfo()}
    return [getattr(dist, "_dist", dist) for dist in unique.values()]
