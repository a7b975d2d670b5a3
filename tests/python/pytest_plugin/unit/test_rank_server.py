"""The pytest process while its ranks say nothing."""

from __future__ import annotations

import pytest
from rlaunch._pytest.rank_server import RankServer


@pytest.mark.parametrize("deadline", [None, 1e9])
def test_it_looks_around_without_a_message(deadline: float | None) -> None:
    """As for a signal that Python handles only when poll(2) has returned."""
    has_ended = iter([False, True])
    server = RankServer([], lambda *_: None)
    assert server.serve(lambda: next(has_ended), lambda: deadline)
