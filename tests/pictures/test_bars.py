"""Bars are as long as their figures, and words do not run into each other."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from pathlib import Path

import pytest
from bars import LABELS, VALUES, WIDTH, Bar, Chart, Table, picture, tables

DOCS = Path(__file__).parents[2] / "docs"
# Pixels a character of 13 px in DejaVu Sans, a wide font. Measured: 6.7 at most, and 7.3 where it is bold.
LETTER = 7.0
BOLD = 8.0


def words(svg: str) -> list[tuple[int, float, float, str]]:
    """Each text of a picture: the line that it is on, its left and its right end."""
    found = []
    for x, y, more, text in re.findall(r'<text x="([\d.]+)" y="(\d+)"([^>]*)>([^<]*)<', svg):
        wide = len(re.sub(r"&[^;]+;", "x", text)) * (BOLD if "bold" in more else LETTER)
        left = float(x) - wide if "end" in more else float(x)
        found.append((int(y), left, left + wide, text))
    return found


@pytest.mark.parametrize("page", ["benchmarks", "chaos", "fault-matrix", "soak"])
def test_words_fit(page: str) -> None:
    svg = (DOCS / f"{page}.svg").read_text()
    height = int(re.findall(r'height="(\d+)"', svg)[0])
    lines = defaultdict(list)
    for y, left, right, text in words(svg):
        assert left >= 0, text
        assert right <= WIDTH, text
        assert y < height, text
        lines[y].append((left, right, text))
    assert lines
    for line in lines.values():
        line.sort()
        for (_, right, text), (left, _, after) in itertools.pairwise(line):
            assert right < left, f"{text!r} runs into {after!r}"


def widths(svg: str) -> list[float]:
    return [float(width) for width in re.findall(r'<rect x="\d+" y="\d+" width="([\d.]+)"', svg)]


def test_bars_of_columns_have_one_scale() -> None:
    rows = [
        ("all", [Bar(1.0, "4 of 4"), Bar(0.25, "1 of 4")]),
        ("few", [Bar(0.5, "1 of 2"), Bar(0, "0 of 2")]),
    ]
    svg = picture([Chart("Cases", rows, ("ours", "theirs"))])
    longest, *others = widths(svg)
    assert others == pytest.approx([longest / 4, longest / 2, 0], abs=0.1)
    assert f'x="{LABELS + (WIDTH - LABELS) // 2}"' in svg


def test_the_longest_bar_is_in_parts_of_a_line_beyond_it() -> None:
    svg = picture([Chart("Stops", [("latest", [Bar(1.0, "1 s")])], line=(4.0, "promised, 4 s"))])
    assert widths(svg) == [pytest.approx((WIDTH - LABELS - VALUES) / 4, abs=0.1)]


def test_bars_that_are_all_zero_have_no_length() -> None:
    assert widths(picture([Chart("Broken", [("promises", [Bar(0, "0")])])])) == [0.0]


def test_tables_have_their_sections_and_cells() -> None:
    page = "# T\n\n| | a |\n|---|---|\n| x | 1 \\| 2 |\n\n## S\n\n| | b |\n| --- | ---: |\n| y | - |\n"
    first = Table("", ["", "a"], [["x", "1 \\| 2"]])
    assert tables(page) == [first, Table("S", ["", "b"], [["y", "-"]])]
