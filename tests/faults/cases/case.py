"""The cases: an action on a launcher, its heading, the wanted outcome, and the observation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from job import Job, Late
from launchers import Launcher
from marked import describe, members

# Seconds between two requests of a person. What comes sooner is one request, which several ways have led to.
PERSON = 4.0


class Group(Enum):
    """The headings of the table, in their order."""

    STATUS = "Exit status"
    KILL = "Launcher killed"
    STOP = "Signals to the launcher"
    LEFTOVERS = "Leftovers of ranks"
    OUTPUT = "Output, and many ranks"
    SHORTAGE = "Shortages"
    ENVIRONMENT = "Unusual environments"
    HOST = "From a Python program"
    CONTAINER = "As PID 1"
    TERMINAL = "At a terminal"
    CONTROL = "Looked into while it runs"
    REPEAT = "Again and again"


@dataclass(frozen=True)
class Observation:
    """A short text, and whether it is as wanted; None where there is nothing to be wanted."""

    text: str
    ok: bool | None


Body = Callable[[Launcher, Path], Observation]


@dataclass(frozen=True)
class Case:
    name: str
    group: Group
    title: str
    ideal: str
    body: Body
    quick: bool

    def run(self, launcher: Launcher, folder: Path) -> Observation:
        try:
            return self.body(launcher, folder)
        except Late as late:
            return Observation(str(late), False)


CASES: dict[str, Case] = {}


def case(name: str, group: Group, title: str, ideal: str, *, quick: bool = True) -> Callable[[Body], Body]:
    """Registers a case; its function takes a launcher and an empty folder."""

    def register(body: Body) -> Body:
        assert name not in CASES, name
        CASES[name] = Case(name, group, title, ideal, body, quick)
        return body

    return register


def ended(job: Job, wanted: int | None, limit: float, *notes: str, ok: bool = True) -> Observation:
    """Waits for the end of a job: is its status the wanted one (None: any but 0), and is no process left?"""
    in_time = job.wait(limit)
    if not in_time:
        alive = f"{len(members(job.mark))} processes alive"
        return Observation(
            ", ".join([f"no end {time.monotonic() - job.began:.0f} s after the start", *notes, alive]), False
        )
    left = job.survivors()
    right = job.code == wanted if wanted is not None else bool(job.code)
    return Observation(", ".join([job.status(), *notes, describe(left)]), right and not left and ok)
