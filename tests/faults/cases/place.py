"""Odd places to run in: as PID 1 of a container, and at a terminal."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from cases.case import PERSON, Group, Observation, case, ended
from job import Job, Late, namespaces, until
from launchers import Launcher
from marked import Member, members, zombies_of
from terminal import Terminal, at_terminal, set_size

PID_NAMESPACE = namespaces("--pid", "--fork", "--mount-proc")
SHELL = [sys.executable, "-S", str(Path(__file__).with_name("shell.py"))]
HOLD = """
if sys.argv[1:] == ["deaf"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
hold()
os._exit(0)
"""


def first_process(job: Job) -> int:
    """The launcher, as we see it: the only child of `unshare`."""
    return next(member.pid for member in members(job.mark) if member.parent == job.process.pid)


def stopped_container(name: str, launcher: Launcher, folder: Path) -> Observation:
    number = signal.Signals[name]
    with Job(launcher, folder, HOLD, wrap=PID_NAMESPACE) as job:
        job.await_files("ready")
        first = time.monotonic()
        os.kill(first_process(job), number)
        job.wait(launcher.grace + 12)
        took = time.monotonic() - first
        return ended(job, 128 + number, 0.1, f"{took:.1f} s", ok=took <= launcher.grace + 2)


for name in ("SIGTERM", "SIGINT"):
    ideal = f"exit {128 + signal.Signals[name]}, 0 survivors, within grace + 2 s"
    case(f"pid1-{name[3:].lower()}", Group.CONTAINER, f"{name[3:]} to it", ideal)(
        functools.partial(stopped_container, name)
    )


@case("pid1-status", Group.CONTAINER, "a rank exits 7", "exit 7, 0 survivors")
def container_status(launcher: Launcher, folder: Path) -> Observation:
    with Job(launcher, folder, "hold() if rank else os._exit(7)\n", wrap=PID_NAMESPACE) as job:
        return ended(job, 7, launcher.grace + 60)


# They end after their parents, so that they are PID 1's.
ORPHANS = """
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        parent = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == parent:
            time.sleep(0.001)
        os._exit(0)
    os.waitpid(pid, 0)
hold()
"""


@case("pid1-zombies", Group.CONTAINER, "40 orphans end while ranks run", "0 zombies")
def container_zombies(launcher: Launcher, folder: Path) -> Observation:
    with Job(launcher, folder, ORPHANS, wrap=PID_NAMESPACE) as job:
        job.await_files("ready")
        pids = {member.pid for member in members(job.mark)}
        with contextlib.suppress(Late):
            until(lambda: not zombies_of(pids), "their end", 2)
        count = zombies_of(pids)
        return Observation(f"{count} zombies", not count)


@contextlib.contextmanager
def in_foreground(launcher: Launcher, folder: Path, body: str, *args: str) -> Iterator[tuple[Job, Terminal]]:
    """A job of which all ranks are there, in the foreground of a terminal with a shell behind it."""
    os.mkfifo(folder / "fg")
    with at_terminal(launcher, folder, body, *args, wrap=SHELL) as (job, terminal):
        job.await_files("ready")
        yield job, terminal


@case("ctrl-c", Group.TERMINAL, "Ctrl-C", "exit 130, 0 survivors, no traceback, within grace + 2 s")
def ctrl_c(launcher: Launcher, folder: Path) -> Observation:
    with in_foreground(launcher, folder, HOLD) as (job, terminal):
        first = time.monotonic()
        terminal.press(b"\x03")
        job.wait(launcher.grace + 12)
        return after_ctrl_c(job, terminal, time.monotonic() - first, launcher.grace + 2)


@case(
    "ctrl-c-twice",
    Group.TERMINAL,
    f"Ctrl-C twice, {PERSON:.0f} s apart, ranks ignore it, grace of 60 s",
    "exit 130, 0 survivors, no traceback, within 10 s of the second",
)
def ctrl_c_twice(launcher: Launcher, folder: Path) -> Observation:
    with in_foreground(launcher.with_grace(60), folder, HOLD, "deaf") as (job, terminal):
        terminal.press(b"\x03")
        job.wait(PERSON)
        second = time.monotonic()
        terminal.press(b"\x03")
        job.wait(72)
        return after_ctrl_c(job, terminal, time.monotonic() - second, 10)


def after_ctrl_c(job: Job, terminal: Terminal, took: float, limit: float) -> Observation:
    traces = terminal.screen.count(b"Traceback (most recent call last)")
    notes = [f"{took:.1f} s", *([f"{traces} traceback{'s' * (traces > 1)}"] if traces else [])]
    return ended(job, 130, 0.1, *notes, ok=took <= limit and not traces)


def of_job(job: Job) -> list[Member]:
    return [member for member in members(job.mark) if member.kind in ("launcher", "rank")]


@case("ctrl-z", Group.TERMINAL, "Ctrl-Z, then `fg`", "launcher and ranks stop, go on, exit 0")
def ctrl_z(launcher: Launcher, folder: Path) -> Observation:
    with in_foreground(launcher, folder, HOLD) as (job, terminal):
        terminal.press(b"\x1a")
        with contextlib.suppress(Late):
            until((folder / "stopped").exists, "the shell's prompt", 5)
            until(lambda: all(m.state == "T" for m in of_job(job) if m.kind == "rank"), "stopped ranks", 2)
        if not (folder / "stopped").exists():
            return Observation("the launcher does not stop", False)
        ranks = [member for member in of_job(job) if member.kind == "rank"]
        stopped = sum(member.state == "T" for member in ranks)
        with open(folder / "fg", "wb"):
            pass  # The shell reads to its end.
        with contextlib.suppress(Late):
            until(lambda: all(m.state != "T" for m in of_job(job)), "running processes", 5)
        still = [member for member in of_job(job) if member.state == "T"]
        job.close_gate()
        notes = [f"{stopped} of {len(ranks)} ranks stopped", *(["not all went on"] if still else [])]
        return ended(job, 0, 30, *notes, ok=stopped == len(ranks) and not still)


@case("resize", Group.TERMINAL, "the window is resized", "the job goes on, exit 0")
def resize(launcher: Launcher, folder: Path) -> Observation:
    with in_foreground(launcher, folder, HOLD) as (job, terminal):
        for rows in (50, 24, 50):
            set_size(terminal.ours, rows, 100)
            time.sleep(0.02)  # So that they are three signals and not one.
        job.close_gate()
        return ended(job, 0, 30)


CHATTY = """
hold()
for _ in range(16):
    data = b"x" * 1023 + b"\\n"
    data *= 64
    while data:
        data = data[os.write(1, data):]
tell("done")
os._exit(0)
"""


@case(
    "ctrl-s",
    Group.TERMINAL,
    "Ctrl-S while ranks write 1 MiB each, then Ctrl-Q",
    "no rank waits for it, exit 0",
)
def ctrl_s(launcher: Launcher, folder: Path) -> Observation:
    with in_foreground(launcher, folder, CHATTY) as (job, terminal):
        terminal.press(b"\x13")
        time.sleep(0.1)  # The terminal says nothing about having stopped.
        job.close_gate()
        paths = [folder / f"done.{rank}" for rank in range(job.ranks)]
        with contextlib.suppress(Late):
            until(lambda: all(path.exists() for path in paths), "the end of the ranks", 10)
        done = sum(path.exists() for path in paths)
        terminal.press(b"\x11")
        return ended(job, 0, 30, f"{done} of {job.ranks} ranks ended meanwhile", ok=done == job.ranks)
