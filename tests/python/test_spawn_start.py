"""Starts that fail half-way or are interrupted: the ranks that were started before are ended, the error
says which rank it was, and nothing stays behind."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import re
import resource
import signal
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing import active_children
from multiprocessing import spawn as mp_spawn
from typing import Any

import pytest
import rlaunch
from hardship import (
    METHODS,
    Footprint,
    Parent,
    deaf,
    join,
    me,
    results,
    sleep_for_ever,
    spawn,
    tell,
    warm_up,
)

pytest_plugins = ("footprint",)
pytestmark = pytest.mark.usefixtures("leaves_nothing")
RLAUNCH = os.path.dirname(rlaunch.__file__)
each_method = pytest.mark.parametrize("method", METHODS)


class Starve:
    """Takes the descriptors away, but `spare` of them, while rank 2 is being started."""

    def __init__(self, method: str, spare: int) -> None:
        self._left, self._spare = 3, spare
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        if method == "fork":  # Nothing is pickled there.
            os.register_at_fork(before=self.count)

    def __reduce__(self) -> Any:
        self.count()
        return bool, ()

    def count(self) -> None:
        self._left -= 1
        if self._left == 0:
            lowest = os.dup(0)
            os.close(lowest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + self._spare, self._limits[1]))

    def relent(self) -> None:
        self._left = 0
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)


def starved(method: str, most: int) -> None:
    warm_up(method)
    for spare in range(most):
        before = Footprint()
        hunger = Starve(method, spare)
        try:
            spawn(sleep_with, method, 12, (hunger,), join=False, grace=0.3)
            outcome = [0, "all started", ""]
        except OSError as error:
            outcome = [error.errno, str(error), traceback.format_exc()]
        living = [p.pid for p in active_children()]
        hunger.relent()
        tell([*outcome, living, before.left_over(3)])


@each_method
def test_a_rank_that_cannot_be_started_takes_the_others_with_it(method: str) -> None:
    with Parent(starved, method, 9) as parent:
        for _ in range(9):
            number, text, trace, *left = parent.heard()
            assert (number, left) == (errno.EMFILE, [[], []]), trace
            assert re.search(r"rank [2-9]\d* cannot be started: .*Too many open files", text), trace
        assert parent.ends() == 0
        assert parent.leaves_nobody()


def modest(method: str, nprocs: int) -> None:
    warm_up(method)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    soft = len(os.listdir("/proc/self/fd")) + 2 * nprocs + 40
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    tell(results(spawn(me, method, nprocs)))


@each_method
def test_a_low_soft_limit_of_descriptors_is_raised(method: str) -> None:
    with Parent(modest, method, 20) as parent:
        assert parent.heard() == list(range(20))
        assert parent.ends() == 0


class PicklesOnce:
    """An argument that is pickled for rank 0 and no further."""

    def __init__(self) -> None:
        self.pickled = 0

    def __reduce__(self) -> Any:
        self.pickled += 1
        if self.pickled > 1:
            raise pickle.PicklingError("once is enough")
        return bool, ()


def sleep_with(_: Any) -> None:
    deaf()
    sleep_for_ever()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_an_argument_that_pickles_for_rank_0_alone(method: str) -> None:
    with pytest.raises(pickle.PicklingError, match="once is enough") as caught:
        spawn(sleep_with, method, 3, (PicklesOnce(),), grace=0.3)
    assert active_children() == []
    assert "rank 1" in "".join(traceback.format_exception(caught.value)[-2:])


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


class Rang(Exception):
    """What a signal handler raises."""


class Alarm:
    """Raises after a while, and again later if that came to nothing."""

    def __init__(self) -> None:
        self.rung = 0
        signal.signal(signal.SIGALRM, self.ring)

    def ring(self, *_: object) -> None:
        self.rung += 1
        raise Rang

    def during(self, body: Callable[[], object], seconds: float, again: float) -> None:
        """Runs ``body``, and raises in the midst of it. It may come a moment before or after, too."""
        self.rung = 0
        try:
            with contextlib.suppress(Rang):
                signal.setitimer(signal.ITIMER_REAL, seconds, again)
                body()
                signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def interrupted(method: str, rounds: int) -> None:
    """Is interrupted at another moment of the start each time."""
    warm_up(method)
    alarm = Alarm()
    whole = time.monotonic()
    ctx = spawn(os.getpid, method, 6, join=False)
    whole = time.monotonic() - whole
    join(ctx)
    for i in range(rounds):
        before = Footprint()
        start = partial(spawn, sleep_for_ever, method, 6, grace=20)
        alarm.during(start, whole * (i + 1) / rounds, again=0.5)
        tell([alarm.rung, [repr(p) for p in active_children()], before.left_over(5)])


@each_method
def test_an_interrupted_start_leaves_nothing(method: str) -> None:
    with Parent(interrupted, method, 20) as parent:
        told = [parent.heard() for _ in range(20)]
        assert parent.ends() == 0
        assert parent.leaves_nobody()
    assert [left for _, *left in told if left != [[], []]] == []


# --- Environments that are no text ------------------------------------------------------------------------


def odd_value() -> str:
    return os.environb[b"ODD"].hex()


def odd(method: str) -> None:
    os.environb[b"ODD"] = b"a\xffb"
    tell(results(spawn(odd_value, method, 2)))


@each_method
def test_a_variable_that_is_no_text_is_handed_on(method: str) -> None:
    with Parent(odd, method) as parent:
        assert parent.heard() == ["61ff62"] * 2
        assert parent.ends() == 0
