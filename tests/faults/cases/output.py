"""Floods of output, and consoles that take none."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import psutil
from cases.case import Group, Observation, case, ended
from job import Job, Late, until
from launchers import Launcher

MIB = 1 << 20
# Written by rank 0, whose output goes to the console too.
FLOOD = """
def write(data):
    while data:
        data = data[os.write(1, data):]

if rank == 0:
    kind, mebibytes = sys.argv[1], int(sys.argv[2])
    piece = b"x" * ((1 << 20) if kind == "long" else 1023) + (b"" if kind == "long" else b"\\n")
    for _ in range(mebibytes):
        write(piece * ((1 << 20) // len(piece)))
tell("done")
"""


def flood(launcher: Launcher, folder: Path, kind: str, mebibytes: int) -> Observation:
    with Job(launcher, folder, FLOOD, kind, str(mebibytes)) as job:
        job.wait(300)
        took = time.monotonic() - job.began
        size = launcher.log(job.logs, 0).stat().st_size
        whole = size >= mebibytes * MIB
        note = f"{mebibytes} MiB " + ("in the log" if whole else f"written, {size / MIB:.0f} in the log")
        return ended(job, 0, 0.1, note, f"{took:.0f} s", ok=whole)


@case(
    "flood", Group.OUTPUT, "rank 0 writes 1 GiB (in a quick run 64 MiB, rivals 256)", "exit 0, all in the log"
)
def flooded(launcher: Launcher, folder: Path) -> Observation:
    return flood(launcher, folder, "lines", launcher.amount(64, 1024, 256))


@case("long-line", Group.OUTPUT, "rank 0 writes 64 MiB without a newline", "exit 0, all in the log")
def long_line(launcher: Launcher, folder: Path) -> Observation:
    return flood(launcher, folder, "long", 64)


@case("closed-stdout", Group.OUTPUT, "the launcher's stdout is closed", "exit 0, 1 MiB in the log")
def closed_stdout(launcher: Launcher, folder: Path) -> Observation:
    wrap = ["sh", "-c", 'exec "$0" "$@" >&-']
    with Job(launcher, folder, FLOOD, "lines", "1", wrap=wrap) as job:
        job.wait(60)
        try:
            whole = launcher.log(job.logs, 0).stat().st_size >= MIB
        except FileNotFoundError:
            whole = False
        return ended(job, 0, 0.1, *([] if whole else ["not all in the log"]), ok=whole)


@case("unread-stdout", Group.OUTPUT, "no process reads the launcher's stdout", "the ranks end, exit 0")
def unread_stdout(launcher: Launcher, folder: Path) -> Observation:
    with Job(launcher, folder, FLOOD, "lines", "4", stdout=subprocess.PIPE) as job:
        paths = [folder / f"done.{rank}" for rank in range(job.ranks)]
        until(lambda: all(p.exists() for p in paths[1:]), "the end of rank 1", 90)
        job.wait(20)
        done = sum(path.exists() for path in paths)
        return ended(job, 0, 0.1, f"{done} of {job.ranks} ranks wrote all", ok=done == job.ranks)


LINE = b"x" * 1023 + b"\n"
# Written by all ranks at once.
TALK = """
hold()
mebibytes = int(sys.argv[1])
for _ in range(16 * mebibytes):
    data = (b"x" * 1023 + b"\\n") * 64
    while data:
        data = data[os.write(1, data):]
tell("done")
os._exit(0)
"""
# Bytes a second that a slow console takes, and the seconds that it may delay the end of a job.
SPEED = 64 << 10
DRAIN = 30


class SlowReader(threading.Thread):
    """Reads a pipe to its end, SPEED bytes a second."""

    def __init__(self, pipe: int) -> None:
        super().__init__(daemon=True)
        self.pipe = os.dup(pipe)
        self.data = bytearray()
        self.start()

    def run(self) -> None:
        with open(self.pipe, "rb", buffering=0) as file:
            while data := file.read(SPEED // 16):
                self.data += data
                time.sleep(1 / 16)


def slow_console(mebibytes: int, launcher: Launcher, folder: Path) -> Observation:
    with Job(launcher, folder, TALK, str(mebibytes), stdout=subprocess.PIPE) as job:
        assert job.process.stdout is not None
        console = SlowReader(job.process.stdout.fileno())
        job.await_files("ready")
        job.close_gate()
        first = time.monotonic()
        paths = [folder / f"done.{rank}" for rank in range(job.ranks)]
        with contextlib.suppress(Late):
            until(lambda: all(path.exists() for path in paths), "the end of the ranks", 2 * mebibytes)
        done = sum(path.exists() for path in paths)
        job.wait(DRAIN + 60)
        took = time.monotonic() - first
        if job.code is not None:
            console.join(10)
        lines = console.data.count(LINE)
        whole = all(launcher.log(job.logs, rank).stat().st_size >= mebibytes * MIB for rank in range(2))
        named = lines == mebibytes << 10 or str(launcher.log(job.logs, 0)) in job.errors()
        notes = [
            f"{took:.0f} s",
            f"{done} of {job.ranks} ranks wrote all without a pause",
            f"{lines / 1024:.1f} MiB shown" + ("" if named else ", no word of the rest"),
            *([] if whole else ["not all in the log"]),
        ]
        good = done == job.ranks and whole and named and took <= DRAIN + 5
        return ended(job, 0, 0.1, *notes, ok=good)


for mebibytes, ideal in {
    1: "exit 0, no rank waits for it, all shown and in the log",
    4: f"exit 0 within {DRAIN} + 5 s, no rank waits for it, all in the log, which is named",
}.items():
    case(
        f"slow-console-{mebibytes}",
        Group.OUTPUT,
        f"the console takes 64 KiB/s, ranks write {mebibytes} MiB each",
        ideal,
        quick=False,
    )(functools.partial(slow_console, mebibytes))


# No mark in its environment, and no child of the job: only its descriptors belong to the job.
STRANGER = """
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    code = "import sys, time; open('stranger', 'w').write('x'); time.sleep(600)"
    os.execve(sys.executable, [sys.executable, "-S", "-c", code, "daemon"], {"STRANGER": os.getcwd()})
os.wait()
while not os.path.exists("stranger"):
    time.sleep(0.005)
os._exit(0)
"""


def end_strangers(folder: Path) -> None:
    for process in psutil.process_iter():
        try:
            if process.environ().get("STRANGER") == str(folder):
                process.kill()
        except psutil.Error:
            continue


@case("stranger", Group.OUTPUT, "a stranger holds the ranks' stdout open", "exit 0, within 5 s")
def stranger(launcher: Launcher, folder: Path) -> Observation:
    with Job(launcher, folder, STRANGER, stdout=subprocess.PIPE) as job:
        try:
            until((folder / "stranger").exists, "the stranger", 90)
            first = time.monotonic()
            job.wait(30)
            took = time.monotonic() - first
            return ended(job, 0, 0.1, f"{took:.1f} s", ok=took <= 5)
        finally:
            end_strangers(folder)


@case("many", Group.OUTPUT, "many ranks end in the same instant", "exit 0, 0 survivors")
def many(launcher: Launcher, folder: Path) -> Observation:
    room = psutil.virtual_memory().available
    count = launcher.amount(64 if launcher.ours else 16, 500 if room > 12 << 30 else 300, 16)
    with Job(launcher, folder, "hold()\nos._exit(0)\n", ranks=count) as job:
        job.await_files("ready", 300)
        job.close_gate()
        first = time.monotonic()
        job.wait(120)
        took = time.monotonic() - first
        return ended(job, 0, 0.1, f"{count} ranks", f"{took:.1f} s")


@case("many-fail", Group.OUTPUT, "many ranks fail in the same instant", "exit 9, 0 survivors")
def many_fail(launcher: Launcher, folder: Path) -> Observation:
    count = launcher.amount(16, 100 if launcher.ours else 16, 16)
    with Job(launcher, folder, "hold()\nos._exit(9)\n", ranks=count) as job:
        job.await_files("ready", 300)
        job.close_gate()
        return ended(job, 9, launcher.grace + 60, f"{count} ranks")


@case("thousands", Group.OUTPUT, "2,000 ranks run /bin/true", "exit 0 within 300 s, 0 survivors", quick=False)
def thousands(launcher: Launcher, folder: Path) -> Observation:
    ranks = 2000
    command = [*launcher.command(ranks, folder / "log"), *launcher.program_option, shutil.which("true") or ""]
    with Job(launcher, folder, "", ranks=ranks, program=command) as job:
        job.wait(300)
        took = time.monotonic() - job.began
        logs = len(list(job.logs.glob(launcher.log_pattern.format(rank="*"))))
        return ended(job, 0, 0.1, f"{logs} logs", f"{took:.0f} s", ok=logs == ranks)
