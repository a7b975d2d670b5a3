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
from typing import Any

import pytest
from dying_parents import (
    RANKS,
    alarmed,
    busy_with_bystanders,
    from_a_thread,
    joining,
    joining_defenceless,
    joining_loudly,
    joining_twice,
    of_closing_ranks,
    starting,
    without_its_server,
)
from effort import each
from stress import (
    METHODS,
    PATIENCE,
    Parent,
    alive,
    all_gone,
    guardians,
    wait_inside_join,
)

each_method = each("method", METHODS)


# --- Parents ----------------------------------------------------------------------------------------------


def joined_parent(method: str, deaf_ranks: str, grace: float, **options: Any) -> Parent:
    return Parent(joining, method, deaf_ranks, grace, **options)


def codes_of(parent: Parent, raised: str) -> list[int]:
    """The exit codes of the ranks, once the parent has reported how its join ended."""
    message = parent.heard()
    assert (message["raised"], message["active"]) == (raised, 0), message
    assert parent.leaves_no_process()
    assert parent.ends() == 0
    return list(message["codes"])


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
        assert all(map(alive, ranks.values())), "a handler that raises nothing ends no rank"
        os.kill(parent.process.pid, signal.SIGALRM)
        assert codes_of(parent, "Rang") == [-15, -9, -15]


@each_method
def test_an_alarm_in_the_middle_of_join(method: str) -> None:
    with Parent(alarmed, method) as parent:
        assert parent.heard() == [[], [], [-9] * RANKS]
        assert parent.leaves_no_process()
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


@each_method
@pytest.mark.parametrize(("what", "grace"), [("signal", 600), ("broken", 1.5)])
def test_an_interrupt_during_a_message_to_the_user_is_not_lost(method: str, what: str, grace: float) -> None:
    with Parent(joining_loudly, method, what, grace) as parent:
        parent.ranks(RANKS)
        wait_inside_join(parent.process.pid)
        os.kill(parent.process.pid, signal.SIGINT)
        assert codes_of(parent, "KeyboardInterrupt") == [-9] * RANKS


@each_method
def test_sigint_while_two_threads_join(method: str) -> None:
    with Parent(joining_twice, method) as parent:
        parent.ranks(RANKS)
        wait_inside_join(parent.process.pid, threads=2)
        os.kill(parent.process.pid, signal.SIGINT)
        ends, living = parent.heard()
        assert (ends[0], living) == ("KeyboardInterrupt", [])
        assert parent.leaves_no_process()
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
    """The output of the terminal, up to some words."""
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
def test_ctrl_c_with_ranks_that_ignore_signals(method: str, terminal: list[int]) -> None:
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
        assert parent.leaves_no_process()


@each_method
def test_a_terminal_that_is_closed(method: str, terminal: list[int]) -> None:
    with Parent(joining_defenceless, method, terminal=terminal[1]) as parent:
        ranks = parent.ranks(RANKS)
        for fd in terminal:
            os.close(fd)
        assert parent.ends() == -signal.SIGHUP
        assert all_gone(ranks.values(), 5)
        assert parent.leaves_no_process()


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
        assert parent.leaves_no_process()


@each_method
@each_death
def test_ranks_die_though_bystanders_hold_the_parents_descriptors(method: str, death: str) -> None:
    with Parent(busy_with_bystanders, method) as parent:
        messages = [parent.heard() for _ in range(RANKS + 1)]
        (bystanders,) = (item for item in messages if isinstance(item, list))
        ranks = [item["pid"] for item in messages if isinstance(item, dict)]
        die(parent, death)
        assert all_gone(ranks, 5)
        assert all(map(alive, bystanders)), "the bystanders are left alone"
        for pid in bystanders:
            os.kill(pid, signal.SIGKILL)
        assert parent.leaves_no_process()


@each_method
@pytest.mark.parametrize("death", ["SIGTERM", "SIGKILL"])
def test_a_parent_that_dies_while_it_starts_ranks(method: str, death: str) -> None:
    with Parent(starting, method) as parent:
        parent.heard()
        die(parent, death)
        assert parent.leaves_no_process()


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
        assert parent.leaves_no_process()


@each_method
def test_ranks_that_closed_their_lifeline_die_with_a_killed_parent(method: str) -> None:
    with Parent(of_closing_ranks, method) as parent:
        ranks = parent.ranks(2)
        (guardian,) = guardians(parent)
        # A parent that runs would start another one.
        os.kill(parent.process.pid, signal.SIGSTOP)
        os.kill(guardian, signal.SIGKILL)
        assert all_gone([guardian])
        os.kill(parent.process.pid, signal.SIGKILL)
        assert all_gone(ranks.values(), 2)
        assert guardians(parent) == []


@each_method
def test_ranks_outlive_the_thread_that_started_them(method: str) -> None:
    with Parent(from_a_thread, method) as parent:
        assert parent.heard() == [True, True]
        assert parent.heard() == [True, True], parent.complaints()
        assert parent.ends() == 0


NO_LIFELINE = """
import errno, fcntl, os
from rlaunch import _lib
before = fcntl.fcntl(0, fcntl.F_GETFL)
for number in (0, 1, 2, -1, os.sysconf("SC_OPEN_MAX")):
    try:
        _lib.arm_lifeline(number)
    except OSError as error:
        assert error.errno == errno.EBADF, (number, error)
    else:
        raise AssertionError(number)
assert fcntl.fcntl(0, fcntl.F_GETFL) == before
"""


def test_a_standard_or_closed_descriptor_is_no_lifeline() -> None:
    """The kernel would kill the process when something is written to its stdin."""
    read, write = os.pipe()
    with open(read) as stdin, open(write, "w"):
        subprocess.run([sys.executable, "-c", NO_LIFELINE], stdin=stdin, check=True)
