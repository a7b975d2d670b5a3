"""The faults of a chaos run: contexts that yield whether there was anything to harm."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import psutil
from chaos_judge import Hold
from chaos_plan import Fault, Kind
from chaos_world import SIGKILL_STATUSES, SIGTERM_STATUSES, Node, World, now
from etcd import Etcd
from hosts import Host


@contextmanager
def cut(world: World, node: Node) -> Iterator[bool]:
    node.host.link("down")
    try:
        yield True
    finally:
        node.host.link("up")


@contextmanager
def lost(pairs: list[tuple[Host, Host]]) -> Iterator[bool]:
    """Packets from the first of each pair to the second are lost."""
    for sender, receiver in pairs:
        sender.loses(receiver)
    try:
        yield True
    finally:
        for sender, receiver in pairs:
            sender.reaches(receiver)


def others(world: World, node: Node) -> list[Host]:
    return [other.host for other in world.nodes if other is not node] + world.servers


@contextmanager
def supervisor_stopped(world: World, node: Node) -> Iterator[bool]:
    supervisor = node.supervisor()
    if supervisor is None or node.rank() is None:
        yield False
        return
    try:
        with suppress(psutil.NoSuchProcess):
            supervisor.suspend()
        yield True
    finally:
        with suppress(psutil.NoSuchProcess):
            supervisor.resume()


@contextmanager
def away(node: Node, statuses: set[int], end: Callable[[], None]) -> Iterator[bool]:
    """Ends the launcher, which exits with one of these statuses then. No other is started meanwhile."""
    was_there = node.rank() is not None
    node.away = True
    if node.process is not None:
        node.explained.append(statuses)
        end()
    try:
        yield was_there
    finally:
        node.away = False


def ask(node: Node) -> None:
    if node.process is not None:
        node.process.send_signal(signal.SIGTERM)


@contextmanager
def launcher_killed(world: World, node: Node) -> Iterator[bool]:
    was_there = node.rank() is not None
    if node.process is not None:
        node.explained.append(SIGKILL_STATUSES)
        node.process.kill()
    yield was_there


@contextmanager
def rank_killed(world: World, node: Node) -> Iterator[bool]:
    rank = node.rank()
    with suppress(psutil.NoSuchProcess):
        if rank is not None:
            rank.kill()
    yield rank is not None


@contextmanager
def member_cut(world: World, member: int) -> Iterator[bool]:
    world.servers[member].link("down")
    try:
        yield True
    finally:
        world.servers[member].link("up")
        world.etcd.members[member].until_healthy()


@contextmanager
def leader_killed(world: World, member: int) -> Iterator[bool]:
    leader = world.leader()
    leader.stop()
    try:
        yield True
    finally:
        leader.start()
        leader.until_healthy()


@contextmanager
def stopped(members: list[Etcd]) -> Iterator[bool]:
    for member in members:
        member.pause()
    try:
        yield True
    finally:
        for member in members:
            member.resume()
        for member in members:
            member.until_healthy()


@contextmanager
def certificates(world: World, member: int) -> Iterator[bool]:
    world.authority.renew(world.etcd)
    yield True


ON_NODES: dict[Kind, Callable[[World, Node], AbstractContextManager[bool]]] = {
    Kind.CUT: cut,
    Kind.SENDS_NOTHING: lambda world, node: lost([(node.host, to) for to in others(world, node)]),
    Kind.HEARS_NOTHING: lambda world, node: lost([(to, node.host) for to in others(world, node)]),
    Kind.ETCD_CUT: lambda world, node: lost(
        [pair for to in world.servers for pair in ((node.host, to), (to, node.host))]
    ),
    Kind.ETCD_ANSWERS_LOST: lambda world, node: lost([(to, node.host) for to in world.servers]),
    Kind.SUPERVISOR_STOPPED: supervisor_stopped,
    Kind.KILLED: lambda _, node: away(node, SIGKILL_STATUSES, node.kill),
    Kind.LEAVES: lambda _, node: away(node, SIGTERM_STATUSES, lambda: ask(node)),
    Kind.LAUNCHER_KILLED: launcher_killed,
    Kind.RANK_KILLED: rank_killed,
}
ON_ETCD: dict[Kind, Callable[[World, int], AbstractContextManager[bool]]] = {
    Kind.MEMBER_CUT: member_cut,
    Kind.LEADER_KILLED: leader_killed,
    Kind.LEADER_STOPPED: lambda world, _: stopped([world.leader()]),
    Kind.ALL_STOPPED: lambda world, _: stopped(world.etcd.members),
    Kind.CERTIFICATES: certificates,
}


@contextmanager
def frozen(node: Node, into: list[Hold]) -> Iterator[bool]:
    begin = now()
    was_there = node.rank() is not None
    try:
        node.freeze(True)
        yield was_there
    finally:
        # It may run from here on.
        into.append(Hold(node.number, begin, now()))
        node.freeze(False)


@contextmanager
def logs_hang(node: Node, into: list[Hold]) -> Iterator[bool]:
    begin = now()
    was_there = node.rank() is not None
    subprocess.run(["fsfreeze", "--freeze", str(node.disk)], check=True)
    try:
        yield was_there
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(node.disk)], check=True)
        # Processes that the kernel has held and that were killed end now.
        into.append(Hold(node.number, begin, now() + 1))


def inject(
    world: World, fault: Fault, frozen_nodes: list[Hold], hung: list[Hold]
) -> AbstractContextManager[bool]:
    """The fault, for as long as it is entered."""
    if fault.kind in ON_ETCD:
        return ON_ETCD[fault.kind](world, fault.target)
    node = world.nodes[fault.target]
    if fault.kind is Kind.FROZEN:
        return frozen(node, frozen_nodes)
    if fault.kind is Kind.LOGS_HANG:
        return logs_hang(node, hung)
    return ON_NODES[fault.kind](world, node)
