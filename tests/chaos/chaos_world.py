"""The machines of a chaos run: hosts with a cgroup and a disk each, an etcd, and a job's launchers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from chaos_plan import LEASE, MEMBERS, MIN_NODES, NODES
from etcd import Certificates, EtcdCluster
from hosts import Host, hosts
from launching import environment, until
from multi_host import onto

CGROUPS = [Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")]
TRAIN = Path(__file__).parent / "chaos_train.py"
RESTART_AFTER = 0.5  # Seconds after its end in which a launcher is started again.
# Statuses of docs/operations.md that have a reason in a chaos run: a stop, contact or nodes lost.
EXPECTED = {0, 73, 74, 75, 128 + signal.SIGTERM, -signal.SIGKILL, -signal.SIGTERM}


def missing() -> str | None:
    """What a chaos run needs and this machine lacks."""
    if os.geteuid() != 0:
        return "it needs root, for network namespaces, cgroups and disks"
    if cgroup_root() is None:
        return "it needs a writable cgroup v2"
    for name in ("nsenter", "unshare", "mkfs.ext4", "mount", "umount", "fsfreeze"):
        if not any(os.access(Path(folder) / name, os.X_OK) for folder in os.get_exec_path()):
            return f"it needs the program {name}"
    return None


def cgroup_root() -> Path | None:
    for path in CGROUPS:
        if (path / "cgroup.procs").exists() and os.access(path, os.W_OK):
            return path
    return None


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Authority:
    """An authority with the certificates of etcd's members and of the nodes, replaced as a whole."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder, self.names = folder, names
        self.generation = 0
        self.files = Certificates.make(folder, *names)

    def renew(self, cluster: EtcdCluster) -> None:
        """As it is done without an outage: both authorities are trusted while the certificates change."""
        self.generation += 1
        following = Certificates.make(self.folder / f"next{self.generation}", *self.names)
        both = self.files.ca.read_bytes() + following.ca.read_bytes()
        self._put("ca.pem", both)
        # A member reads whom it trusts when it starts.
        for member in cluster.members:
            if member.process is not None:
                member.restart()
                member.until_healthy()
        for name in ("server.key", "server.pem", "client.key", "client.pem"):
            self._put(name, (following.ca.parent / name).read_bytes())
        self._put("ca.pem", following.ca.read_bytes())

    def _put(self, name: str, content: bytes) -> None:
        draft = self.folder / f"{name}.draft"
        draft.write_bytes(content)
        draft.rename(self.folder / name)


class Node:
    """A host with a launcher, which is started again whenever it has ended."""

    def __init__(self, number: int, host: Host, cgroup: Path, disk: Path, folder: Path) -> None:
        self.number, self.host, self.cgroup, self.disk, self.folder = number, host, cgroup, disk, folder
        self.process: subprocess.Popen[bytes] | None = None
        self.command: list[str] = []
        self.away = False
        self.started = 0
        self.restart_at = 0.0
        self.statuses: Counter[int] = Counter()

    def start(self) -> None:
        self.started += 1
        into = f'echo $$ > {self.cgroup}/cgroup.procs; exec "$@"'
        env = environment(NODE=str(self.number), PYTHONDONTWRITEBYTECODE=None)
        with open(self.folder / f"console.{self.number}", "ab") as console:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": console, "stderr": console}
            command = ["sh", "-c", into, "sh", *self.command]
            self.process = self.host.run(command, cwd=self.folder, env=env, **streams)

    def tick(self) -> None:
        """Collects a launcher that has ended, and starts the next one after a while."""
        if self.process is not None and (status := self.process.poll()) is not None:
            self.statuses[status] += 1
            self.process = None
            self.restart_at = time.monotonic() + RESTART_AFTER
        if self.process is None and not self.away and time.monotonic() >= self.restart_at:
            self.start()

    def pids(self) -> list[int]:
        """All its processes."""
        files = [self.cgroup / "cgroup.procs", *self.cgroup.glob("**/cgroup.procs")]
        return sorted({int(pid) for file in files for pid in file.read_text().split()})

    def supervisor(self) -> psutil.Process | None:
        """The launcher's second process."""
        with contextlib.suppress(psutil.NoSuchProcess):
            if self.process is not None and (children := psutil.Process(self.process.pid).children()):
                return children[0]
        return None

    def rank(self) -> psutil.Process | None:
        """The rank that was started last."""
        written = [path.name.split(".") for path in self.folder.glob(f"life.*.*.{self.number}.*")]
        newest = max(((int(number), int(pid)) for _, number, _, _, pid in written), default=None)
        with contextlib.suppress(psutil.NoSuchProcess):
            if newest is not None and newest[1] in self.pids():
                return psutil.Process(newest[1])
        return None

    def kill(self) -> None:
        """All processes of the node, however many it starts meanwhile."""
        (self.cgroup / "cgroup.kill").write_text("1")

    def freeze(self, frozen: bool) -> None:
        (self.cgroup / "cgroup.freeze").write_text("1" if frozen else "0")
        events = self.cgroup / "cgroup.events"
        until(lambda: f"frozen {int(frozen)}" in events.read_text(), f"node {self.number} frozen: {frozen}")


@contextmanager
def disk(folder: Path, number: int) -> Iterator[Path]:
    """A file system of its own, which can be made to hang."""
    image, at = folder / f"disk{number}.img", folder / f"disk{number}"
    with image.open("wb") as file:
        file.truncate(256 << 20)
    at.mkdir()
    for command in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(at)]):
        subprocess.run(command, check=True)
    try:
        yield at
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(at)], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["umount", "--lazy", str(at)], check=True)


@contextmanager
def cgroup(name: str) -> Iterator[Path]:
    root = cgroup_root()
    assert root is not None
    path = root / name
    path.mkdir()
    try:
        yield path
    finally:
        (path / "cgroup.freeze").write_text("0")
        (path / "cgroup.kill").write_text("1")
        until(lambda: "populated 0" in (path / "cgroup.events").read_text(), f"the end of all in {path}")
        for inner in sorted(path.glob("**/"), key=lambda inner: -len(inner.parts)):
            if inner.is_dir():
                inner.rmdir()


class World:
    """All of it."""

    def __init__(
        self, nodes: list[Node], servers: list[Host], etcd: EtcdCluster, authority: Authority
    ) -> None:
        self.nodes, self.servers, self.etcd, self.authority = nodes, servers, etcd, authority

    def tick(self) -> None:
        for node in self.nodes:
            node.tick()

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.tick()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))
            self.tick()

    def begin_job(self, number: int, folder: Path) -> None:
        """Starts its launchers: by turns those of either command line, with and without preloading."""
        (folder / "checkpoints").mkdir(parents=True)
        for node in self.nodes:
            node.folder, node.away, node.process = folder, False, None
            node.command = self._command(number, node, folder)
            node.start()

    def _command(self, number: int, node: Node, folder: Path) -> list[str]:
        nnodes, name = f"{MIN_NODES}:{NODES}", f"job{number}"
        files = self.authority.files
        logs = node.disk / name
        words = [sys.executable, "-m"]
        if number % 2 == 0:
            words += ["rlaunch", "--frameworks=torch", f"--nnodes={nnodes}", f"--job_id={name}"]
            words += [f"--master=etcds://{self.etcd.addresses}", f"--etcd_ca={files.ca}"]
            words += [f"--etcd_cert={files.client_cert}", f"--etcd_key={files.client_key}"]
            words += [
                "--elastic_level=1",
                "--max_restart=1000",
                "--restart_delay=0.1",
                "--restart_delay_max=0.5",
            ]
            words += [f"--heartbeat_timeout={LEASE}", "--elastic_timeout=1", "--join_timeout=120"]
            words += ["--grace_period=3", f"--log_dir={logs}", "--nproc_per_node=1"]
        else:
            conf = {
                "join_timeout": 120,
                "last_call_timeout": 1,
                "keep_alive_interval": 1,
                "keep_alive_max_attempt": LEASE,
                "protocol": "https",
                "ca_cert": files.ca,
                "ssl_cert": files.client_cert,
                "ssl_cert_key": files.client_key,
            }
            words += ["rlaunch.run", f"--nnodes={nnodes}", f"--rdzv-id={name}", "--rdzv-backend=etcd"]
            words += [f"--rdzv-endpoint={self.etcd.addresses}", "--max-restarts=1000", f"--log-dir={logs}"]
            words += ["--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in conf.items())]
            words += ["--nproc-per-node=1", "--redirects=3"]
        if number // 2 % 2 == 0:
            words += ["--preload=torch"]
        return [*words, str(TRAIN), str(folder), str(node.number)]


@contextmanager
def world(folder: Path) -> Iterator[World]:
    with ExitStack() as stack:
        made = stack.enter_context(hosts(NODES + MEMBERS))
        servers = made[NODES:]
        authority = Authority(folder / "certificates", [host.ip for host in servers])
        etcd = EtcdCluster(
            folder / "etcd",
            places=[(host.ip, onto(host)) for host in servers],
            certificates=authority.files,
            options=["--auto-compaction-retention=1m"],
        )
        nodes = []
        for number, host in enumerate(made[:NODES]):
            group = stack.enter_context(cgroup(f"chaos-{os.getpid()}-{number}"))
            nodes.append(Node(number, host, group, stack.enter_context(disk(folder, number)), folder))
        stack.enter_context(etcd)
        yield World(nodes, servers, etcd, authority)
