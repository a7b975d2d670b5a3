"""Parents, in processes of their own, that are interrupted at each line. Imports no pytest."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from multiprocessing import active_children
from types import FrameType
from typing import Any

import rlaunch
from effort import cases
from rlaunch.torch import start_processes
from stress import children, eventually, sleep_for_ever, spawn, state, tell, warm_up

RLAUNCH = os.path.dirname(rlaunch.__file__) + os.sep


class Rang(Exception):
    """Raised by a signal handler."""


class Tripwire:
    """Raises at one line of rlaunch, the nth that is run, as a signal handler would; so not where signals
    are held."""

    def __init__(self, nth: int) -> None:
        self._left, self._home = nth, os.getpid()
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> Tripwire | None:
        if os.getpid() != self._home or not frame.f_code.co_filename.startswith(RLAUNCH):
            return None
        held = signal.SIGALRM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        if event == "line" and not self.where and not held:
            self._left -= 1
            if self._left < 0:
                code = frame.f_code
                self.where = f"{os.path.basename(code.co_filename)}:{frame.f_lineno} ({code.co_name})"
                raise Rang
        return self


def lasting(before: set[int]) -> list[Any]:
    """Processes that have come and will not go."""
    eventually(lambda: not children() - before, 1)
    return [(pid, state(pid)) for pid in children() - before]


def sleep_by_index(i: int) -> None:
    sleep_for_ever()


def interrupted_at_each_line(method: str, nprocs: int, after_torch: bool, first: int) -> None:
    """From line `first` on, each or each third line, to the one that waits for the ranks."""
    warm_up(method)
    waiting = False

    def ring(*_: object) -> None:
        # An exception in a destructor is lost, as it is for any handler: then the wire was first.
        nonlocal waiting
        waiting = waiting or not wire.where
        raise Rang

    signal.signal(signal.SIGALRM, ring)
    for nth in itertools.count(first, cases(3, 1)):
        wire, before = Tripwire(nth), children()
        signal.setitimer(signal.ITIMER_REAL, 2, 2)
        try:
            sys.settrace(wire)
            if after_torch:
                start_processes(sleep_by_index, nprocs=nprocs, start_method=method)
            else:
                spawn(sleep_for_ever, method, nprocs, grace_period=20)
        except Rang:
            pass
        finally:
            sys.settrace(None)
            signal.setitimer(signal.ITIMER_REAL, 0)
        if waiting:
            break
        if left := lasting(before):
            tell([wire.where, left])
        for process in active_children():
            process.kill()
            process.join()
    tell(["lines", nth])
