"""How soon a launcher is gone when a rank has died, and its cost while it is idle."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import statistics
import time

from bench_launchers import RLAUNCH, RUN, Launcher
from figures import Cell, Promise
from running import Run, pss, scheduled, wakeups
from session import Session, each, present

CRASH = """
if rank == 1:
    wait_for("up.0")
    file = os.open(os.path.join(here, "death"), os.O_WRONLY | os.O_CREAT)
    os.write(file, repr(time.monotonic()).encode())
    os._exit(3) if sys.argv[1] == "exits" else os.kill(os.getpid(), signal.SIGKILL)
tell("up", "")
time.sleep(60)
"""


def measure_crash(session: Session) -> None:
    """From the death of one of two ranks to the launcher's exit; the other rank obeys SIGTERM."""

    def once(launcher: Launcher, way: str) -> float:
        with Run(launcher, session.folder, CRASH, way) as run:
            run.process.wait()
            end = time.monotonic()
            return (end - float((run.folder / "death").read_text())) * 1000

    for way, what in (("exits", "exits with a status"), ("killed", "is killed by SIGKILL")):
        times: dict[str, list[float]] = {launcher.name: [] for launcher in present()}
        for turn in range(session.amount(100, 20)):
            for launcher in present():
                if not launcher.is_rival or turn < session.amount(10, 2):
                    times[launcher.name].append(once(launcher, way))
        rows = {name: sorted(all_) for name, all_ in times.items()}
        medians: dict[str, Cell] = {name: statistics.median(all_) for name, all_ in rows.items()}
        worst: dict[str, Cell] = {name: all_[-(-len(all_) * 99 // 100) - 1] for name, all_ in rows.items()}
        session.row(f"a rank {what}, p50", medians, "ms", Promise("V3", most=15))
        few = len(rows[RLAUNCH.name]), session.amount(10, 2)
        session.row(
            f"the same, p99 of {few[0]} runs (rivals: of {few[1]})", worst, "ms", Promise("V3", most=50)
        )


SLEEP = "time.sleep(600)\n"


def measure_idle(session: Session) -> None:
    """Memory and wakeups of all processes of the launcher, default options, while its two ranks sleep."""
    seconds = session.amount(60, 5)
    with contextlib.ExitStack() as stack:
        runs = {it.name: stack.enter_context(Run(it, session.folder, SLEEP)) for it in present()}
        processes = {name: run.launcher_processes() for name, run in runs.items()}
        time.sleep(3)  # Whatever the start has left to do.
        before = {name: wakeups(pids) for name, pids in processes.items()}
        time.sleep(seconds)
        woken: dict[str, Cell] = {
            name: float(wakeups(pids) - before[name]) for name, pids in processes.items()
        }
        # Alone, so that none shares pages with another.
        session.row(f"times its threads woke in {seconds} s", woken, "", Promise("V5", most=0))

    def memory(launcher: Launcher) -> float:
        with Run(launcher, session.folder, SLEEP) as run:
            pids = run.launcher_processes()
            time.sleep(1)
            return pss(pids)

    session.row("memory, PSS", each(memory), "MB", Promise("V2", most=20))


# The rank dies of the signal that stops the job. The process that it has forked handles it, and ends with the
# grace period.
LINGER = """
if os.fork() == 0:
    import threading
    signal.signal(signal.SIGTERM, lambda *_: None)
    for _ in range(250):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    tell("up", 1)
time.sleep(600)
"""


def measure_linger(session: Session) -> None:
    """CPU of the launcher while 4 process groups of 250 idle threads use their grace period.

    Only this command line waits for groups.
    """
    seconds = session.amount(10, 2)
    with Run(RUN, session.folder, LINGER, ranks=4) as run:
        run.await_values("up")
        pids = run.launcher_processes()
        run.process.terminate()
        for pidfd in run.pidfds.values():
            select.select([pidfd], [], [])
        before = scheduled(pids)
        time.sleep(seconds)
        used = scheduled(pids) - before
        run.process.terminate()  # Ends the grace period.
        run.process.wait()
    session.row("share of a core", {RUN.name: 100 * used / seconds}, "%", Promise("V5", most=1))


# Leaves processes, each with a session of its own, once it has noted when it ends.
LEAVE = """
for _ in range(int(sys.argv[1])):
    os.posix_spawn("/bin/sleep", ["sleep", "600"], os.environ, setsid=True)
tell("death", repr(time.monotonic()))
os._exit(0)
"""


def measure_sweep(session: Session) -> None:
    """From the end of a rank that leaves processes, or beside others, to the launcher's exit.

    Of processes that it leaves, bare is to kill and reap as many; twice as many take twice as long. Of others
    that run beside, which the sweep has to tell apart, bare is rlaunch without them.
    """

    def swept(launcher: Launcher, count: int) -> float:
        with Run(launcher, session.folder, LEAVE, str(count), ranks=1) as run:
            run.process.wait()
            return (time.monotonic() - float(run.values("death")[0])) * 1000

    def floor(count: int) -> float:
        """SIGKILL and waitpid of as many processes whose numbers are known."""
        pids = [os.posix_spawn("/bin/sleep", ["sleep", "600"], os.environ) for _ in range(count)]
        begun = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        return (time.monotonic() - begun) * 1000

    for count in (session.amount(2000, 200), session.amount(4000, 400)):
        ours = (launcher for launcher in present() if not launcher.is_rival)
        figures = each(lambda launcher, count=count: swept(launcher, count), ours)
        session.row(f"it leaves {count:,} processes with own sessions", figures, "ms", bare=floor(count))

    def ended(launcher: Launcher) -> float:
        """The best of some: other programs on this machine only add to them."""
        return min(swept(launcher, 0) for _ in range(session.amount(10, 3)))

    alone = ended(RLAUNCH)
    others = session.amount(4000, 400)
    pids = [os.posix_spawn("/bin/sleep", ["sleep", "600"], os.environ) for _ in range(others)]
    try:
        beside = each(ended, (launcher for launcher in present() if not launcher.is_rival))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
    promise = Promise("sweep", most=100)
    session.row(f"beside {others:,} processes of other programs", beside, "ms", promise, bare=alone)
