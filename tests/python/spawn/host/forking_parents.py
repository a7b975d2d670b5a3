"""Parents, in processes of their own, that fork while their ranks run. Imports no pytest."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import rlaunch.torch
from stress import context_of, join, spawn, tell

# The contexts of the ranks, as a program has them in global variables.
CONTEXTS: list[Any] = []


def wait_for(event: Any) -> None:
    event.wait()


def wait_as_torch(_index: int, event: Any) -> None:
    event.wait()


def drop() -> None:
    CONTEXTS.clear()
    gc.collect()


def end_normally() -> None:
    """With all objects alive."""


def use() -> None:
    """Calls what acts on ranks; exits with the number of calls that the fork was not refused."""
    calls: list[Callable[[], object]] = [CONTEXTS[0].stop]
    for ctx in CONTEXTS:
        rank = ctx.processes[0]
        calls += [ctx.join, rank.join, rank.terminate, rank.kill, lambda rank=rank: rank.send_signal(9)]
    for call in calls:
        try:
            call()
        except AssertionError:
            continue
        sys.exit(f"{call} was not refused")
    if any(rank.exitcode is not None for ctx in CONTEXTS for rank in ctx.processes):
        sys.exit("a running rank has an exit code")


def count_living() -> int:
    return sum(rank.is_alive() for ctx in CONTEXTS for rank in ctx.processes)


def parent_that_forks(method: str) -> None:
    events = [context_of(method).Event() for _ in range(2)]
    CONTEXTS.append(spawn(wait_for, method, 2, events[:1], join=False, daemon=True))
    CONTEXTS.append(
        rlaunch.torch.start_processes(
            wait_as_torch, events[1:], 1, join=False, daemon=True, start_method=method
        )
    )
    for body in (drop, end_normally, use):
        child = multiprocessing.get_context("fork").Process(target=body)
        child.start()
        child.join()
        tell([body.__name__, child.exitcode, count_living()])

    unset = list(events)  # Only a copy: an event ends with its last reference.

    def fork(*_: object) -> None:
        pid = os.fork()
        if pid == 0:
            # Through join, and by Python's own way out, which ends daemonic processes and waits for others.
            sys.exit(5)
        tell([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), count_living()])
        unset.pop(0).set()

    signal.signal(signal.SIGALRM, fork)
    for ctx in CONTEXTS:
        join(ctx)
        tell("joined")


def parent_that_counts_threads() -> None:
    """Python 3.12 and later warn of a fork of a process with several threads."""
    threads: list[int] = []
    os.register_at_fork(before=lambda: threads.append(len(os.listdir("/proc/self/task"))))
    spawn(os.getpid, "fork", 3)
    tell(threads)
