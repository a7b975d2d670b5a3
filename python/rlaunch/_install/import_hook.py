"""Installs rlaunch in modules of torch and Paddle when they are imported: RLAUNCH_INSTALL."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from .._rank.after_import import AfterImport

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.machinery import ModuleSpec

VARIABLE = "RLAUNCH_INSTALL"
_NAMES = ("paddle", "torch")
# Modules that are commands, and the module and function that run each.
_COMMANDS = {
    "torch.distributed.run": ("torch_functions", "main"),
    "paddle.distributed.fleet.launch": ("paddle_functions", "run_legacy_command"),
}
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
        import difflib

        why = f"{unknown!r} is no framework" if len(words) > 1 else "unknown value"
        near = difflib.get_close_matches(unknown, _NAMES, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{VARIABLE}={value}: {why}; set it to 1 (all), or to a list of paddle, torch{hint}")
    return words


class InstallingFinder(AfterImport):
    """Finds the modules of frameworks as Python does, and has rlaunch installed in each after its import."""

    def __init__(self, frameworks: Iterable[str], shows_reports: bool = False) -> None:
        """
        Args:
            shows_reports: whether uncaught exceptions of a job print no traceback once rlaunch is installed.
        """
        from .installed import FRAMEWORKS

        self._shows_reports = shows_reports
        self._frameworks = list(frameworks)
        super().__init__(
            {
                module: functools.partial(self._install_in, name, module)
                for name in self._frameworks
                for module in FRAMEWORKS[name]
            }
        )

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """For ``sys.meta_path``."""
        spec = super().find_spec(name, path, target)
        if spec is not None and name in _COMMANDS:
            # `python -m` does not execute the loader but the module's code, as `__main__`.
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: Any) -> None:
                del loader.get_code
                execute(module)
                # Its package may import it before `python -m` executes it.
                loader.get_code = _compile_command

            loader.get_code, loader.exec_module = _compile_command, exec_module
        return spec

    def uninstall(self) -> None:
        """Undoes ``install`` and what imports have installed since."""
        from .installed import uninstall

        self.remove()
        for framework in self._frameworks:
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


def _compile_command(name: str) -> Any:
    module, function = _COMMANDS[name]
    text = f"from rlaunch._install.{module} import {function}\n{function}()\n"
    return compile(text, "<rlaunch>", "exec")


def _warn(text: str) -> None:
    if sys.stderr is not None:
        print(f"rlaunch: warning: {text}", file=sys.stderr)
