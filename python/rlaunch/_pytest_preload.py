"""What the zygote of a test session imports: what the tests want, and what each rank's own session needs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest


def modules(preload: str, config: pytest.Config) -> str:
    """The names, joined by commas: of ``preload``; of pytest's own that are in use; and of installed plugins.

    Plugins of the test suite itself are not among them: their asserts are rewritten in each rank.
    """
    entry = {
        point.value.partition(":")[0]
        for distribution in _distributions(config)
        for point in distribution.entry_points
        if point.group == "pytest11"
    }
    own = (name for name in sys.modules if name.startswith("_pytest."))
    plugins = (name for name in entry if name in sys.modules)
    return ",".join([preload, "pytest", *sorted(own), *sorted(plugins), "rlaunch._pytest_rank"])


def _distributions(config: pytest.Config) -> Iterable[Any]:
    seen = {id(dist): dist for _, dist in config.pluginmanager.list_plugin_distinfo()}
    return [getattr(dist, "_dist", dist) for dist in seen.values()]
