"""Starts that fail half-way or are interrupted: the ranks that were started before are ended, the error
says which rank it was, and nothing stays behind."""

from __future__ import annotations

import errno
import pickle
import re
import sys
import traceback
from multiprocessing import active_children
from multiprocessing import spawn as mp_spawn

import pytest
from effort import each
from start_parents import (
    PicklesOnce,
    interrupted,
    modest,
    odd,
    sleep_with,
    starved,
)
from stress import (
    METHODS,
    Parent,
    me,
    results,
    spawn,
)

pytest_plugins = ("footprint",)
pytestmark = pytest.mark.usefixtures("leaves_nothing")
each_method = each("method", METHODS)


@each_method
def test_a_rank_that_cannot_be_started_takes_the_others_with_it(method: str) -> None:
    with Parent(starved, method, 9) as parent:
        for _ in range(9):
            number, text, trace, *left = parent.heard()
            assert (number, left) == (errno.EMFILE, [[], []]), trace
            assert re.search(r"rank [2-9]\d* cannot be started: .*Too many open files", text), trace
        assert parent.ends() == 0
        assert parent.leaves_no_process()


@each_method
def test_a_low_soft_limit_of_descriptors_is_raised(method: str) -> None:
    with Parent(modest, method, 20) as parent:
        assert parent.heard() == list(range(20))
        assert parent.ends() == 0


@each("method", ["spawn", "forkserver"])
def test_an_argument_that_pickles_for_rank_0_alone(method: str) -> None:
    with pytest.raises(pickle.PicklingError, match="once is enough") as caught:
        spawn(sleep_with, method, 3, (PicklesOnce(),), grace_period=0.3)
    assert active_children() == []
    # Exceptions have notes since Python 3.11.
    is_named = "rank 1" in "".join(traceback.format_exception(caught.value)[-2:])
    assert is_named == (sys.version_info >= (3, 11))


@each_method
def test_a_program_that_is_not_there(method: str) -> None:
    before = mp_spawn.get_executable()
    mp_spawn.set_executable("/nowhere/python")
    try:
        if method in ("spawn", "zygote"):
            who = "rank 0" if method == "spawn" else "the zygote"
            with pytest.raises(FileNotFoundError, match=f"{who} cannot be started"):
                spawn(me, method, 2)
        else:
            assert results(spawn(me, method, 2)) == [0, 1]
    finally:
        mp_spawn.set_executable(before)


# --- Starts that are interrupted --------------------------------------------------------------------------


@each_method
def test_an_interrupted_start_leaves_nothing(method: str) -> None:
    with Parent(interrupted, method, 20) as parent:
        messages = [parent.heard() for _ in range(20)]
        assert parent.ends() == 0
        assert parent.leaves_no_process()
    assert [left for _, *left in messages if left != [[], []]] == []


# --- Environments that are no text ------------------------------------------------------------------------


@each_method
def test_a_variable_that_is_no_text_is_handed_on(method: str) -> None:
    with Parent(odd, method) as parent:
        assert parent.heard() == ["61ff62"] * 2
        assert parent.ends() == 0
