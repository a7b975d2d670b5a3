"""One run of the soak: the signals of its plan, and whether what is promised held."""

from __future__ import annotations

import contextlib
import functools
import heapq
import json
import math
import os
import re
import resource
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema_rs
import marked
from job import Job
from launchers import Launcher
from soak_plan import BODY, DEADLY, HOLDING, STOP, Plan, Shot

DOCS = Path(__file__).parents[2] / "docs"
SLACK = 2.0  # Seconds beyond the grace that a stop may take.
CROWDED = 10.0  # The most seconds that are allowed for a machine that has more to do than it can.
COMING = 30.0  # Seconds that ranks are waited for before the first shot; their absence is no fault here.
# Of the launcher itself; output of ranks stands behind a bar in its failure report. A Ctrl-C while the
# interpreter starts has a traceback of Python's own.
CRASH = re.compile(
    r"panicked at|PanicException|^  File \"[^\"]*/rlaunch/\w+\.py\"|^Fatal Python error", re.MULTILINE
)


@functools.cache
def validator(name: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(json.loads((DOCS / f"{name}.schema.json").read_text()))


@dataclass
class Seen:
    """The result of a run."""

    faults: list[str] = field(default_factory=list)
    status: str = ""
    sent: Counter[str] = field(default_factory=Counter)
    hit: Counter[str] = field(default_factory=Counter)
    stop: float | None = None  # Seconds from the first stop signal to the end, without those it was held.
    grace: float = 0.0
    survivors: list[marked.Member] = field(default_factory=list)


@dataclass
class Hold:
    """A time during which the soak held a process stopped."""

    pid: int
    launcher: bool
    since: float
    until: float | None = None


def no_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Crowd:
    """How long any process has waited for a processor, as the kernel counts it (PSI): all is late then."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []
        self.look()

    def look(self) -> None:
        waited = 0.0
        with contextlib.suppress(OSError):  # A kernel without PSI.
            waited = int(Path("/proc/pressure/cpu").read_text().split("total=")[1].split()[0]) / 1e6
        self.seen.append((time.monotonic(), waited))

    def between(self, begin: float, end: float) -> float:
        """Seconds of it, up to CROWDED."""
        self.look()

        def waited(at: float) -> float:
            return max((waited for when, waited in self.seen if when <= at), default=self.seen[0][1])

        return min(CROWDED, waited(end) - waited(begin))


class Run:
    def __init__(self, plan: Plan, launcher: Launcher, folder: Path) -> None:
        self.plan, self.launcher, self.folder = plan, plan.launcher(launcher), folder
        self.seen = Seen(grace=self.launcher.grace)
        self.holds: list[Hold] = []
        self.crowd = Crowd()
        self.due: list[tuple[float, int, Callable[[], None]]] = []
        self.turn = 0
        self.asked: float | None = None  # When the launcher was first asked to stop, or killed.
        self.killed: int | None = None  # Which of its processes was.
        self.ended = math.inf

    def go(self, tick: Callable[[], None]) -> Seen:
        """The whole run; `tick` is called every now and then."""
        plan = self.plan
        with Job(
            self.launcher, self.folder, BODY, plan.script(), ranks=len(plan.ranks), before_exec=no_core
        ) as self.job:
            self.front = os.pidfd_open(self.job.process.pid)
            try:
                in_time = self.watch(tick)
            finally:
                os.close(self.front)
            self.ended = time.monotonic()
            self.release_all()
            self.seen.status = self.job.status()
            if self.asked is not None:
                self.seen.stop = self.ended - self.asked - self.held(self.asked, launcher=True)
            if in_time:
                self.seen.survivors = self.survivors()
                self.seen.faults += self.check()
            else:
                self.seen.faults.append(f"(c) no end {self.seen.stop:.1f} s after it was asked to stop")
        return self.seen

    def survivors(self) -> list[marked.Member]:
        if not self.job.survivors():
            return []
        return marked.survivors(self.job.mark, self.crowd.between(self.ended, time.monotonic()))

    # --- Signals to it. ---

    def later(self, at: float, act: Callable[[], None]) -> None:
        self.turn += 1
        heapq.heappush(self.due, (at, self.turn, act))

    def watch(self, tick: Callable[[], None]) -> bool:
        """Does what is due until the launcher has ended; False if it does not in time."""
        began = time.monotonic()
        if self.plan.from_start:
            self.load(began)
        while self.job.process.poll() is None:
            tick()
            now = time.monotonic()
            if not self.due and self.asked is None and (self.all_there() or now > began + COMING):
                self.load(now)
            while self.due and self.due[0][0] <= now:
                heapq.heappop(self.due)[2]()
            self.crowd.look()
            if self.asked is not None and now > self.limit(self.asked, launcher=True):
                return False
            wait = min(0.02, max(0.0, self.due[0][0] - now)) if self.due else 0.02
            select.select([self.front], [], [], wait)
        return True

    def load(self, base: float) -> None:
        for shot in self.plan.shots:
            self.later(base + shot.at, lambda shot=shot: self.shoot(shot))  # type: ignore[misc]
        last = Shot(self.plan.last, "front", 0, signal.SIGINT, 0.0)
        self.later(base + last.at, lambda: self.shoot(last))

    def all_there(self) -> bool:
        return all((self.folder / f"start.0.{rank}").exists() for rank in range(len(self.plan.ranks)))

    def targets(self, shot: Shot) -> list[tuple[int, bool]]:
        """The pid that it is for, and whether that is one of the launcher's processes."""
        front = self.job.process.pid
        if shot.member == "front":
            return [(front, True)]
        there = marked.members(self.job.mark)
        own = [m.pid for m in there if m.kind == "launcher" and front in (m.pid, m.parent)]
        kinds = {"rank": ("rank",), "rank's group": ("rank",), "child": ("child", "setsid", "daemon")}
        some = sorted(m.pid for m in there if m.kind in kinds.get(shot.member, ()))
        if shot.member == "supervisor":
            some = [pid for pid in own if pid != front]
        elif shot.member == "front's group":
            some = [front]
        if not some:
            return []
        chosen = some[shot.which % len(some)]
        if "group" in shot.member:
            return [(m.pid, m.pid in own) for m in there if group_of(m.pid) == chosen]
        return [(chosen, chosen in own)]

    def shoot(self, shot: Shot) -> None:
        deadly = shot.number in DEADLY - self.plan.notified
        for pid, launcher in self.targets(shot):
            # Both of the launcher's processes in one instant is the gap that docs/guarantees.md tells of.
            if launcher and deadly and self.killed not in (None, pid):
                continue
            now = time.monotonic()
            if not marked.send(pid, self.job.mark, shot.number):
                continue
            self.seen.sent[shot.number.name] += 1
            self.seen.hit[shot.member] += 1
            if launcher and deadly:
                self.killed = pid
            if launcher and (deadly or shot.number in STOP - self.plan.notified) and self.asked is None:
                self.asked = now
            if shot.number in HOLDING:
                self.holds.append(Hold(pid, launcher, now))
                self.later(now + shot.hold, lambda pid=pid: self.release(pid))  # type: ignore[misc]
            elif shot.number == signal.SIGCONT:
                self.let_go(pid)

    def release(self, pid: int) -> None:
        marked.send(pid, self.job.mark, signal.SIGCONT)
        self.let_go(pid)

    def let_go(self, pid: int) -> None:
        for hold in self.holds:
            if hold.pid == pid and hold.until is None:
                hold.until = time.monotonic()

    def release_all(self) -> None:
        for pid in {hold.pid for hold in self.holds if hold.until is None}:
            self.release(pid)

    # --- Promises. ---

    def held(self, since: float, *, launcher: bool) -> float:
        """Seconds since then in which the soak held any process (or one of the launcher's) stopped."""
        now, total, last = time.monotonic(), 0.0, since
        for hold in sorted(self.holds, key=lambda hold: hold.since):
            if hold.launcher or not launcher:
                until = now if hold.until is None else hold.until
                total += max(0.0, until - max(last, hold.since))
                last = max(last, until)
        return total

    def limit(self, since: float, *, launcher: bool) -> float:
        allowed = self.launcher.grace + SLACK + self.held(since, launcher=launcher)
        return since + allowed + self.crowd.between(since, min(self.ended, time.monotonic()))

    def check(self) -> Iterator[str]:
        if self.seen.survivors:
            yield f"(a) {marked.describe(self.seen.survivors)} 2 s after its end"
        ends = self.ends()
        code = self.job.process.returncode
        if code == 0:
            for rank in range(len(self.plan.ranks)):
                if (end := ends.get(rank)) is None or end[0] != "code 0":
                    yield f"(b) exit 0, but rank {rank} {f'ended with {end[0]}' if end else 'had no end'}"
        failed = [at for end, at in ends.values() if end != "code 0"]
        if self.launcher.ours:
            failed += self.recorded_failures()
        if failed and self.ended > self.limit(min(failed), launcher=False):
            yield f"(c) ended {self.ended - min(failed):.1f} s after the first rank had failed"
        if not self.right(code):
            yield f"(d) {self.job.status()} is none of what it can be here"
        if self.launcher.ours:
            yield from self.check_ours(code)

    def check_ours(self, code: int) -> Iterator[str]:
        records = self.job.logs / "rlaunch"
        begun = (records / "events.jsonl").exists()
        # Before its first line, Python's own handler of SIGINT says so in its own way.
        said = self.job.errors()
        if (crash := CRASH.search(said)) and (begun or "KeyboardInterrupt" not in said):
            yield f"(e) its stderr has {crash.group()!r}"
        if begun:
            try:
                for line in (records / "events.jsonl").read_text().splitlines():
                    validator("events").validate(json.loads(line))
                result = json.loads((records / "result.json").read_text())
                validator("result").validate(result)
            except (OSError, ValueError) as error:
                yield f"(f) {type(error).__name__}: {str(error).splitlines()[0]}"
                return
            if code >= 0 and result["exit_status"] != code:
                yield f"(f) result.json has exit status {result['exit_status']}, but it is {code}"
            wrong = [rank["rank"] for rank in result["ranks"] if rank["status"] != "succeeded"]
            if code == 0 and (wrong or result["outcome"] != "completed"):
                yield f"(b) exit 0, but result.json says {result['outcome']}, and ranks {wrong} not well"

    def ends(self) -> dict[int, tuple[str, float]]:
        """The intended ends of the ranks of the last attempt, and their times."""
        attempts = [int(path.name.split(".")[1]) for path in self.folder.glob("start.*.*")]
        found = {}
        for rank in range(len(self.plan.ranks)):
            with contextlib.suppress(FileNotFoundError):
                path = self.folder / f"end.{max(attempts, default=0)}.{rank}"
                how, number, at = path.read_text().split()
                found[rank] = (f"{how} {number}", float(at))
        return found

    def recorded_failures(self) -> list[float]:
        """When ranks of the last attempt ended badly, as the launcher wrote it down."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            text = (self.job.logs / "rlaunch" / "events.jsonl").read_text()
            events: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
            last = max((event["attempt"] for event in events if event["event"] == "rank_started"), default=0)
            ended = [event for event in events if event["event"] == "rank_ended"]
            return [e["monotonic"] for e in ended if e["attempt"] == last and e["exit"] != {"code": 0}]
        return []

    def right(self, code: int) -> bool:
        """Whether there is a reason for this exit status; -N: signal N ended it."""
        plan, shots = self.plan, [(shot.member, shot.number) for shot in self.plan.shots]
        shots.append(("front", signal.SIGINT))
        if code < 0:
            # Also by one that it has not got a handler for yet, or Python's own for SIGINT.
            return any(number == -code for member, number in shots if member in ("front", "front's group"))
        own: set[int] = {number for rank in plan.ranks for how, number in [rank.end] if how == "code"}
        deaths: set[int] = {number for rank in plan.ranks for how, number in [rank.end] if how == "signal"}
        deaths |= {number for _, number in shots}
        # A rank that an early SIGINT finds in Python's start ends with 1.
        right = own | {rank.answer for rank in plan.ranks} | {128 + number for number in deaths} | {0, 1}
        if any(member == "supervisor" and number in DEADLY - plan.notified for member, number in shots):
            right.add(72)
        return code in right


def group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1
