"""How each fault of a chaos run is done, and undone."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
from chaos_judge import Frozen
from chaos_plan import Fault, Kind
from chaos_world import Node, World, now
from etcd import Etcd


@contextmanager
def cut(world: World, node: Node) -> Iterator[None]:
    node.host.link("down")
    try:
        yield
    finally:
        node.host.link("up")


@contextmanager
def sends_nothing(world: World, node: Node) -> Iterator[None]:
    others = [other.host for other in world.nodes if other is not node] + world.servers
    for other in others:
        node.host.loses(other)
    try:
        yield
    finally:
        for other in others:
            node.host.reaches(other)


@contextmanager
def hears_nothing(world: World, node: Node) -> Iterator[None]:
    others = [other.host for other in world.nodes if other is not node] + world.servers
    for other in others:
        other.loses(node.host)
    try:
        yield
    finally:
        for other in others:
            other.reaches(node.host)


@contextmanager
def etcd_cut(world: World, node: Node) -> Iterator[None]:
    for server in world.servers:
        node.host.loses(server)
    try:
        with etcd_answers_lost(world, node):
            yield
    finally:
        for server in world.servers:
            node.host.reaches(server)


@contextmanager
def etcd_answers_lost(world: World, node: Node) -> Iterator[None]:
    for server in world.servers:
        server.loses(node.host)
    try:
        yield
    finally:
        for server in world.servers:
            server.reaches(node.host)


@contextmanager
def supervisor_stopped(world: World, node: Node) -> Iterator[None]:
    supervisor = node.supervisor()
    with contextlib.suppress(psutil.NoSuchProcess):
        if supervisor is not None:
            supervisor.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            if supervisor is not None:
                supervisor.resume()


@contextmanager
def logs_hang(world: World, node: Node) -> Iterator[None]:
    subprocess.run(["fsfreeze", "--freeze", str(node.disk)], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(node.disk)], check=True)


@contextmanager
def killed(world: World, node: Node) -> Iterator[None]:
    node.away = True
    node.kill()
    try:
        yield
    finally:
        node.away = False


@contextmanager
def leaves(world: World, node: Node) -> Iterator[None]:
    node.away = True
    if node.process is not None:
        node.process.send_signal(signal.SIGTERM)
    try:
        yield
    finally:
        node.away = False


@contextmanager
def launcher_killed(world: World, node: Node) -> Iterator[None]:
    if node.process is not None:
        node.process.kill()
    yield


@contextmanager
def rank_killed(world: World, node: Node) -> Iterator[None]:
    rank = node.rank()
    with contextlib.suppress(psutil.NoSuchProcess):
        if rank is not None:
            rank.kill()
    yield


@contextmanager
def member_cut(world: World, member: int) -> Iterator[None]:
    world.servers[member].link("down")
    try:
        yield
    finally:
        world.servers[member].link("up")


@contextmanager
def leader_killed(world: World, member: int) -> Iterator[None]:
    leader = world.etcd.leader()
    leader.stop()
    try:
        yield
    finally:
        leader.start()


@contextmanager
def stopped(members: list[Etcd]) -> Iterator[None]:
    for member in members:
        member.pause()
    try:
        yield
    finally:
        for member in members:
            member.resume()


@contextmanager
def certificates(world: World, member: int) -> Iterator[None]:
    world.authority.renew(world.etcd)
    yield


ON_NODES: dict[Kind, Callable[[World, Node], contextlib.AbstractContextManager[None]]] = {
    Kind.CUT: cut,
    Kind.SENDS_NOTHING: sends_nothing,
    Kind.HEARS_NOTHING: hears_nothing,
    Kind.ETCD_CUT: etcd_cut,
    Kind.ETCD_ANSWERS_LOST: etcd_answers_lost,
    Kind.SUPERVISOR_STOPPED: supervisor_stopped,
    Kind.LOGS_HANG: logs_hang,
    Kind.KILLED: killed,
    Kind.LEAVES: leaves,
    Kind.LAUNCHER_KILLED: launcher_killed,
    Kind.RANK_KILLED: rank_killed,
}
ON_ETCD: dict[Kind, Callable[[World, int], contextlib.AbstractContextManager[None]]] = {
    Kind.MEMBER_CUT: member_cut,
    Kind.LEADER_KILLED: leader_killed,
    Kind.LEADER_STOPPED: lambda world, _: stopped([world.etcd.leader()]),
    Kind.ALL_STOPPED: lambda world, _: stopped(world.etcd.members),
    Kind.CERTIFICATES: certificates,
}


@contextmanager
def frozen(node: Node, into: list[Frozen]) -> Iterator[None]:
    begin = now()
    node.freeze(True)
    try:
        yield
    finally:
        # It may run from here on.
        thaw = now()
        node.freeze(False)
        into.append(Frozen(node.number, begin, thaw))


def inject(world: World, fault: Fault, into: list[Frozen]) -> contextlib.AbstractContextManager[None]:
    """The fault, for as long as it is entered. Nodes that were frozen come `into` this."""
    if fault.kind is Kind.FROZEN:
        return frozen(world.nodes[fault.target], into)
    if fault.kind in ON_ETCD:
        return ON_ETCD[fault.kind](world, fault.target)
    return ON_NODES[fault.kind](world, world.nodes[fault.target])
