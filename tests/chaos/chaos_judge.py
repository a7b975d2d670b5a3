"""Whether rounds of a job overlapped and whether a checkpoint was lost, from what its ranks wrote."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos_plan import LEASE

# Seconds by which a process may have begun later than /proc says (a clock tick).
RESOLUTION = 0.01
# Seconds in which a rank whose round is over has to have ended after it was frozen.
AFTER_THAW = 1.0


@dataclass(frozen=True)
class Life:
    """One rank: when its process began, and when it last ran."""

    round: int
    rank: int
    node: int
    world: int
    began: float
    last: float


@dataclass(frozen=True)
class Hold:
    """Processes of a node could not run, or were held in the kernel, from `begin` to `end`."""

    node: int
    begin: float
    end: float


@dataclass
class Findings:
    """The figures of a job, and its faults."""

    rounds: int = 0
    saved: int = 0
    lost: int = 0  # Rounds that began before a checkpoint that had been saved.
    stale: int = 0  # Checkpoints that an older round saved later, in a folder that no round reads any more.
    overlaps: int = 0  # Ranks that still ran when a newer round had begun.
    thawed: list[float] = field(default_factory=list)  # Seconds that such ranks ran after they were thawed.
    margin: float | None = None  # The least time between the end of a lost node's rank and the next round.
    faults: list[str] = field(default_factory=list)


def lives(folder: Path, ends: Mapping[int, float] | None = None, hung: Iterable[Hold] = ()) -> list[Life]:
    """The ranks.

    Args:
        ends: when processes ended, by process id, as an observer saw it.
        hung: when a log folder hung. Until it is over, the kernel holds a rank that writes there, also one
            that was killed, which runs no more.
    """
    found = []
    for path in folder.glob("life.*"):
        lines = path.read_text().splitlines()
        # A rank may be killed between the two writes.
        if len(lines) == 2:
            head, last = json.loads(lines[0]), float(lines[1])
            end = (ends or {}).get(head.pop("pid"), last)
            if not any(hold.node == head["node"] and last <= hold.end and hold.begin <= end for hold in hung):
                last = max(last, end)
            found.append(Life(**head, last=last))
    return found


def journal(folder: Path) -> list[dict[str, Any]]:
    """The entries of all rank 0s, by time; without a line that a kill has cut."""
    entries: list[dict[str, Any]] = []
    for path in folder.glob("journal.*"):
        lines = path.read_text().splitlines(keepends=True)
        entries += [json.loads(line) for line in lines if line.endswith("\n")]
    return sorted(entries, key=lambda entry: entry["time"])


def judge(lives: Iterable[Life], frozen: Iterable[Hold], journal: Iterable[dict[str, Any]]) -> Findings:
    findings = Findings()
    judge_rounds(findings, list(lives), list(frozen))
    judge_checkpoints(findings, sorted(journal, key=lambda entry: entry["time"]))
    return findings


def judge_rounds(findings: Findings, lives: list[Life], frozen: list[Hold]) -> None:
    """No rank of a round runs once one of a newer round has begun."""
    by_round: dict[int, list[Life]] = defaultdict(list)
    for life in lives:
        by_round[life.round].append(life)
    order = sorted(by_round)
    findings.rounds = len(order)
    for number in order:
        ranks = [life.rank for life in by_round[number]]
        worlds = {life.world for life in by_round[number]}
        if len(set(ranks)) < len(ranks) or len(worlds) > 1:
            findings.faults.append(f"round {number} began twice: {sorted(ranks)} of worlds {worlds}")
    for at, number in enumerate(order[1:], 1):
        began = min(life.began for life in by_round[number])
        nodes = {life.node for life in by_round[number]}
        for life in (life for earlier in order[:at] for life in by_round[earlier]):
            if life.last <= began + RESOLUTION:
                if life.node not in nodes and life.round == order[at - 1]:
                    margin = began - life.last
                    findings.margin = margin if findings.margin is None else min(findings.margin, margin)
                continue
            thaw = thawed(life, frozen, began)
            if thaw is not None:
                findings.thawed.append(life.last - thaw)
            if thaw is None or life.last - thaw > AFTER_THAW:
                findings.overlaps += 1
                findings.faults.append(
                    f"rank {life.rank} of round {life.round} on node {life.node} ran for "
                    f"{life.last - began:.3f} s beside round {number}"
                    + (f", {life.last - thaw:.3f} s after it was thawed" if thaw is not None else "")
                )


def thawed(life: Life, frozen: list[Hold], began: float) -> float | None:
    """When a rank's node was last thawed, if the newer round had begun while it was frozen, or just after."""
    # A freeze within the lease ends no round.
    long = [one for one in frozen if one.node == life.node and one.end - one.begin > LEASE / 2]
    ends = [one.end for one in long if one.end <= life.last and one.begin <= began <= one.end + AFTER_THAW]
    return max(ends, default=None)


def judge_checkpoints(findings: Findings, journal: list[dict[str, Any]]) -> None:
    """Each round begins with the newest checkpoint that an older one has saved."""
    newest, latest_round = 0, 0
    for entry in journal:
        step, number = entry["step"], entry["round"]
        if entry["event"] == "began":
            if step < newest:
                findings.lost += 1
                findings.faults.append(f"round {number} began at step {step}, though {newest} was saved")
            latest_round = max(latest_round, number)
        elif entry["event"] == "corrupt":
            findings.lost += 1
            findings.faults.append(f"round {number} found a wrong checkpoint of step {step}")
        else:
            findings.saved += 1
            if number < latest_round:
                findings.stale += 1
            else:
                newest = max(newest, step)
