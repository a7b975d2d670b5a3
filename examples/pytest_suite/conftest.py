"""Fixtures of the suite. Each rank sets its own up, but for those that a marker names in ``shared=``."""

import json
import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Costly, so it is made once, in the pytest process: tests name it in ``shared=``."""
    path = tmp_path_factory.mktemp("table") / "rows.json"
    path.write_text(json.dumps(list(range(1000))))
    return {"path": str(path), "made_by": os.getpid()}


@pytest.fixture(scope="session")
def rows(table: dict[str, str]) -> list[int]:
    """Not shared: each rank reads what the one above has written."""
    return json.loads(Path(table["path"]).read_text())


@pytest.fixture(scope="module")
def helper_process() -> int:
    """Of module scope, so once for each test and rank: every rank of every test is a process of its own."""
    return os.getpid()


@pytest.fixture
def share(rank, rows: list[int]) -> list[int]:
    """Of a function: this rank's part of the rows."""
    return rows[rank.rank :: rank.world_size]
