"""Processes that ranks leave behind when they end, or are ended: are they swept?"""

from __future__ import annotations

import functools
import signal
from pathlib import Path

from cases.case import Group, Observation, case, ended
from job import Job
from launchers import Launcher

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
