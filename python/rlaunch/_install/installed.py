"""The modules of torch and Paddle in which rlaunch is installed."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import paddle_functions, torch_functions
from .monkeypatch import Installation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Replacements = Iterable[tuple[Any, str, Any]]

# By framework and module: a function that returns what replaces what in the imported module.
FRAMEWORKS: dict[str, dict[str, Callable[[Any], Replacements]]] = {
    "paddle": {
        "paddle.distributed": paddle_functions.replace,
        "paddle.distributed.fleet.launch": paddle_functions.replace_legacy,
    },
    "torch": {
        "torch.distributed.launcher.api": torch_functions.replace_in_launcher,
        "torch.distributed.run": torch_functions.replace_in_run,
    },
}

_installed: dict[str, Installation] = {}


def install(framework: str, module: str = "") -> Installation:
    """Installs rlaunch in the modules of a framework, and imports them; with ``module``, in that one only.

    Returns:
        An object that undoes it; one that undoes nothing if rlaunch is installed there already.
    """
    names = [module] if module else list(FRAMEWORKS[framework])
    # All imports first: with the import hook, an import installs.
    modules = {name: sys.modules.get(name) or import_module(name) for name in names}
    missing = [name for name in names if not (name in _installed and _installed[name].is_active)]
    made = Installation(one for name in missing for one in FRAMEWORKS[framework][name](modules[name]))
    _installed.update(dict.fromkeys(missing, made))
    return made


def uninstall(framework: str) -> None:
    """Undoes ``install``."""
    for name in FRAMEWORKS[framework]:
        if name in _installed:
            _installed[name].uninstall()
