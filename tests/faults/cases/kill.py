"""SIGKILL to the launcher's own processes: which processes of the job survive?"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

from cases.case import Group, Observation, case
from job import Job, until
from launchers import Launcher
from marked import describe, survivors

SEED = 20261121
HOLD = """
if len(sys.argv) > 1 and sys.argv[1] == "deaf":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
elif len(sys.argv) > 1:
    leave(sys.argv[1])
hold()
"""


def kill(job: Job, who: str) -> bool:
    """Kills the launcher, its supervisor, or both; False if it has none."""
    front, parent = job.process.pid, job.parent_of_ranks()
    if who == "launcher":
        os.kill(front, signal.SIGKILL)
    elif parent == front:
        return False
    elif who == "supervisor":
        os.kill(parent, signal.SIGKILL)
    else:
        # One that is stopped cannot act on the other's end, so this is one instant to both of them.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in (parent, front):
                os.kill(pid, number)
    return True


def killed(who: str, what: str, launcher: Launcher, folder: Path) -> Observation:
    with Job(launcher, folder, HOLD, *([what] if what else [])) as job:
        job.await_files("ready")
        if not kill(job, who):
            # Where one is promised, its absence is no excuse.
            return Observation("n/a: has none", False if launcher.supervised else None)
        left = job.survivors()
        if not job.wait(2):
            return Observation(f"launcher does not end, {describe(left)}", False)
        # Only a PID namespace could reach a process that left its session and its parents, while both die.
        free = who == "both" and what in ("setsid", "daemon")
        allowed = {what} if free else set()
        return Observation(describe(left), {member.kind for member in left} <= allowed)


NO_SURVIVORS = "0 survivors"
for who, words in {
    "launcher": "SIGKILL to the launcher",
    "supervisor": "SIGKILL to its supervisor",
    "both": "SIGKILL to both in the same instant",
}.items():
    case(f"kill-{who}", Group.KILL, words, NO_SURVIVORS)(functools.partial(killed, who, ""))
    case(f"kill-{who}-deaf", Group.KILL, f"{words}, ranks ignore TERM, INT and HUP", NO_SURVIVORS)(
        functools.partial(killed, who, "deaf")
    )
    for kind, noun in {
        "child": "a child",
        "setsid": "a child in a session of its own",
        "daemon": "a double-forked daemon",
    }.items():
        free = who == "both" and kind != "child"
        ideal = f"0 survivors but {kind}, which only a PID namespace could reach" if free else NO_SURVIVORS
        case(f"kill-{who}-{kind}", Group.KILL, f"{words}, each rank has {noun}", ideal)(
            functools.partial(killed, who, kind)
        )

# A rank whose launcher was killed waits for ever, as in a collective whose peers are gone.
SHORT = """
time.sleep(0.5)
if os.path.exists("orphaned"):
    sleep()
"""


def processes_of(job: Job, who: str) -> list[int]:
    """The pids that a kill of `who` hits now; a supervisor does not exist at every instant."""
    front = job.process.pid
    try:
        children = [int(pid) for pid in Path(f"/proc/{front}/task/{front}/children").read_text().split()]
    except OSError:
        children = []
    supervisors = [pid for pid in children if is_supervisor(pid)]
    return {
        "launcher": [front],
        "supervisor": supervisors,
        "both": [*supervisors, front],
    }[who]


def is_supervisor(pid: int) -> bool:
    """The launcher's own child: it has become nothing else by execve."""
    try:
        return b"rlaunch" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def killed_at_any_instant(who: str, launcher: Launcher, folder: Path) -> Observation:
    if who != "launcher" and not launcher.supervised:
        return Observation("n/a: has none", None)
    with Job(launcher, folder / "whole", SHORT) as job:
        until(lambda: job.process.poll() is not None, "the end of a short job", 90)
        length = time.monotonic() - job.began
    instants = launcher.amount(10, 50, 50)
    chance = random.Random(SEED)
    left: Counter[int] = Counter()
    hit = 0
    for turn in range(instants):
        # One in each n-th of the time, so that no part of it is left out.
        instant = (turn + chance.random()) * length / instants
        with Job(launcher, folder / str(turn), SHORT) as job:
            # The instant is what is varied here: nothing is waited for.
            time.sleep(max(0.0, job.began + instant - time.monotonic()))
            pids = processes_of(job, who)
            # One that is stopped cannot act on the other's end.
            for number in (signal.SIGSTOP, signal.SIGKILL) if who == "both" else (signal.SIGKILL,):
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
            hit += bool(pids)
            if pids:
                (job.folder / "orphaned").touch()
            else:
                # No process was killed: it ends by itself.
                job.wait(90)
            left[len(survivors(job.mark))] += 1
    bad = instants - left[0]
    there = "" if who == "launcher" else f", there to be killed at {hit}"
    if bad:
        return Observation(f"survivors at {bad} of {instants} (up to {max(left)}){there}", False)
    return Observation(f"0 survivors at {instants} of {instants}{there}", True)


for who, words in {
    "launcher": "SIGKILL to the launcher",
    "supervisor": "SIGKILL to its supervisor",
    "both": "SIGKILL to both in the same instant",
}.items():
    name = "kill-instants" if who == "launcher" else f"kill-instants-{who}"
    case(name, Group.KILL, f"{words}, at random instants from start to end", NO_SURVIVORS)(
        functools.partial(killed_at_any_instant, who)
    )
