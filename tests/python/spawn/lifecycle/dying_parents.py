"""Parents, in processes of their own, that are interrupted or killed. Imports no pytest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from multiprocessing import active_children, forkserver
from typing import Any

from stress import (
    alive,
    context_of,
    deaf,
    in_thread,
    join,
    results,
    sleep_for_ever,
    sleeper,
    spawn,
    tell,
    warm_up,
)

RANKS = 3


class Rang(Exception):
    """Raised by a signal handler."""


def ring(*_: object) -> None:
    raise Rang


def joining(method: str, deaf_ranks: str, grace: float) -> None:
    """Joins, and tells what came of it."""
    signal.signal(signal.SIGALRM, ring)
    signal.signal(signal.SIGUSR1, lambda *_: tell("handled"))
    ctx = spawn(sleeper, method, RANKS, (deaf_ranks,), join=False, grace_period=grace)
    raised = None
    try:
        join(ctx)
    except BaseException as error:
        raised = type(error).__name__
    codes = [p.exitcode for p in ctx.processes]
    tell({"raised": raised, "codes": codes, "active": len(active_children())})


def joining_defenceless(method: str) -> None:
    spawn(sleeper, method, RANKS, ("odd",), grace_period=0.3)


def busy_with_bystanders(method: str) -> None:
    """Has children of its own, which hold every descriptor they can; never comes to joining, and holds
    the interpreter."""
    spawn(sleeper, method, RANKS, ("odd",), join=False)
    popen = subprocess.Popen(["sleep", "600"], close_fds=False, stdout=subprocess.DEVNULL)
    if (forked := os.fork()) == 0:
        sleep_for_ever()
    tell([forked, popen.pid])
    while True:
        sum(range(1000))


def starting(method: str) -> None:
    """Is still starting ranks when the first speak up."""
    spawn(sleeper, method, 40, ("odd",))


def alarmed(method: str) -> None:
    signal.signal(signal.SIGALRM, ring)
    ready = context_of(method).SimpleQueue()
    ctx = spawn(sleep_when_ready, method, RANKS, (ready,), join=False, grace_period=0.3)
    pids = [ready.get() for _ in ctx.processes]
    signal.alarm(1)
    try:
        join(ctx)
    except Rang:
        tell([active_children(), [pid for pid in pids if alive(pid)], [p.exitcode for p in ctx.processes]])


def sleep_when_ready(ready: Any) -> None:
    deaf()
    ready.put(os.getpid())
    sleep_for_ever()


class Stderr:
    """Something interrupts a message to the user."""

    def __init__(self, what: str) -> None:
        self._what = what

    def write(self, text: str) -> int:
        if "waiting" in text:
            if self._what == "signal":
                os.kill(os.getpid(), signal.SIGINT)
            else:
                raise BrokenPipeError("no process reads this")
        return len(text)

    def flush(self) -> None:
        pass


def joining_loudly(method: str, what: str, grace: float) -> None:
    sys.stderr = Stderr(what)  # type: ignore[assignment]
    joining(method, "all", grace)


def joining_twice(method: str) -> None:
    ctx = spawn(sleeper, method, RANKS, ("odd",), join=False, grace_period=0.3)
    ends: list[Any] = [None, None]

    def one(index: int) -> None:
        try:
            join(ctx)
        except BaseException as error:
            ends[index] = type(error).__name__

    with in_thread(lambda: one(1)):
        one(0)
    tell([ends, [p.pid for p in ctx.processes if alive(p.pid)]])


def close_all_and_sleep() -> None:
    """As a program does that becomes a daemon: the lifeline is gone."""
    os.closerange(3, 4096)
    sleeper()


def of_closing_ranks(method: str) -> None:
    join(spawn(close_all_and_sleep, method, 2, join=False))


def from_a_thread(method: str) -> None:
    """The thread that starts the ranks ends before they do."""
    event = context_of(method).Event()
    started: list[Any] = []
    with in_thread(lambda: started.append(spawn(event.wait, method, 2, join=False))):
        pass
    tell([rank.is_alive() for rank in started[0].processes])
    event.set()
    tell(results(started[0]))


def without_its_server(moment: str) -> None:
    """Loses multiprocessing's fork server, which is the parent of its ranks."""
    warm_up("forkserver")
    ctx = spawn(sleeper, "forkserver", RANKS, ("odd",), join=False, grace_period=0.3)
    os.read(sys.stdin.fileno(), 1)
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    raised = None
    try:
        join(ctx)
    except Exception as error:
        raised = type(error).__name__
    tell([raised, [p.pid for p in ctx.processes if alive(p.pid)]])
    if moment == "next":
        tell(len(results(spawn(os.getpid, "forkserver", 2))))
