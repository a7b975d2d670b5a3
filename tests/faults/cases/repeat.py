"""Runs one after another: does anything pile up?"""

from __future__ import annotations

import os
from pathlib import Path

from cases.case import Group, Observation, case
from job import Job, mounted
from launchers import Launcher
from marked import survivors, zombies_of


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
