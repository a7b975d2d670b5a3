"""The arguments of a bench section: a folder, the thoroughness, and the sink of figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench_launchers import LAUNCHERS, Launcher
from figures import Cell, Figures, Promise, Row


@dataclass
class Session:
    folder: Path
    quick: bool
    figures: Figures
    section: str = ""

    def amount(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def row(
        self,
        what: str,
        cells: Mapping[str, Cell],
        unit: str,
        promise: Promise | None = None,
        bare: float | None = None,
    ) -> None:
        self.figures.add(Row(self.section, what, unit, cells, promise, bare))


def present() -> list[Launcher]:
    """Those that are installed, ours first."""
    return [launcher for launcher in LAUNCHERS if not launcher.is_rival or launcher.version]


def each(measure: Callable[[Launcher], Cell], launchers: Iterable[Launcher] | None = None) -> dict[str, Cell]:
    """One figure of every launcher that is there."""
    return {launcher.name: measure(launcher) for launcher in (present() if launchers is None else launchers)}
