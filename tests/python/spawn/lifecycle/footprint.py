"""A fixture for the stress tests: a spawn leaves this process as it was."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest
from stress import Footprint, warm_up


@pytest.fixture(scope="module", name="warm")
def warm_fixture() -> None:
    warm_up()
    multiprocessing.Value("i")  # The heap for these keeps its first piece.


@pytest.fixture(name="leaves_nothing")
def leaves_nothing_fixture(warm: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """No process, zombie, descriptor or thread more than before, once the context is gone."""
    before, failed = Footprint(), request.session.testsfailed
    yield
    if request.session.testsfailed == failed:  # A failure's traceback holds the context.
        assert before.left_over() == []
