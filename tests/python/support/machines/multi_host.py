"""Hosts, an etcd on another one, and jobs whose nodes rendezvous there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from elastic_jobs import TORCH, Backend, Job, Node
from etcd import Etcd, EtcdCluster
from hosts import INTO_USER, Host, hosts
from launching import until


class AtEtcd:
    """Nodes of the job of this name meet at an etcd that runs."""

    def __init__(self, addresses: str, name: str) -> None:
        self.addresses, self.name = addresses, name

    def paddle(self) -> list[str]:
        return [f"--master=etcd://{self.addresses}", f"--job_id={self.name}"]

    def torch(self) -> list[str]:
        return ["--rdzv-backend=etcd", f"--rdzv-endpoint={self.addresses}", f"--rdzv-id={self.name}"]

    def close(self) -> None:
        pass


def onto(host: Host) -> list[str]:
    """The prefix of a command that is to run there."""
    return ["nsenter", f"--target={host.pid}", "--net", *INTO_USER, "--"]


@dataclass
class MultiHost:
    """Hosts for launchers, and one more for an etcd."""

    on: list[Host]
    server: Host
    names: Iterator[int] = field(default_factory=itertools.count)

    def etcd(self, folder: Path) -> Etcd:
        return Etcd(folder, host=self.server.ip, prefix=onto(self.server))

    def cluster(self, folder: Path) -> EtcdCluster:
        return EtcdCluster(folder, places=[(self.server.ip, onto(self.server))] * 3)

    def at(self, etcd: Etcd | EtcdCluster, name: str | None = None) -> Backend:
        """The rendezvous backend of a job, under a name of its own by default."""
        addresses = etcd.addresses if isinstance(etcd, EtcdCluster) else etcd.address
        return lambda _: AtEtcd(addresses, name or f"job{next(self.names)}")


@contextmanager
def multi_host(count: int) -> Iterator[MultiHost]:
    with hosts(count + 1) as made:
        yield MultiHost(made[:count], made[count])


def joining(module: str, seconds: float, lease: float, lost: float | None = None) -> list[str]:
    """How long nodes wait: for others, and without contact; as options of either launcher."""
    if module == TORCH:
        conf = {
            "join_timeout": seconds,
            "last_call_timeout": 1,
            "keep_alive_interval": 1,
            "keep_alive_max_attempt": lease,
        }
        conf |= {} if lost is None else {"etcd_loss_timeout": lost}
        return ["--rdzv-conf=" + ",".join(f"{name}={value:.0f}" for name, value in conf.items())]
    words = [f"--join_timeout={seconds}", f"--heartbeat_timeout={lease}", "--elastic_timeout=2"]
    return words if lost is None else [*words, f"--etcd_loss_timeout={lost}"]


def await_ranks(job: Job, nodes: list[Node]) -> None:
    """Waits until each node's first rank of the first round has begun."""
    for node in nodes:
        node.await_round(len(nodes), 1)
        until(lambda node=node: list(job.folder.glob(f"life.{node.label}.0.*")), f"node {node.label}'s rank")


def name_of(job: Job) -> str:
    assert isinstance(job.backend, AtEtcd)
    return job.backend.name


def lived(job: Job, number: int) -> tuple[float, float]:
    """When the first rank of a round began, once one has, and when the last of them was last there."""

    def found() -> list[tuple[float, float]]:
        return [(began, ended) for of, _, began, ended in job.lives() if of == number]

    spans: list[tuple[float, float]] = until(found, f"a rank of round {number}")
    return min(began for began, _ in spans), max(ended for _, ended in spans)


def rounds_of(node: Node) -> list[int]:
    return [one["round"] for one in node.events("round_started")]
