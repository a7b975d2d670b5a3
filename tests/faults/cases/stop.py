"""Signals to the launcher: which end the job, how soon, and with which status?"""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from pathlib import Path

import psutil
from cases.case import PERSON, Group, Observation, case, ended
from job import Job
from launchers import Launcher
from marked import describe, members

HOLD = """
signal.signal(signal.SIGUSR1, lambda *_: None)
if sys.argv[1:] == ["deaf"]:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
if sys.argv[1:] == ["fail"]:
    if rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if rank == 1:
        while not os.path.exists("ready.0"):
            time.sleep(0.005)
        os._exit(7)
hold()
"""
# How often, and the seconds between two.
TIMES = {"once": (1, 0.0), "twice": (2, 0.1), "ten times in 10 ms": (10, 0.001)}


def send(job: Job, number: int, times: str) -> float:
    """Sends it so often, and says when it was sent first."""
    count, pause = TIMES[times]
    first = time.monotonic()
    for turn in range(count):
        if turn:
            time.sleep(pause)
        job.process.send_signal(number)
    return first


def stopped(name: str, times: str, what: str, launcher: Launcher, folder: Path) -> Observation:
    number = signal.Signals[name]
    with Job(launcher, folder, HOLD, what) as job:
        job.await_files("ready")
        first = send(job, number, times)
        limit = launcher.grace + 2
        in_time = job.wait(launcher.grace + 12)
        took = time.monotonic() - first
        return ended(job, 128 + number, 0.1, f"{took:.1f} s", ok=in_time and took <= limit)


def noticed(times: str, launcher: Launcher, folder: Path) -> Observation:
    with Job(launcher, folder, HOLD, "obey") as job:
        job.await_files("ready")
        send(job, signal.SIGUSR1, times)
        # Long enough for one that is ended by the signal; the others only lose the time.
        if job.wait(1):
            return Observation(f"{job.status()}, {describe(job.survivors())}", False)
        job.close_gate()
        seen = ended(job, 0, 30)
        return Observation(f"job goes on, {seen.text}", seen.ok)


STOPS = ("SIGHUP", "SIGTERM", "SIGINT", "SIGQUIT")
for times in TIMES:
    slug = times.split()[0]
    for name in STOPS:
        ideal = f"exit {128 + signal.Signals[name]}, 0 survivors, within grace + 2 s"
        case(f"{name[3:].lower()}-{slug}", Group.STOP, f"{name[3:]} {times}", ideal)(
            functools.partial(stopped, name, times, "obey")
        )
    case(f"usr1-{slug}", Group.STOP, f"USR1 {times}", "the job goes on, exit 0")(
        functools.partial(noticed, times)
    )

case("deaf-once", Group.STOP, "TERM once, ranks ignore it", "exit 143, 0 survivors, within grace + 2 s")(
    functools.partial(stopped, "SIGTERM", "once", "deaf")
)


@case(
    "deaf-twice",
    Group.STOP,
    f"TERM twice, {PERSON:.0f} s apart, ranks ignore it, grace of 60 s",
    "exit 143, 0 survivors, within 10 s of the second",
)
def deaf_twice(launcher: Launcher, folder: Path) -> Observation:
    with Job(launcher.with_grace(60), folder, HOLD, "deaf") as job:
        job.await_files("ready")
        job.process.send_signal(signal.SIGTERM)
        if job.wait(PERSON):
            return Observation(f"{job.status()} after the first, {describe(job.survivors())}", False)
        second = time.monotonic()
        job.process.send_signal(signal.SIGTERM)
        job.wait(72)
        took = time.monotonic() - second
        return ended(job, 143, 0.1, f"{took:.1f} s", ok=took <= 10)


@case(
    "deaf-victim",
    Group.STOP,
    "rank 1 exits 7, rank 0 ignores TERM",
    "exit 7, 0 survivors, within grace + 2 s",
)
def deaf_victim(launcher: Launcher, folder: Path) -> Observation:
    with Job(launcher, folder, HOLD, "fail") as job:
        job.wait(90)
        rank_ended = (folder / "ready.0").stat().st_mtime if (folder / "ready.0").exists() else time.time()
        took = time.time() - rank_ended
        return ended(job, 7, launcher.grace + 12, f"{took:.1f} s", ok=took <= launcher.grace + 2)


# They have small stacks, so that 1,000 fit into little memory.
IDLE = """
import threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.stack_size(64 << 10)
for _ in range(250):
    threading.Thread(target=sleep, daemon=True).start()
hold()
"""
SHARE = 0.05


def processor_time(processes: list[psutil.Process]) -> float:
    """Seconds that these processes have run so far, in user and kernel mode."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


@case(
    "idle-threads",
    Group.STOP,
    "TERM once, 4 ranks of 250 idle threads ignore it",
    f"the launcher takes less than {SHARE:.0%} of a core, 0 survivors",
    quick=False,
)
def idle_threads(launcher: Launcher, folder: Path) -> Observation:
    with Job(launcher, folder, IDLE, ranks=4) as job:
        job.await_files("ready")
        launchers = [psutil.Process(m.pid) for m in members(job.mark) if m.kind == "launcher"]
        assert launchers
        before = processor_time(launchers)
        first = send(job, signal.SIGTERM, "once")
        took, used = 0.0, 0.0
        # The last numbers before one of them ends, which none can be asked for later.
        with contextlib.suppress(psutil.Error):
            while not job.wait(0.05):
                took, used = time.monotonic() - first, processor_time(launchers) - before
                if took > launcher.grace + 30:
                    break
        job.wait(10)
        share = used / took if took else 0.0
        seen = f"{share:.1%} of a core for {took:.1f} s, {describe(job.survivors())}"
        return Observation(seen, share < SHARE and job.code is not None and not job.survivors())
