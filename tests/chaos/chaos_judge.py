"""Whether a job was ever in two worlds, and whether it lost a checkpoint: from what its ranks wrote."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Within which a rank that was frozen, and whose round is over, has to have ended after it is thawed.
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
class Frozen:
    """All processes of a node, from `begin` to `end`."""

    node: int
    begin: float
    end: float


@dataclass
class Findings:
    """The figures of a job, and what was wrong."""

    rounds: int = 0
    saved: int = 0
    lost: int = 0  # Rounds that began before a checkpoint that had been saved.
    stale: int = (
        0  # Checkpoints that a rank of an older round saved later, in a folder that no round reads any more.
    )
    overlaps: int = 0  # Rounds with a rank that still ran when a newer one had begun.
    thawed: list[float] = field(default_factory=list)  # Seconds that such ranks ran after they were thawed.
    margin: float | None = None  # The least time between the last rank of a round and the next round.
    faults: list[str] = field(default_factory=list)


def lives(folder: Path) -> list[Life]:
    found = []
    for path in folder.glob("life.*"):
        lines = path.read_text().splitlines()
        # A rank may be killed between the two writes.
        if len(lines) == 2:
            head = json.loads(lines[0])
            head.pop("pid")
            found.append(Life(**head, last=float(lines[1])))
    return found


def journal(folder: Path) -> list[dict[str, Any]]:
    """The entries of all rank 0s, by time; without a line that a kill has cut."""
    entries: list[dict[str, Any]] = []
    for path in folder.glob("journal.*"):
        lines = path.read_text().splitlines(keepends=True)
        entries += [json.loads(line) for line in lines if line.endswith("\n")]
    return sorted(entries, key=lambda entry: entry["time"])


def judge(lives: Iterable[Life], frozen: Iterable[Frozen], journal: Iterable[dict[str, Any]]) -> Findings:
    findings = Findings()
    judge_worlds(findings, list(lives), list(frozen))
    judge_checkpoints(findings, sorted(journal, key=lambda entry: entry["time"]))
    return findings


def judge_worlds(findings: Findings, lives: list[Life], frozen: list[Frozen]) -> None:
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
        older = [life for earlier in order[:at] for life in by_round[earlier]]
        still = [life for life in older if life.last > began]
        if not still:
            margin = began - max(life.last for life in older)
            findings.margin = margin if findings.margin is None else min(findings.margin, margin)
        for life in still:
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


def thawed(life: Life, frozen: list[Frozen], began: float) -> float | None:
    """When a rank's node was last thawed, if it had been frozen before the newer round began."""
    ends = [
        one.end for one in frozen if one.node == life.node and one.begin <= began and one.end <= life.last
    ]
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
        else:
            findings.saved += 1
            if number < latest_round:
                findings.stale += 1
            else:
                newest = max(newest, step)
