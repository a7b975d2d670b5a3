"""The quick part of the fault matrix, for rlaunch alone: each case a test."""

from __future__ import annotations

import tempfile
from pathlib import Path

import matrix
import pytest
from cases.case import CASES, Case, Group, Observation
from launchers import LAUNCHERS


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
