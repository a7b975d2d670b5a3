"""The cluster of these tests, and the table of what they have seen there (`--write docs/slurm-table.md`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scenario_table
import slurm_cluster
from scenario_table import Row
from slurm_cluster import Cluster

NUMBER = pytest.StashKey[int]()
FILES = [
    "test_start",
    "test_guide",
    "test_side_by_side",
    "test_ends",
    "test_preemption",
    "test_stop_senders",
]  # In the table's order.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write", type=Path, help="writes the table of scenarios into this file")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: FILES.index(item.path.stem))
    for number, item in enumerate(items):
        item.stash[NUMBER] = number
    # Those that wait for Slurm's clock come first, and the others run beside them.
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Each worker of pytest-xdist has its own."""
    problem = slurm_cluster.missing()
    assert problem is None, problem
    with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Iterator[Row]:
    """This test's row of the table, which the test fills in."""
    row = Row(request.node.stash[NUMBER])
    yield row
    # Comes with the report of the teardown from xdist's worker to the session.
    request.node.user_properties.append(("row", row.as_list()))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    rows = [
        Row(*value)
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", [])
        if name == "row"
    ]
    rows = sorted({row.number: row for row in rows}.values(), key=lambda row: row.number)
    terminalreporter.write_line(scenario_table.as_text(rows))
    if (file := config.getoption("--write")) is not None:
        file.write_text(scenario_table.as_page(rows, slurm_cluster.versions()))
