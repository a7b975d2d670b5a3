"""Tests on ranks beside the plugins in which faults are likely; and the page of all plugins."""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance import ENVIRONMENTS, ROOT, Comparison, Session, compare
from effort import each
from plugin_list import PLUGINS, Plugin

LIKELY = [plugin for plugin in PLUGINS if plugin.likely]


@pytest.mark.timeout(600)
@each("plugin", LIKELY, ids=lambda plugin: plugin.name)
def test_outcomes_are_those_of_plain_tests(plugin: Plugin, tmp_path: Path) -> None:
    assert (ENVIRONMENTS / plugin.name / "installed").exists(), "run: make target/plugins/likely"
    seen = compare(plugin, True, tmp_path)
    assert not seen.differences(), seen.ranks.output
    # The suite itself: each kind of outcome is there.
    outcomes = {outcome for outcomes in seen.plain.outcomes.values() for outcome in outcomes}
    assert outcomes >= {"passed", "failed", "skipped", "xfailed", "error in setup", "error in teardown"}


def test_a_lost_failure_is_a_difference() -> None:
    failed = Session(1, {"test_it": ["failed"]}, {}, "")
    for status, outcomes in ((0, {}), (1, {"test_it": ["passed"]}), (1, {"test_it": ["failed", "failed"]})):
        assert Comparison(LIKELY[0], "", failed, Session(status, outcomes, {}, "")).differences()
    assert not Comparison(LIKELY[0], "", failed, failed).differences()


def test_the_page_has_all_plugins_and_all_are_equal() -> None:
    lines = (ROOT / "docs" / "pytest-plugins.md").read_text().splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")
    ]
    rows = [row for row in rows if row[0] != "plugin"]
    assert {row[0] for row in rows} == {plugin.name for plugin in PLUGINS}
    assert len({row[0] for row in rows}) >= 30
    assert len(rows) == 2 * len(PLUGINS)
    for row in rows:
        assert row[-1] == "equal", row
        assert row[4] == row[5], row
