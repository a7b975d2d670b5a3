"""Ranks of rlaunch.torch, and parents in processes of their own. Imports no pytest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from multiprocessing import active_children
from typing import Any

from rlaunch.torch import (
    start_processes,
)
from stress import (
    deaf,
    sleep_for_ever,
    tell,
)


def sleeper(i: int, deaf_ranks: bool = False) -> None:
    if deaf_ranks:
        deaf()
    tell({"rank": i, "pid": os.getpid()})
    sleep_for_ever()


def environment(i: int, queue: Any) -> None:
    queue.put({name: value for name, value in os.environ.items() if name != "RLAUNCH_RANK_KEY"})


def leaves_a_process(i: int, queue: Any) -> None:
    left = subprocess.Popen(["sleep", "600"], start_new_session=True)
    queue.put(left.pid)


def fails_beside_sleepers(i: int) -> None:
    if i == 1:
        os._exit(3)
    sleep_for_ever()


def waits(i: int, read: int) -> None:
    os.read(read, 1)


def imported(i: int, queue: Any) -> None:
    queue.put([name for name in ("torch", "paddle", "numpy") if name in sys.modules])


class Rang(Exception):
    """Raised by a signal handler."""


def parent_in_join(method: str) -> None:
    start_processes(sleeper, (True,), 2, start_method=method)


def interrupted_parent(method: str) -> None:
    def ring(*_: object) -> None:
        raise Rang

    signal.signal(signal.SIGALRM, ring)
    context = start_processes(sleeper, (), 2, join=False, start_method=method)
    assert context is not None
    tell("started")
    raised = []
    for _ in range(2):
        try:
            while not context.join():
                pass
        except Exception as error:
            raised.append(type(error).__name__)
    tell([raised, [process.exitcode for process in context.processes], len(active_children())])


def interrupted(i: int) -> None:
    raise KeyboardInterrupt
