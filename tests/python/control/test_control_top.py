"""``rlaunch top`` at a terminal: what it shows, its keys, and the terminal afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jobs import WAITING, Jobs, await_stacks
from launching import LIMIT, Place
from screen import Window, at_terminal

SIZE = (80, 24)
TIOCGPTPEER = 0x5441  # ioctl_tty(2)
TOP = [sys.executable, "-m", "rlaunch.control", "top"]
# What a log may not do to the screen: title, clear, colors, the other direction of text.
HOSTILE = r"""
if rank == 0:
    print("\x1b]0;gotcha\x07\x1b[2Jcleared\x1b[31mred \u202etxet", flush=True)
"""


class AtTerminal(Place):
    """A program at a terminal beside the jobs of a folder."""

    def __init__(self, jobs: Jobs, program: list[str]) -> None:
        super().__init__(jobs.folder)
        self.program = program

    def popen(
        self, *args: str | bytes, env: Mapping[Any, Any] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        options.setdefault("cwd", self.folder)
        return subprocess.Popen([*self.program, *args], env=env, **options)


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


@contextlib.contextmanager
def at_top(jobs: Jobs, program: list[str] = TOP, **changes: str) -> Iterator[Window]:
    variables = {"RLAUNCH_RUNTIME_DIR": str(jobs.runtime), **changes}
    with at_terminal(AtTerminal(jobs, program), size=SIZE, **variables) as top:
        # The kernel forgets the mode when no process has the terminal open.
        kept = fcntl.ioctl(top.ours, TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY)
        try:
            yield top
        finally:
            os.close(kept)


def await_line(top: Window, pattern: str) -> None:
    top.show_until(lambda: any(re.search(pattern, line) for line in top.lines()))


def await_stacks_on_screen(top: Window, pattern: str) -> None:
    """Shows the stacks anew until they match: a rank may be in another line for a moment."""
    for _ in range(20):
        top.press(b"s")
        await_line(top, "^stacks of all ranks$")
        await_line(top, r"^ranks? \d.* of 3\)")
        if any(re.search(pattern, line) for line in top.lines()):
            return
        top.press(b"\x1b")
        await_line(top, "^rank 0 ")
    raise AssertionError(top.lines())


def mode(top: Window) -> list[Any]:
    return termios.tcgetattr(top.ours)


def fresh_mode() -> list[Any]:
    """The mode of a terminal that no program has changed."""
    ours, theirs = pty.openpty()
    mode: list[Any] = termios.tcgetattr(theirs)
    os.close(ours)
    os.close(theirs)
    return mode


def await_end(top: Window) -> int:
    """The exit status, once the other screen is left."""
    top.show_until(lambda: b"\x1b[?1049l" in top.received)
    return top.launcher.wait(LIMIT)


def test_ranks_stacks_logs_and_the_stop_of_a_job(jobs: Jobs) -> None:
    with jobs.job("--job_id=night", script=HOSTILE + WAITING) as launcher, at_top(jobs) as top:
        await_stacks(jobs, "ranks 0, 2 (2 of 3): in until ")
        before = fresh_mode()
        for rank in range(3):
            await_line(top, rf"^rank {rank}  running +\S.* [\d.]+ [MG]B .* ago$")
        assert re.match(rf"job night \(pid {launcher.pid}\): running for ", top.lines()[0]), top.lines()
        assert mode(top) != before
        top.press(b"?")
        await_line(top, "^logs: .*log$")
        await_stacks_on_screen(top, r"^ranks 0, 2 \(2 of 3\): in until ")
        top.press(b"\x1b")  # A key of its own: no more bytes follow.
        await_line(top, "^rank 0 ")
        top.press(b"l")
        await_line(top, "^log of rank 0$")
        await_line(top, "^clearedred .*txet$")
        assert "rank 0 waits" in top.lines()
        for sequence in (b"gotcha", b"\x1b[31m", "\u202e".encode()):
            assert sequence not in top.received
        with (jobs.folder / "log/workerlog.0").open("a") as log:
            log.write("a new line\n")
        await_line(top, "^a new line$")
        top.press(b"\x1b")
        await_line(top, "^rank 0 ")
        top.press(b"\x1b[Bjl")
        await_line(top, "^log of rank 2$")
        top.press(b"xn")
        await_line(top, "^q quit")
        top.press(b"x")
        await_line(top, "^Stop job night[?] y: yes")
        assert launcher.poll() is None
        top.press(b"y")
        top.show_until(lambda: b"has ended" in top.received)
        assert top.launcher.wait(LIMIT) == 0
        assert mode(top) == before
        end = f"job night (pid {launcher.pid}) has ended; its logs are in {jobs.folder}/log".encode()
        assert end in top.received.rpartition(b"\x1b[?1049l")[2]
        assert launcher.wait(LIMIT) == 128 + signal.SIGTERM


def test_it_quits_resizes_and_writes_little(jobs: Jobs) -> None:
    with jobs.job() as launcher, at_top(jobs) as top:
        before = fresh_mode()
        await_line(top, "^rank 2 ")
        start, seen = len(top.received), set()
        refreshes = 4

        def refreshed() -> bool:
            seen.add(top.lines()[0])
            return len(seen) > refreshes

        top.show_until(refreshed)
        written = (len(top.received) - start) / refreshes
        # 161 for three ranks that do nothing: the times since their starts and their last output.
        assert written < 1000
        top.resize(40, 12)
        await_line(top, r"^RANK    STATE    CPU ")
        assert len(top.lines()) == 12
        top.press(b"q")
        assert await_end(top) == 0
        assert mode(top) == before
        assert launcher.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_restores_the_terminal(jobs: Jobs, number: signal.Signals) -> None:
    with jobs.job() as launcher, at_top(jobs) as top:
        before = fresh_mode()
        await_line(top, "^rank 2 ")
        if number == signal.SIGINT:
            top.press(b"\x03")
        else:
            top.launcher.send_signal(number)
        assert await_end(top) == -number
        assert mode(top) == before
        assert launcher.poll() is None


def test_it_is_suspended_and_continued(jobs: Jobs) -> None:
    bash = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
    with jobs.job(), at_top(jobs, program=bash, PS1="$ ") as top:
        await_line(top, r"^\$")
        before = mode(top)
        top.press(shlex.join(TOP).encode() + b"\n")
        await_line(top, "^rank 2 ")
        for suspend in (b"\x1a", b"\x1a"):
            top.press(suspend)
            await_line(top, "Stopped  ")
            top.press(b"stty -a | grep -o '[-]*icanon'\n")
            await_line(top, "^icanon")
            assert mode(top) == before
            top.press(b"fg\n")
            top.show_until(lambda: not any("Stopped" in line for line in top.lines()))
            await_line(top, "^rank 2 ")
            assert mode(top) != before
        top.press(b"q")
        top.show_until(lambda: top.received.endswith(b"$ "))
        top.press(b"echo status=$?.\n")
        await_line(top, r"status=0\.$")
        assert mode(top) == before
        top.press(b"exit\n")
        assert top.launcher.wait(LIMIT) == 0


def test_without_a_terminal_it_names_another_command(jobs: Jobs) -> None:
    with jobs.job():
        ended = jobs.ask("top")
        assert ended.status == 1
        assert "needs a terminal as stdin and stdout; use `rlaunch status`" in ended.stderr
        with at_top(jobs, TERM="dumb") as top:
            top.show_until(lambda: b"use `rlaunch status`" in top.received)
            assert top.launcher.wait(LIMIT) == 1
