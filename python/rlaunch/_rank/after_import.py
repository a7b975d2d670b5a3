"""Runs functions after the imports of modules, without importing them."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder, SourceFileLoader, SourcelessFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.machinery import ModuleSpec
    from typing import Any


class AfterImport:
    """A finder for ``sys.meta_path``: finds modules as Python does, and calls a function after each."""

    def __init__(self, functions: Mapping[str, Callable[[], object]]) -> None:
        """
        Args:
            functions: what to call, by the full name of the module. What they raise, the import raises.
        """
        self._functions = dict(functions)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """For ``sys.meta_path``."""
        if name not in self._functions:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, (SourceFileLoader, SourcelessFileLoader)):
            return None
        # Each module has its own loader of these classes.
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self._functions[name]()

        # On the object: its class stays, by which other tools recognize it.
        loader.exec_module = exec_module
        return spec

    def install(self) -> None:
        """Calls the functions of modules that are imported already, and watches the imports of the others."""
        sys.meta_path.insert(0, self)
        for name, function in self._functions.items():
            if name in sys.modules:
                function()

    def remove(self) -> None:
        """Watches no imports any more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
