"""The quick part of the fault matrix, for rlaunch alone: each case a test."""

from __future__ import annotations

import tempfile
from pathlib import Path

import bars
import matrix
import pytest
from cases.case import CASES, Case, Group, Observation
from launchers import LAUNCHERS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES.values() if case.quick])
def test_rlaunch_survives(case: Case) -> None:
    # Not tmp_path: pytest keeps those, and some of these are large.
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        seen = case.run(LAUNCHERS["rlaunch"], Path(folder))
    assert seen.ok is not False, f"{case.title}: {seen.text}; wanted: {case.ideal}"


def test_a_table_has_a_row_for_each_case_and_a_column_for_each_launcher() -> None:
    launchers = list(LAUNCHERS.values())
    good, bad = Observation("fine", True), Observation("4 survivors | rank", False)
    rows = {name: {"rlaunch": good, "paddle": bad, "torchrun": bad} for name in CASES}
    page = matrix.table(launchers, rows, thorough=True)
    assert page.count("| fine | ✗ 4 survivors \\| rank | ✗ 4 survivors \\| rank |") == len(CASES)
    assert f"| {len(CASES)} of {len(CASES)} | 0 of {len(CASES)} | 0 of {len(CASES)} |" in page
    assert all(f"## {group.value}\n" in page for group in Group)
    picture = matrix.picture(page)
    assert "![" in page.partition("Written by")[0]
    assert f">{len(CASES)} of {len(CASES)}<" in picture
    assert all(f">{group.value}<" in picture for group in Group)


def test_the_picture_is_of_the_page() -> None:
    """`make faults` writes both; who edits one has to write the other."""
    page = (DOCS / "fault-matrix.md").read_text()
    assert bars.image("fault-matrix", matrix.ALT) in page
    assert (DOCS / "fault-matrix.svg").read_text() == matrix.picture(page)


def test_the_first_table_counts_the_marked_cells_of_the_others() -> None:
    summary, *groups = bars.tables((DOCS / "fault-matrix.md").read_text())
    (_, *totals), *scores = summary.rows
    assert [name for name, *_ in scores] == [group.section for group in groups]
    for at, total in enumerate(totals):
        counts = [tuple(map(int, score[at + 1].split(" of "))) for score in scores]
        assert total == f"{sum(good for good, _ in counts)} of {sum(checked for _, checked in counts)}"
        wrong = [sum(row[at + 2].startswith("✗") for row in group.rows) for group in groups]
        assert [checked - good for good, checked in counts] == wrong
