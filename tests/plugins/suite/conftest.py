"""Makes the tests of this folder plain tests, or tests on two ranks with RANKS=1; notes their outcomes."""

from __future__ import annotations

import atexit
import json
import os
import signal
import time
from pathlib import Path

import pytest

RANKS = "RANKS" in os.environ
PAUSE = 0.5


class Place:
    """What a test does: here, or on one rank of two. A plain test does the worse of what both ranks do."""

    def __init__(self, number: int | None):
        self.number = number
        self.is_last = number != 0

    def each(self, first, last) -> None:
        """Rank 0 does `first`, which a plain test does, and rank 1 does `last`, and usually ends before."""
        if self.number == 1:
            last()
        else:
            time.sleep(PAUSE if self.number == 0 else 0)
            first()

    def crash(self) -> None:
        """A plain test that crashes would end the session. Here it raises."""
        if self.number is None:
            raise RuntimeError("crash")
        os.kill(os.getpid(), signal.SIGSEGV)

    def hang(self) -> None:
        if self.number is None and "HANGS" not in os.environ:
            raise RuntimeError("timeout")
        time.sleep(600)


if RANKS:

    @pytest.fixture
    def place(rank) -> Place:
        return Place(rank.rank)

else:

    @pytest.fixture
    def place() -> Place:
        return Place(None)


@pytest.fixture
def crash_after(place):
    """The process dies when the test has been torn down."""
    yield
    if place.number is None:
        place.crash()
    if place.is_last:
        atexit.register(place.crash)


def pytest_configure(config: pytest.Config) -> None:
    for name in ("asyncio", "anyio", "order", "dependency", "timeout"):
        config.addinivalue_line("markers", f"{name}: of a plugin that is installed in some environments")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if RANKS:
            # Where pytest-timeout is in use its limit holds.
            hangs = item.originalname == "test_hangs" and "HANGS" not in os.environ
            item.add_marker(pytest.mark.ranks(2, **({"timeout": 3} if hangs else {})))


class Notes:
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = {"skipped": "xfailed", "passed": "xpassed"}.get(outcome, outcome)
        if report.when == "call" or outcome != "passed":
            if report.when != "call" and outcome == "failed":
                outcome = f"error in {report.when}"
            with Path(os.environ["NOTES"]).open("a") as file:
                file.write(json.dumps([report.nodeid, outcome, str(report.longrepr or "")[-600:]]) + "\n")


def pytest_sessionstart(session: pytest.Session) -> None:
    # Neither in ranks nor in workers of pytest-xdist, whose reports the session passes on.
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(Notes())
