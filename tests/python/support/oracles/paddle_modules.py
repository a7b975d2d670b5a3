"""Parts of Paddle's launcher for tests to talk to."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any


def modules_of_paddles_launcher(*names: str) -> list[Any]:
    """Modules of `paddle.distributed.launch`, without Paddle itself: a process that has imported that behaves
    otherwise (`rlaunch.spawn` asks it for its devices), and other tests run in this one."""
    found = importlib.util.find_spec("paddle")
    assert found is not None
    assert found.submodule_search_locations is not None
    root = Path(found.submodule_search_locations[0])
    before = set(sys.modules)
    packages = ["paddle", "paddle.distributed", "paddle.distributed.launch"]
    packages += [f"paddle.distributed.launch.{name.rpartition('.')[0]}" for name in names]
    assert before.isdisjoint(packages), "some test has imported Paddle here"
    for name in packages:
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    try:
        return [importlib.import_module(f"paddle.distributed.launch.{name}") for name in names]
    finally:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "paddle":
                del sys.modules[name]
