"""Ranks and parents of the stress tests. Imports no pytest, which would cost each rank 0.2 s."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import Any

from effort import cases
from rlaunch import RankError
from stress import (
    BIG,
    METHODS,
    PATIENCE,
    MiB,
    exit_by_rank,
    in_thread,
    join,
    me,
    results,
    sleep_for_ever,
    spawn,
    tell,
)


def big() -> bytes:
    return bytes([me()]) * BIG


def scream() -> None:
    raise ValueError(f"<{me()}" + "x" * BIG + f"{me()}>")


class Unreducible:
    def __reduce__(self) -> Any:
        raise ArithmeticError("cannot be reduced")


class Landmine:
    """Pickled without trouble; goes off where it is unpickled."""

    def __reduce__(self) -> Any:
        return explode, ("bang",)


def explode(text: str) -> None:
    raise LookupError(text)


def give(kind: str) -> Any:
    if me() == 0:
        return "rank 0 is well"
    return {
        "lock": threading.Lock(),
        "unreducible": Unreducible(),
        # Most of it is written by the time it turns out to be unpicklable.
        "late": [b"x" * BIG, Unreducible()],
        "landmine": [b"x" * MiB, Landmine()],
    }[kind]


def memory() -> dict[str, int]:
    with open("/proc/self/status") as file:
        lines = [line.split() for line in file]
    return {words[0]: int(words[1]) * 1024 for words in lines if words[0] in ("VmPeak:", "VmHWM:", "VmRSS:")}


LARGE = cases(1, 4) << 30


def giant() -> None:
    ballast = bytearray(b"x") * LARGE
    for method in METHODS:
        tell([memory()["VmRSS:"] > len(ballast), results(spawn(memory, method, 4))])


def have_a_grandchild(kind: str, say: Any = None) -> int:
    """Leaves a process that holds every descriptor of this rank. Ends, by SIGKILL if it is to `say`."""
    if kind == "popen":
        for fd in map(int, os.listdir("/proc/self/fd")):
            if os.path.exists(f"/proc/self/fd/{fd}"):
                os.set_inheritable(fd, True)
        # Without what it is swept by.
        env = {name: value for name, value in os.environ.items() if name != "RLAUNCH_RANK_KEY"}
        pid = subprocess.Popen(["sleep", "600"], close_fds=False, env=env).pid
    elif (pid := os.fork()) == 0:
        sleep_for_ever()
    if say is not None:
        say.put(pid)
        os.kill(os.getpid(), signal.SIGKILL)
    return pid


def until(go: Any, started: Any) -> int:
    started.put(os.getpid())
    assert go.wait(PATIENCE)
    return os.getpid()


def fail_beside_the_stopped(ready: Any) -> None:
    if me() == 1:
        ready.put(os.getpid())
        sleep_for_ever()
    os.kill(ready.get(), signal.SIGSTOP)
    raise RuntimeError("rank 0 has had enough")


ROBBED = {
    (0, 0, 0): None,
    (0, 7, 0): "Process 1 terminated with exit code 7.",
    (0, 0, -9): "Process 2 terminated with signal SIGKILL.",
    (-11, 0, 0): "Process 0 terminated with signal SIGSEGV.",
}


def robbed(method: str, how: str) -> None:
    """A parent in which another thread collects every child."""
    stop = threading.Event()

    def reap_all() -> None:
        while not stop.is_set():
            try:
                os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                stop.wait(0.0005)

    if how == "ignored":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with in_thread(reap_all if how == "thief" else bool):
        try:
            # A forked rank may end before its parent has a name for it: all the more rounds.
            for codes in [*ROBBED] * (5 if method == "fork" else 1):
                tell(ends_of(spawn(exit_by_rank, method, 3, codes, join=False)))
        finally:
            stop.set()


def ends_of(ctx: Any) -> list[Any]:
    for process in ctx.processes:
        process.join()
    error = None
    try:
        join(ctx)
    except RankError as failure:
        error = str(failure)
    return [[p.exitcode for p in ctx.processes], error]
