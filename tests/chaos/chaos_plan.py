"""The faults of a chaos run, their targets and times, drawn from the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

NODES, MEMBERS = 4, 3
MIN_NODES = 2
LEASE = 6  # Seconds: `--heartbeat_timeout`.


class Kind(Enum):
    """The value is the text of the tables."""

    CUT = "node: link down"
    SENDS_NOTHING = "node: what it sends is lost"
    HEARS_NOTHING = "node: what is sent to it is lost"
    ETCD_CUT = "node: cut from etcd alone"
    ETCD_ANSWERS_LOST = "node: etcd's answers are lost"
    FROZEN = "node: all its processes frozen"
    SUPERVISOR_STOPPED = "node: supervisor process stopped"
    LOGS_HANG = "node: log folder hangs"
    KILLED = "node: all its processes killed, back later"
    LEAVES = "node: SIGTERM to its launcher, back later"
    LAUNCHER_KILLED = "node: launcher process killed"
    RANK_KILLED = "node: rank killed"
    MEMBER_CUT = "etcd: link of a member down"
    LEADER_KILLED = "etcd: leader killed, back later"
    LEADER_STOPPED = "etcd: leader stopped (SIGSTOP)"
    ALL_STOPPED = "etcd: all members stopped (SIGSTOP)"
    CERTIFICATES = "etcd: all certificates and the authority renewed"


OF_ETCD = [kind for kind in Kind if kind.value.startswith("etcd")]
# They are over once they have been done.
AT_ONCE = {Kind.LAUNCHER_KILLED, Kind.RANK_KILLED, Kind.CERTIFICATES}


@dataclass(frozen=True)
class Fault:
    """From `begin` to `end` seconds after the burst's begin. `target`: the node, or the member of etcd."""

    kind: Kind
    target: int
    begin: float
    end: float


def burst(seed: int, job: int, number: int) -> list[Fault]:
    """Some faults, by their begin. Several may be there at once, but one at each target."""
    chance = random.Random(f"{seed}/{job}/{number}")
    faults: list[Fault] = []
    free = dict.fromkeys([*range(NODES), "etcd"], 0.0)
    at = 0.0
    for kind in chance.sample(list(Kind), chance.randint(2, 4)):
        target = chance.randrange(MEMBERS if kind in OF_ETCD else NODES)
        place = "etcd" if kind in OF_ETCD else target
        at = max(at + chance.expovariate(1 / 2.0), free[place])
        # Shorter than a lease, which the job should outlive, and longer.
        length = 0.0 if kind in AT_ONCE else LEASE * chance.choice([0.3, 0.7, 1.0, 1.5, 2.5])
        faults.append(Fault(kind, target, at, at + length))
        # A node that was away has ranks again then.
        free[place] = at + length + 3.0
    return faults
