"""No room on the disk, no descriptors, no processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import re
import resource
from pathlib import Path

from cases.case import Group, Observation, case, ended
from job import Job, mounted
from launchers import Launcher
from marked import describe, pids

# A rank that can live with a full disk: it is for the launcher to live with it too.
WRITE = """
for _ in range(256):
    try:
        os.write(1, b"x" * 16383 + b"\\n")
    except OSError:
        pass
tell("done")
os._exit(0)
"""


@case("full-disk", Group.SHORTAGE, "ENOSPC: the log folder takes 1 MiB, each rank writes 4", "exit 0")
def full_disk(launcher: Launcher, folder: Path) -> Observation:
    tmpfs = mounted("-t", "tmpfs", "-o", "size=1m", "none", folder / "log")
    with Job(launcher, folder, WRITE, wrap=tmpfs) as job:
        job.wait(90)
        done = sum((folder / f"done.{rank}").exists() for rank in range(job.ranks))
        return ended(job, 0, 0.1, f"{done} of {job.ranks} ranks exited successfully", ok=done == job.ranks)


def refused_start(job: Job, pattern: str, limit: float) -> Observation:
    """A start that fails for want of a resource: no rank is left, and the error names the resource."""
    in_time = job.wait(limit)
    if in_time and job.code == 0:
        left = job.survivors()
        return Observation(f"exit 0: starts all the same, {describe(left)}", not left)
    named = re.search(pattern, job.errors()) is not None
    return ended(job, None, 0.1, "says why" if named else "does not say why", ok=named)


# Not for ever, so that ranks left alone are seen, and a start that works comes to an end.
WAIT = "time.sleep(5)\nos._exit(0)\n"


@case(
    "descriptors",
    Group.SHORTAGE,
    "EMFILE: 24 descriptors, 64 ranks",
    "starts all the same, or says why and leaves none",
)
def few_descriptors(launcher: Launcher, folder: Path) -> Observation:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))

    with Job(launcher, folder, WAIT, ranks=64, before_exec=limit) as job:
        return refused_start(job, "open files|EMFILE", launcher.grace + 60)


def threads_of_mine() -> int:
    count = 0
    for pid in pids():
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{pid}/task"))
    return count


PR_CAPBSET_DROP, CAP_SYS_ADMIN, CAP_SYS_RESOURCE = 24, 21, 24


def few_processes(count: int) -> None:
    """Room for so many threads. Nothing limits user 0: root counts as another, with its rights to files."""
    if os.geteuid() == 0:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        for capability in (CAP_SYS_ADMIN, CAP_SYS_RESOURCE):
            if prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "prctl")
        os.setresuid(random.randrange(2_000_000_000, 2_100_000_000), 0, 0)
        used = 0
    else:
        used = threads_of_mine()
    resource.setrlimit(resource.RLIMIT_NPROC, (used + count, used + count))


@case("processes", Group.SHORTAGE, "EAGAIN: room for 24 threads, 32 ranks", "says why, leaves none")
def no_processes(launcher: Launcher, folder: Path) -> Observation:
    with Job(launcher, folder, WAIT, ranks=32, before_exec=lambda: few_processes(24)) as job:
        return refused_start(job, "Resource temporarily unavailable|EAGAIN", launcher.grace + 60)
