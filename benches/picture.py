"""The picture of the benchmarks' page: bars of the launchers, drawn from the page's own tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

from bench_launchers import LAUNCHERS, RLAUNCH

# The rows that are drawn, by section and name, with the words below which they are drawn.
DRAWN = {
    ("launch", "wall time of 2 trivial ranks"): "A job of 2 ranks that do nothing",
    ("crash", "a rank exits with a status, p50"): "From a rank's death to the launcher's exit",
    ("idle", "memory, PSS"): "Memory of a launcher while its ranks run",
}
OURS, OTHER, FLOOR = "#b5541c", "#8a8a8a", "#1c6fb5"
WIDTH, LABELS, VALUES, BAR, GAP = 760, 110, 90, 16, 6


@dataclass(frozen=True)
class Bars:
    """A row of the page's tables: figures of one unit, by the launcher's title."""

    title: str
    unit: str
    figures: dict[str, float]
    # The same without any launcher.
    bare: float | None


def bars(page: str) -> list[Bars]:
    """The rows of `DRAWN` that the page has."""
    found = []
    for block in page.split("\n## ")[1:]:
        section, *lines = block.splitlines()
        lines = [line for line in lines if line.startswith("| ")]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        titles = rows[0][1:-2]
        for name, *cells in rows[1:]:
            if (section, name) in DRAWN:
                read = {title: amount(cell) for title, cell in zip(titles, cells, strict=False)}
                figures = {title: figure for title, (figure, _) in read.items() if figure is not None}
                bare, _ = amount(cells[len(titles)])
                found.append(Bars(DRAWN[section, name], read[RLAUNCH.title][1], figures, bare))
    return found


def amount(cell: str) -> tuple[float | None, str]:
    """The figure of a cell such as ``2661 ms (71.9 x)``, if it has one, and its unit."""
    read = re.match(r"([\d.]+) (\S+)", cell)
    return (float(read[1]), read[2]) if read else (None, "")


def text(x: float, y: int, words: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y}"{more}>{escape(words)}</text>'


def picture(page: str) -> str:
    """The SVG. A bar is as long as its figure, in parts of its row's longest."""
    parts, top = [], 0
    for row in bars(page):
        parts.append(text(8, top + 22, row.title, ' font-weight="bold"'))
        top += 32
        first = top
        longest = max(row.figures.values())

        def length(figure: float, longest: float = longest) -> float:
            return round((WIDTH - LABELS - VALUES) * figure / longest, 1)

        for launcher in LAUNCHERS:
            if launcher.title not in row.figures:
                continue
            figure = row.figures[launcher.title]
            colour = OURS if launcher.ours else OTHER
            place = f'x="{LABELS}" y="{top}" width="{length(figure)}" height="{BAR}"'
            parts.append(text(LABELS - 8, top + 13, launcher.title, ' text-anchor="end"'))
            parts.append(f'<rect {place} fill="{colour}"/>')
            parts.append(text(LABELS + length(figure) + 6, top + 13, f"{figure:g} {row.unit}"))
            top += BAR + GAP
        if row.bare is not None:
            x = f"{LABELS + length(row.bare):g}"
            place = f'x1="{x}" x2="{x}" y1="{first - 4}" y2="{top}"'
            parts.append(f'<line {place} stroke="{FLOOR}" stroke-width="2"/>')
            words = f"line: without any launcher, {row.bare:g} {row.unit}"
            parts.append(text(LABELS, top + 12, words, f' fill="{FLOOR}"'))
            top += 18
        top += 8
    size = f'width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}"'
    background = f'<rect width="{WIDTH}" height="{top}" fill="white"/>'
    style = 'font-family="sans-serif" font-size="13"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{background}{"".join(parts)}</svg>\n'
