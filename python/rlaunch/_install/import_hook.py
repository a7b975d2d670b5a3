"""Installs rlaunch in modules of torch and Paddle when they are imported: RLAUNCH_INSTALL."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader, SourcelessFileLoader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.machinery import ModuleSpec

VARIABLE = "RLAUNCH_INSTALL"
_NAMES = ("paddle", "torch")
_ALL = ("1", "true", "yes", "on")
_NONE = ("", "0", "false", "no", "off")


def read_variable() -> list[str]:
    """Returns the frameworks that RLAUNCH_INSTALL names.

    Raises:
        ValueError: it has another value.
    """
    value = os.environ.get(VARIABLE, "")
    words = [word.strip().lower() for word in value.split(",")]
    if len(words) == 1 and words[0] in (*_ALL, *_NONE):
        return list(_NAMES) if words[0] in _ALL else []
    unknown = next((word for word in words if word not in _NAMES), None)
    if unknown is not None:
        why = f"{unknown!r} is no framework" if len(words) > 1 else "unknown value"
        raise ValueError(f"{VARIABLE}={value}: {why}; set it to 1 (all), or to a list of paddle, torch")
    return words


class InstallingFinder:
    """Finds the modules of frameworks as Python does, and has rlaunch installed in each after its import."""

    def __init__(self, frameworks: Iterable[str], shows_reports: bool = False) -> None:
        """
        Args:
            shows_reports: whether uncaught exceptions of a job print no traceback once rlaunch is installed.
        """
        from .installed import FRAMEWORKS

        self._shows_reports = shows_reports
        self._framework_of = {module: name for name in frameworks for module in FRAMEWORKS[name]}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """For ``sys.meta_path``."""
        if name not in self._framework_of:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, (SourceFileLoader, SourcelessFileLoader)):
            return None
        # Each module has its own loader of these classes.
        loader: Any = spec.loader
        framework, execute = self._framework_of[name], loader.exec_module

        def exec_module(module: Any) -> None:
            vars(loader).pop("get_code", None)
            execute(module)
            self._install_in(framework, name)

        # On the object: its class stays, by which other tools recognize it.
        loader.exec_module = exec_module
        if name == "torch.distributed.run":
            # `python -m` does not execute the loader but the module's code, as `__main__`.
            loader.get_code = _compile_torchrun
        return spec

    def install(self) -> None:
        """Installs in the modules that are imported already, and watches the imports of the others."""
        sys.meta_path.insert(0, self)
        for name, framework in self._framework_of.items():
            if name in sys.modules:
                self._install_in(framework, name)

    def uninstall(self) -> None:
        """Undoes ``install`` and what imports have installed since."""
        from .installed import uninstall

        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for framework in set(self._framework_of.values()):
            uninstall(framework)

    def _install_in(self, framework: str, module: str) -> None:
        from .installed import install

        try:
            install(framework, module)
        except Exception as error:
            # The import itself succeeded.
            _warn(f"cannot replace functions of {module}: {type(error).__name__}: {error}")
            return
        if self._shows_reports:
            from .excepthook import show_reports_without_traceback

            show_reports_without_traceback()


def make_finder() -> InstallingFinder | None:
    """Called by the .pth file at the first import of a framework; None if RLAUNCH_INSTALL names none."""
    try:
        names = read_variable()
    except ValueError as error:
        _warn(str(error))
        return None
    return InstallingFinder(names, shows_reports=True) if names else None


def _compile_torchrun(_name: str) -> Any:
    text = "from rlaunch._install.torch_functions import main\nmain()\n"
    return compile(text, "<rlaunch>", "exec")


def _warn(text: str) -> None:
    if sys.stderr is not None:
        print(f"rlaunch: warning: {text}", file=sys.stderr)
