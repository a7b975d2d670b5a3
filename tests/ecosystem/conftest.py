"""Libraries that train on several ranks, run on rlaunch: ``make test-ecosystem``.

``--write PAGE`` writes what was seen into a page of the docs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ecosystem_table
import pytest
from ecosystem_jobs import Jobs
from ecosystem_table import Row

NUMBER = pytest.StashKey[int]()
# In the order of the table.
FILES = [
    "test_accelerate",
    "test_lightning",
    "test_transformers",
    "test_trl",
    "test_torchmetrics",
    "test_paddle_fleet",
    "test_debugpy",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write", type=Path, help="writes the table of libraries into this file")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: FILES.index(item.path.stem))
    for number, item in enumerate(items):
        item.stash[NUMBER] = number
        item.add_marker(pytest.mark.timeout(600))


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


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
    terminalreporter.write_line(ecosystem_table.as_text(rows))
    if (file := config.getoption("--write")) is not None:
        file.write_text(ecosystem_table.as_page(rows))
