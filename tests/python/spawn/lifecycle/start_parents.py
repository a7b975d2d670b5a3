"""Parents, in processes of their own, whose starts fail or are interrupted. Imports no pytest."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing import active_children
from typing import Any

from stress import (
    Footprint,
    deaf,
    join,
    me,
    results,
    sleep_for_ever,
    spawn,
    tell,
    warm_up,
)


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
            spawn(sleep_with, method, 12, (hunger,), join=False, grace_period=0.3)
            outcome = [0, "all started", ""]
        except OSError as error:
            outcome = [error.errno, str(error), traceback.format_exc()]
        living = [p.pid for p in active_children()]
        hunger.relent()
        tell([*outcome, living, before.left_over(3)])


def modest(method: str, nprocs: int) -> None:
    warm_up(method)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    soft = len(os.listdir("/proc/self/fd")) + 2 * nprocs + 40
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    tell(results(spawn(me, method, nprocs)))


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


class Rang(Exception):
    """Raised by a signal handler."""


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
        start = partial(spawn, sleep_for_ever, method, 6, grace_period=20)
        alarm.during(start, whole * (i + 1) / rounds, again=0.5)
        tell([alarm.rung, [repr(p) for p in active_children()], before.left_over(5)])


def odd_value() -> str:
    return os.environb[b"ODD"].hex()


def odd(method: str) -> None:
    os.environb[b"ODD"] = b"a\xffb"
    tell(results(spawn(odd_value, method, 2)))
