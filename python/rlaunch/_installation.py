"""Putting rlaunch's functions in the place of a framework's own, and taking them away again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType, TracebackType


class Installation:
    """What ``install`` did; undone by ``uninstall()`` or at the end of a ``with`` block."""

    def __init__(self, replaced: Iterable[tuple[ModuleType, str, Any]]) -> None:
        """Each: a module, a name in it, and what that is to be."""
        self._saved: list[tuple[ModuleType, str, Any]] = []
        for module, name, value in replaced:
            self._saved.append((module, name, getattr(module, name)))
            setattr(module, name, value)

    @property
    def stands(self) -> bool:
        """Whether there is something to undo."""
        return bool(self._saved)

    def uninstall(self) -> None:
        """Puts back what was there. Doing it twice does nothing more."""
        while self._saved:
            module, name, value = self._saved.pop()
            setattr(module, name, value)

    def __enter__(self) -> Installation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.uninstall()
