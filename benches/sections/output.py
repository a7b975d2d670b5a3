"""The cost of ranks' output: the launcher's CPU, ranks that wait for a console, lines on a console."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pty
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from bench_launchers import TORCHRUN, Launcher, environment
from figures import Cell, Promise
from running import HEAD, Late, Run, scheduled, ticks
from session import Session, each, present

MIB = 1 << 20

# Rank argv[1] writes argv[2] MB a second for argv[3] s, in lines of 100 bytes, a megabyte at a time.
PACED = """
if rank == int(sys.argv[1]):
    block = (b"x" * 99 + b"\\n") * 10_000
    rate, seconds = int(sys.argv[2]), int(sys.argv[3])
    wait_for("gate")
    start = time.monotonic()
    for number in range(rate * seconds):
        write(block)
        time.sleep(max(0, start + (number + 1) / rate - time.monotonic()))
    tell("rate", rate * seconds / (time.monotonic() - start))
time.sleep(600)
"""


# Of what the rank has written, when it has written all: an idle launcher may just be late.
SHOWN = "shown by then"


@contextlib.contextmanager
def drained() -> Iterator[int]:
    """The write end of a pipe that is read as fast as it fills."""
    reader, writer = os.pipe()
    cat = subprocess.Popen(["cat"], stdin=reader, stdout=subprocess.DEVNULL)
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)
        cat.wait()


@contextlib.contextmanager
def console_file(folder: Path) -> Iterator[int]:
    path = folder / "console"
    with open(path, "wb") as file:
        yield file.fileno()
    path.unlink()


@contextlib.contextmanager
def nothing() -> Iterator[int]:
    yield subprocess.DEVNULL


def measure_output(session: Session) -> None:
    """CPU of all processes of the launcher while a rank writes 100 MB/s to its log, in lines of 100 bytes."""
    megabytes, seconds = 100, session.amount(10, 3)
    quantities = {"CPU": "%", "CPU in clock ticks": "%", "what the rank wrote": "MB/s"}

    def once(launcher: Launcher, rank: int, console: AbstractContextManager[int]) -> dict[str, float]:
        arguments = (str(rank), str(megabytes), str(seconds))
        with console as stdout, Run(launcher, session.folder, PACED, *arguments, stdout=stdout) as run:
            pids = run.launcher_processes()
            time.sleep(1)  # Whatever the start has left to do.
            start, before = time.monotonic(), (scheduled(pids), ticks(pids))
            run.open_gate("gate")
            (rate,) = run.await_values("rate", [rank], limit=6 * seconds)
            shown = os.fstat(stdout).st_size if stdout >= 0 else 0
            used = scheduled(pids) - before[0], ticks(pids) - before[1]
            took = time.monotonic() - start
        figures = [used[0] / took * 100, used[1] / took * 100, rate]
        return dict(zip(quantities, figures, strict=True)) | {SHOWN: shown / (megabytes * seconds * 1e4)}

    def measured(what: str, rank: int, console: Callable[[], AbstractContextManager[int]]) -> None:
        seen = {it.name: once(it, rank, console()) for it in present()}
        # The rank keeps its pace everywhere; the launcher's CPU is promised where it has nothing to show.
        pace, cpu = Promise("V6", least=megabytes * 0.95), Promise("V6", most=1) if rank != 0 else None
        for quantity, unit in quantities.items():
            cells = {name: figures[quantity] for name, figures in seen.items()}
            session.row(f"{what}: {quantity}", cells, unit, pace if unit == "MB/s" else cpu)
        if any(figures[SHOWN] for figures in seen.values()):
            session.row(f"{what}: {SHOWN}", {name: figures[SHOWN] for name, figures in seen.items()}, "%")

    measured("file only", 1, nothing)
    measured("console is /dev/null", 0, nothing)
    measured("console is a pipe", 0, drained)
    measured("console is a file", 0, lambda: console_file(session.folder))


FLOOD = """
if rank == 0:
    block = (b"x" * 99 + b"\\n") * 655
    wait_for("gate")
    start = time.monotonic()
    for _ in range(int(sys.argv[1]) * 16):
        write(block)
    tell("took", time.monotonic() - start)
time.sleep(600)
"""


class Console:
    """A pipe or a terminal, which is read or not. `copy`: a file for what is read."""

    def __init__(self, kind: str, read: bool, copy: BinaryIO | None = None) -> None:
        self.copy = copy
        if kind == "pipe":
            self.reader, self.writer = os.pipe()
        else:
            self.reader, self.writer = pty.openpty()
            tty.setraw(self.writer)
            if not read:
                termios.tcflow(self.writer, termios.TCOOFF)  # As Ctrl-S does.
        self.thread = threading.Thread(target=self.drain) if read else None
        if self.thread:
            self.thread.start()

    def drain(self) -> None:
        with contextlib.suppress(OSError):  # A terminal whose other side is closed.
            while data := os.read(self.reader, MIB):
                if self.copy:
                    self.copy.write(data)

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.writer)
        if self.thread:
            self.thread.join()
        os.close(self.reader)


def recorded(folder: Path, mebibytes: int) -> float:
    """How long a rank takes to write to a terminal without a launcher; a thread copies it to a file."""
    script = folder / "recorded.py"
    script.write_text(HEAD + FLOOD)
    (folder / "gate").touch()
    took = folder / "took.0"
    took.unlink(missing_ok=True)
    command = [sys.executable, str(script), str(mebibytes)]
    env = environment() | {"RANK": "0", "WORLD_SIZE": "1"}
    with (
        open(folder / "record", "wb", buffering=0) as copy,
        Console("pty", read=True, copy=copy) as console,
        subprocess.Popen(command, stdout=console.writer, env=env) as rank,
    ):
        try:
            deadline = time.monotonic() + 90
            while not took.exists():
                if rank.poll() is not None or time.monotonic() > deadline:
                    raise Late("a rank without a launcher has not written all")
                time.sleep(0.01)
        finally:
            rank.kill()
    return float(took.read_text())


def measure_stall(session: Session) -> None:
    """How long a rank takes to write 64 MiB while no process reads the console that its output goes to.

    At a terminal, rank 0 of rlaunch has a terminal of its own, which is recorded in its log. Bare is to write
    to a terminal that a program records without a launcher, as script(1) does. Ranks of the others write to
    files.
    """
    mebibytes, patience, turns = 64, 10, session.amount(15, 2)

    def once(launcher: Launcher, kind: str, read: bool) -> float | None:
        with (
            Console(kind, read) as console,
            Run(launcher, session.folder, FLOOD, str(mebibytes), stdout=console.writer) as run,
        ):
            run.await_values("pid")
            run.open_gate("gate")
            try:
                return run.await_values("took", [0], limit=patience)[0]
            except Late:
                return None
            finally:
                run.process.kill()  # Asked to end, it would wait for the console.

    def best(launcher: Launcher, kind: str) -> dict[bool, float] | str:
        """The best times, with a console that is read and one that is not: other programs add to them."""
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(turns):
            for read in times:
                took = once(launcher, kind, read)
                if took is None:
                    return f"stalls ({patience} s and more)"
                times[read].append(took)
        return {read: min(of) for read, of in times.items()}

    plain = dataclasses.replace(TORCHRUN, options=lambda ranks, logs: TORCHRUN.options(ranks, logs)[:4])

    def stalled(launcher: Launcher, kind: str) -> Cell:
        found = best(launcher, kind)
        return found if isinstance(found, str) else found[False] * 1000

    def ratio(launcher: Launcher, kind: str) -> Cell:
        found = best(launcher, kind)
        return found if isinstance(found, str) else found[False] / found[True]

    session.row(
        "a pipe that is not read: time over a pipe that is read",
        each(lambda it: ratio(it, "pipe")),
        "x",
        Promise("V6", most=1.5),
    )
    session.row(
        "a terminal stopped by Ctrl-S",
        each(lambda it: stalled(it, "pty")),
        "ms",
        Promise("V6", of_bare=1.5),
        bare=min(recorded(session.folder, mebibytes) for _ in range(turns)) * 1000,
    )
    if TORCHRUN in present():
        for kind, what in (("pipe", "a pipe that is not read"), ("pty", "a terminal stopped by Ctrl-S")):
            session.row(
                f"{what}: torchrun without log files, its default",
                {TORCHRUN.name: stalled(plain, kind)},
                "ms",
            )


LINES = """
count = int(sys.argv[1])
lines = [b"step %d loss 0.1234\\n" % step for step in range(100_000, 200_000)]
blocks = [b"".join(lines[at : at + 400]) for at in range(0, len(lines), 400)]
wait_for("gate")
tell("start", time.monotonic())
pieces = blocks if sys.argv[2] == "blocks" else lines
for number in range(count // (400 if pieces is blocks else 1)):
    write(pieces[number % len(pieces)])
time.sleep(600)
"""


def measure_lines(session: Session) -> None:
    """Short lines of two ranks, written as fast as they can, on one console behind prefixes."""

    def rate(launcher: Launcher, pieces: str, count: int) -> Cell:
        if launcher.shared_console is None:
            return "cannot"
        reader, writer = os.pipe()
        arguments, options = (str(count), pieces), launcher.shared_console
        with (
            os.fdopen(reader, "rb", buffering=0) as console,
            Run(launcher, session.folder, LINES, *arguments, options=options, stdout=writer) as run,
        ):
            os.close(writer)
            run.await_values("pid")
            run.open_gate("gate")
            left = 2 * count
            while left > 0:
                read = console.read(MIB)
                if not read:
                    raise Late(f"{launcher.title} closed its console {left} lines early")
                left -= read.count(b"\n")
            end = time.monotonic()
            return 2 * count / (end - min(run.await_values("start")))

    many = {it.name: 400_000 if it.is_rival else session.amount(4_000_000, 1_000_000) for it in present()}
    blocks = each(lambda it: rate(it, "blocks", many[it.name]))
    session.row("lines, 400 a write", blocks, "/s", Promise("V6", least=1e6))
    # The write rate of the ranks bounds this, not the launcher alone.
    session.row("lines, each a write", each(lambda it: rate(it, "lines", 400_000)), "/s")
