"""Forks of the host of ranks: they have copies of its objects, and must not act by them."""

from __future__ import annotations

import os
import signal

from effort import each
from forking_parents import parent_that_counts_threads, parent_that_forks
from stress import METHODS, Parent, wait_inside_join


@each("method", METHODS)
def test_a_fork_of_the_host_does_nothing_to_the_ranks(method: str) -> None:
    with Parent(parent_that_forks, method) as parent:
        for body in ("drop", "end_normally", "use"):
            assert parent.heard() == [body, 0, 3], body
        for living in (3, 1):
            wait_inside_join(parent.process.pid)
            os.kill(parent.process.pid, signal.SIGALRM)
            assert parent.heard() == [5, living]
            assert parent.heard() == "joined", parent.complaints()
        assert (parent.ends(), parent.complaints()) == (0, "")


def test_the_host_has_one_thread_when_it_forks_a_rank() -> None:
    with Parent(parent_that_counts_threads) as parent:
        assert parent.heard() == [1, 1, 1]
        assert (parent.ends(), parent.complaints()) == (0, "")
