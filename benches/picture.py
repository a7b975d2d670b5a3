"""The picture of the benchmarks' page: bars of the launchers, drawn from the page's own tables."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from bench_launchers import BEFORE, LAUNCHERS

sys.path.append(str(Path(__file__).parents[1] / "tests" / "pictures"))

import bars
from bars import OTHER, OURS, Bar, Chart

# The rows that are drawn, by section and name, with the words above which they are drawn.
DRAWN = {
    ("launch", "wall time of 2 trivial ranks"): "A job of 2 ranks that do nothing",
    ("crash", "a rank exits with a status, p50"): "From a rank's death to the launcher's exit",
    ("idle", "memory, PSS"): "Memory of a launcher while its ranks run",
}


def charts(page: str) -> list[Chart]:
    """The rows of `DRAWN` that the page has. The line is the same without any launcher."""
    found = []
    for table in bars.tables(page):
        for name, *cells in table.rows:
            if (table.section, name) in DRAWN:
                read = {title: amount(cell) for title, cell in zip(table.head[1:], cells, strict=False)}
                rows = []
                for launcher in (it for it in LAUNCHERS if it is not BEFORE):
                    figure, words = read.get(launcher.title, (None, ""))
                    if figure is not None:
                        colour = OURS if launcher.keeps_promises else OTHER
                        rows.append((launcher.title, [Bar(figure, words, colour)]))
                bare, words = read["bare"]
                line = None if bare is None else (bare, f"without any launcher, {words}")
                found.append(Chart(DRAWN[table.section, name], rows, line=line))
    return found


def amount(cell: str) -> tuple[float | None, str]:
    """The figure of a cell such as ``2661 ms (71.9 x)``, if it has one, also with its unit."""
    read = re.match(r"([\d.]+) (\S+)", cell)
    return (float(read[1]), f"{float(read[1]):g} {read[2]}") if read else (None, "")


def picture(page: str) -> str:
    return bars.picture(charts(page))
