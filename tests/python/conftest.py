"""What most tests of the launcher begin with."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import Place, marked
from oracle import SEED


def pytest_report_header() -> str:
    return f"RLAUNCH_SEED={SEED}"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def mark() -> Iterator[str]:
    """What the processes of a test carry in their environment; those that it left are ended."""
    mark = uuid.uuid4().hex
    yield mark
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
