"""Replaces attributes of modules and functions, and restores them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType


class Installation:
    """The effect of ``install()``; ``uninstall()`` or the end of a ``with`` block undoes it."""

    def __init__(self, replacements: Iterable[tuple[Any, str, Any]]) -> None:
        """
        Args:
            replacements: an object, the name of its attribute, and the new value of that.
        """
        self._originals: list[tuple[Any, str, Any]] = []
        for owner, name, value in replacements:
            self._originals.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)

    @property
    def is_active(self) -> bool:
        """Whether there is something to undo."""
        return bool(self._originals)

    def uninstall(self) -> None:
        """Restores the original values. A second call has no effect."""
        while self._originals:
            owner, name, value = self._originals.pop()
            setattr(owner, name, value)

    def __enter__(self) -> Installation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.uninstall()
