"""When the parent is interrupted, asked to stop, hung up on or killed, no rank is left: neither those that
ignore every signal, nor those whose parent has forked something that still holds its descriptors."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import active_children, forkserver
from typing import Any

import pytest
from hardship import (
    METHODS,
    PATIENCE,
    Parent,
    alive,
    all_gone,
    context_of,
    deaf,
    in_thread,
    join,
    results,
    sleep_for_ever,
    sleeper,
    spawn,
    tell,
    wait_inside_join,
    warm_up,
)

each_method = pytest.mark.parametrize("method", METHODS)
RANKS = 3


# --- Parents ----------------------------------------------------------------------------------------------


class Rang(Exception):
    """What a signal handler raises."""


def ring(*_: object) -> None:
    raise Rang


def joining(method: str, deaf_ranks: str, grace: float) -> None:
    """Joins, and tells what came of it."""
    signal.signal(signal.SIGALRM, ring)
    signal.signal(signal.SIGUSR1, lambda *_: tell("handled"))
    ctx = spawn(sleeper, method, RANKS, (deaf_ranks,), join=False, grace=grace)
    raised = None
    try:
        join(ctx)
    except BaseException as error:
        raised = type(error).__name__
    codes = [p.exitcode for p in ctx.processes]
    tell({"raised": raised, "codes": codes, "active": len(active_children())})


def joining_defenceless(method: str) -> None:
    spawn(sleeper, method, RANKS, ("odd",), grace=0.3)


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


def joined_parent(method: str, deaf_ranks: str, grace: float, **options: Any) -> Parent:
    return Parent(joining, method, deaf_ranks, grace, **options)


def codes_of(parent: Parent, raised: str) -> list[int]:
    """The exit codes of the ranks, once the parent has told how its join ended."""
    told = parent.heard()
    assert (told["raised"], told["active"]) == (raised, 0), told
    assert parent.leaves_nobody()
    assert parent.ends() == 0
    return list(told["codes"])


# --- Interruptions ----------------------------------------------------------------------------------------


@each_method
def test_sigint_to_the_parent_alone(method: str) -> None:
    with joined_parent(method, "odd", 0.3) as parent:
        parent.ranks(RANKS)
        wait_inside_join(parent.process.pid)
        os.kill(parent.process.pid, signal.SIGINT)
        assert codes_of(parent, "KeyboardInterrupt") == [-15, -9, -15]


@each_method
def test_a_signal_handler_that_raises_in_join(method: str) -> None:
    with joined_parent(method, "odd", 0.3) as parent:
        ranks = parent.ranks(RANKS)
        wait_inside_join(parent.process.pid)
        os.kill(parent.process.pid, signal.SIGUSR1)
        assert parent.heard() == "handled"
        assert all(map(alive, ranks.values())), "a handler that raises nothing ends nobody"
        os.kill(parent.process.pid, signal.SIGALRM)
        assert codes_of(parent, "Rang") == [-15, -9, -15]


def alarmed(method: str) -> None:
    signal.signal(signal.SIGALRM, ring)
    ready = context_of(method).SimpleQueue()
    ctx = spawn(sleep_when_ready, method, RANKS, (ready,), join=False, grace=0.3)
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


@each_method
def test_an_alarm_in_the_middle_of_join(method: str) -> None:
    with Parent(alarmed, method) as parent:
        assert parent.heard() == [[], [], [-9] * RANKS]
        assert parent.leaves_nobody()
        assert parent.ends() == 0


@each_method
def test_a_second_signal_kills_at_once(method: str) -> None:
    with joined_parent(method, "all", 600) as parent:
        parent.ranks(RANKS)
        wait_inside_join(parent.process.pid)
        os.kill(parent.process.pid, signal.SIGINT)
        assert parent.process.stderr is not None
        assert b"Ctrl-C kills them at once" in parent.process.stderr.readline()
        os.kill(parent.process.pid, signal.SIGINT)
        assert codes_of(parent, "KeyboardInterrupt") == [-9, -9, -9]


class Stderr:
    """Something comes between while people are told."""

    def __init__(self, what: str) -> None:
        self._what = what

    def write(self, text: str) -> int:
        if "waiting" in text:
            if self._what == "signal":
                os.kill(os.getpid(), signal.SIGINT)
            else:
                raise BrokenPipeError("nobody reads this")
        return len(text)

    def flush(self) -> None:
        pass


def joining_loudly(method: str, what: str, grace: float) -> None:
    sys.stderr = Stderr(what)  # type: ignore[assignment]
    joining(method, "all", grace)


@each_method
@pytest.mark.parametrize(("what", "grace"), [("signal", 600), ("broken", 1.5)])
def test_what_happens_while_people_are_told_is_not_lost(method: str, what: str, grace: float) -> None:
    with Parent(joining_loudly, method, what, grace) as parent:
        parent.ranks(RANKS)
        wait_inside_join(parent.process.pid)
        os.kill(parent.process.pid, signal.SIGINT)
        assert codes_of(parent, "KeyboardInterrupt") == [-9] * RANKS


def joining_twice(method: str) -> None:
    ctx = spawn(sleeper, method, RANKS, ("odd",), join=False, grace=0.3)
    ends: list[Any] = [None, None]

    def one(index: int) -> None:
        try:
            join(ctx)
        except BaseException as error:
            ends[index] = type(error).__name__

    with in_thread(lambda: one(1)):
        one(0)
    tell([ends, [p.pid for p in ctx.processes if alive(p.pid)]])


@each_method
def test_sigint_while_two_threads_join(method: str) -> None:
    with Parent(joining_twice, method) as parent:
        parent.ranks(RANKS)
        wait_inside_join(parent.process.pid, threads=2)
        os.kill(parent.process.pid, signal.SIGINT)
        ends, living = parent.heard()
        assert (ends[0], living) == ("KeyboardInterrupt", [])
        assert parent.leaves_nobody()
        assert parent.ends() == 0


# --- A terminal -------------------------------------------------------------------------------------------


@pytest.fixture(name="terminal")
def terminal_fixture() -> Iterator[list[int]]:
    """Both ends of a terminal: the people's, the program's."""
    ends = list(pty.openpty())
    yield ends
    for fd in ends:
        with contextlib.suppress(OSError):
            os.close(fd)


def shown(master: int, words: bytes) -> bytes:
    """What the terminal shows, up to some words."""
    text, deadline = b"", time.monotonic() + PATIENCE
    while words not in text:
        assert select.select([master], [], [], deadline - time.monotonic())[0], text
        text += os.read(master, 4096)
    return text


@each_method
def test_ctrl_c(method: str, terminal: list[int]) -> None:
    master, slave = terminal
    with joined_parent(method, "none", 20, terminal=slave) as parent:
        parent.ranks(RANKS)
        wait_inside_join(parent.process.pid)
        os.write(master, b"\x03")
        assert set(codes_of(parent, "KeyboardInterrupt")) <= {-2, -15}


@each_method
def test_ctrl_c_with_deaf_ranks(method: str, terminal: list[int]) -> None:
    master, slave = terminal
    with joined_parent(method, "all", 0.5, terminal=slave) as parent:
        parent.ranks(RANKS)
        wait_inside_join(parent.process.pid)
        os.write(master, b"\x03")
        assert codes_of(parent, "KeyboardInterrupt") == [-9] * RANKS


@each_method
def test_a_second_ctrl_c_kills_at_once(method: str, terminal: list[int]) -> None:
    master, slave = terminal
    with joined_parent(method, "all", 600, terminal=slave) as parent:
        parent.ranks(RANKS)
        wait_inside_join(parent.process.pid)
        os.write(master, b"\x03")
        assert b"waiting up to 600 s for rank(s) 0, 1, 2 to stop" in shown(master, b"kills them at once")
        os.write(master, b"\x03")
        assert codes_of(parent, "KeyboardInterrupt") == [-9] * RANKS


@each_method
def test_ctrl_c_in_a_program_without_defence(method: str, terminal: list[int]) -> None:
    master, slave = terminal
    with Parent(joining_defenceless, method, terminal=slave) as parent:
        parent.ranks(RANKS)
        wait_inside_join(parent.process.pid)
        os.write(master, b"\x03")
        assert parent.ends() == -signal.SIGINT
        assert parent.leaves_nobody()


@each_method
def test_a_terminal_that_is_closed(method: str, terminal: list[int]) -> None:
    with Parent(joining_defenceless, method, terminal=terminal[1]) as parent:
        ranks = parent.ranks(RANKS)
        for fd in terminal:
            os.close(fd)
        assert parent.ends() == -signal.SIGHUP
        assert all_gone(ranks.values(), 5)
        assert parent.leaves_nobody()


# --- Death ------------------------------------------------------------------------------------------------

each_death = pytest.mark.parametrize("death", ["SIGTERM", "SIGHUP", "SIGKILL"])


def die(parent: Parent, death: str) -> None:
    number = getattr(signal, death)
    os.kill(parent.process.pid, number)
    assert parent.ends() == -number


@each_method
@each_death
def test_a_parent_that_dies_takes_its_ranks_along(method: str, death: str) -> None:
    with Parent(joining_defenceless, method) as parent:
        ranks = parent.ranks(RANKS)
        assert set(ranks.values()) < set(parent.marked())
        die(parent, death)
        assert all_gone(ranks.values(), 5)
        assert parent.leaves_nobody()


@each_method
@each_death
def test_ranks_die_though_bystanders_hold_the_parents_descriptors(method: str, death: str) -> None:
    with Parent(busy_with_bystanders, method) as parent:
        told = [parent.heard() for _ in range(RANKS + 1)]
        (bystanders,) = (item for item in told if isinstance(item, list))
        ranks = [item["pid"] for item in told if isinstance(item, dict)]
        die(parent, death)
        assert all_gone(ranks, 5)
        assert all(map(alive, bystanders)), "the bystanders are nobody's business"
        for pid in bystanders:
            os.kill(pid, signal.SIGKILL)
        assert parent.leaves_nobody()


@each_method
@pytest.mark.parametrize("death", ["SIGTERM", "SIGKILL"])
def test_a_parent_that_dies_while_it_starts_ranks(method: str, death: str) -> None:
    with Parent(starting, method) as parent:
        parent.heard()
        die(parent, death)
        assert parent.leaves_nobody()


def without_its_server(moment: str) -> None:
    """Loses multiprocessing's fork server, which is the parent of its ranks."""
    warm_up("forkserver")
    ctx = spawn(sleeper, "forkserver", RANKS, ("odd",), join=False, grace=0.3)
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


@pytest.mark.parametrize("moment", ["last", "next"])
def test_the_death_of_the_fork_server_leaves_no_rank(moment: str, terminal: list[int]) -> None:
    master, slave = terminal
    with Parent(without_its_server, moment, terminal=slave) as parent:
        parent.ranks(RANKS)
        os.write(master, b"\n")
        assert parent.heard() == ["RankError", []]
        if moment == "next":
            assert parent.heard() == 2
        assert parent.ends() == 0
        assert parent.leaves_nobody()
