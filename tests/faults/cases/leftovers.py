"""What is left: processes that ranks leave behind, and what piles up over many runs."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path

from cases.case import Group, Observation, case, ended
from job import Job, mounted
from launchers import Launcher
from marked import survivors, zombies_of

LEAVE = """
leave(sys.argv[1])
if sys.argv[2] == "fails":
    hold() if rank else os._exit(7)
if sys.argv[2] == "stopped":
    hold()
os._exit(0)
"""
KINDS = {"child": "a child", "setsid": "a child in a session of its own", "daemon": "a double-forked daemon"}
# How a rank comes to its end, and the expected status of the launcher.
ENDS = {
    "well": ("ranks end well", 0),
    "fails": ("rank 0 exits 7", 7),
    "stopped": ("TERM to the launcher", 143),
}


def leave(kind: str, end: str, launcher: Launcher, folder: Path) -> Observation:
    with Job(launcher, folder, LEAVE, kind, end) as job:
        if end == "stopped":
            job.await_files("ready")
            job.process.send_signal(signal.SIGTERM)
        return ended(job, ENDS[end][1], launcher.grace + 60)


for kind, noun in KINDS.items():
    for end, (words, status) in ENDS.items():
        case(
            f"leave-{kind}-{end}", Group.LEFTOVERS, f"{words}, each has {noun}", f"exit {status}, 0 survivors"
        )(functools.partial(leave, kind, end))


@case(
    "repeat",
    Group.REPEAT,
    "runs one after another (20; rlaunch in a full run 1000)",
    "processes (and with them ports), zombies, /dev/shm, temporary files as before",
)
def repeat(launcher: Launcher, folder: Path) -> Observation:
    count = launcher.amount(20, 1000, 20)
    shared = folder / "shm"
    shared.mkdir()
    where = folder / "job"
    zombies = zombies_of({os.getpid()})
    failed = left = 0
    for _ in range(count):
        with Job(launcher, where, "pass\n", wrap=mounted("--bind", shared, "/dev/shm")) as job:
            job.wait(90)
            failed += job.code != 0
            left += len(survivors(job.mark))
    counts = {
        "failed": failed,
        "survivors": left,
        "zombies": zombies_of({os.getpid()}) - zombies,
        "in /dev/shm": len(list(shared.iterdir())),
        "temporary files": len(list((where / "tmp").iterdir())),
    }
    differing = [f"{number} {what}" for what, number in counts.items() if number]
    return Observation(f"{count} runs: {', '.join(differing) or 'as before'}", not differing)
