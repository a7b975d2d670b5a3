"""Pictures of bars, and the tables of a page that they are drawn from.

The scripts that measure draw the picture of their page from the page's own text: both say the same.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from html import escape

OURS, OTHER, LIMIT = "#b5541c", "#8a8a8a", "#1c6fb5"
WIDTH, LABELS, VALUES, BAR, GAP = 760, 110, 90, 16, 6
# Of a character, in the widest of the usual fonts.
LETTER = 7.8


@dataclass(frozen=True)
class Bar:
    """`words`: written at its end."""

    figure: float
    words: str
    colour: str = OURS


@dataclass(frozen=True)
class Chart:
    """Rows of bars, each with a label before it. The bars of all rows have one scale."""

    title: str
    rows: list[tuple[str, list[Bar]]]
    # Above each bar of a row, where a row has more than one.
    columns: tuple[str, ...] = ()
    # A figure that is drawn across the bars of the first column, and what it is.
    line: tuple[float, str] | None = None


@dataclass(frozen=True)
class Table:
    """A table of a page, without its line of dashes. `section`: the heading above it, "" before the first."""

    section: str
    head: list[str]
    rows: list[list[str]]


def tables(page: str) -> list[Table]:
    found: list[Table] = []
    section, inside = "", False
    for line in page.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not inside:
            found.append(Table(section, cells, []))
        elif not set("".join(cells)) <= set("-: "):
            found[-1].rows.append(cells)
        inside = True
    return found


def image(name: str, alt: str) -> str:
    """The line of a page that shows its picture. `name`: of the page's file."""
    return f"![{alt}]({name}.svg)"


def text(x: float, y: int, words: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y}"{more}>{escape(words)}</text>'


def room(least: int, words: list[str]) -> int:
    return max(least, math.ceil(LETTER * max(map(len, words), default=0)) + 16)


def picture(charts: list[Chart]) -> str:
    """The SVG. A bar is as long as its figure, in parts of its chart's longest."""
    labels = room(LABELS, [label for chart in charts for label, _ in chart.rows])
    parts, top = [], 0
    for chart in charts:
        drawn, top = drawing(chart, labels, top)
        parts += drawn
    size = f'width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}"'
    background = f'<rect width="{WIDTH}" height="{top}" fill="white"/>'
    style = 'font-family="sans-serif" font-size="13"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{background}{"".join(parts)}</svg>\n'


def drawing(chart: Chart, labels: int, top: int) -> tuple[list[str], int]:
    """The parts of a chart that begins at `top`, and where the next one does."""
    bars = [bar for _, row in chart.rows for bar in row]
    column = (WIDTH - labels) // max(1, len(chart.columns))
    longest = max([bar.figure for bar in bars] + ([chart.line[0]] if chart.line else []), default=0) or 1
    full = column - room(VALUES if len(chart.columns) < 2 else 0, [bar.words for bar in bars])

    def length(figure: float) -> float:
        return round(full * figure / longest, 1)

    parts = [text(8, top + 22, chart.title, ' font-weight="bold"')]
    top += 32
    if chart.columns:
        parts += [text(labels + column * at, top + 13, name) for at, name in enumerate(chart.columns)]
        top += BAR + GAP
    first = top
    for label, row in chart.rows:
        parts.append(text(labels - 8, top + 13, label, ' text-anchor="end"'))
        for at, bar in enumerate(row):
            left = labels + column * at
            place = f'x="{left}" y="{top}" width="{length(bar.figure)}" height="{BAR}"'
            parts.append(f'<rect {place} fill="{bar.colour}"/>')
            parts.append(text(left + length(bar.figure) + 6, top + 13, bar.words))
        top += BAR + GAP
    if chart.line is not None:
        figure, words = chart.line
        x = f"{labels + length(figure):g}"
        place = f'x1="{x}" x2="{x}" y1="{first - 4}" y2="{top}"'
        parts.append(f'<line {place} stroke="{LIMIT}" stroke-width="2"/>')
        parts.append(text(labels, top + 12, f"line: {words}", f' fill="{LIMIT}"'))
        top += 18
    return parts, top + 8
