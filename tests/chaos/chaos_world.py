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
from etcd import Certificates, Etcd, EtcdCluster
from hosts import Host, hosts
from launching import environment, until
from multi_host import onto

CGROUPS = [Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")]
TRAIN = Path(__file__).parent / "chaos_train.py"
PROGRAMS = ("nsenter", "unshare", "mkfs.ext4", "mount", "umount", "fsfreeze")
RESTART_AFTER = 0.5  # Seconds after its end in which a launcher is started again.
# Statuses that no fault explains, nor another start mends.
UNUSABLE = {2, 66}


def missing() -> str | None:
    """What a chaos run needs and this machine lacks."""
    if os.geteuid() != 0:
        return "it needs root, for network namespaces, cgroups and disks"
    if tuple(map(int, os.uname().release.split(".")[:2])) < (5, 14) or cgroup_root() is None:
        return "it needs Linux 5.14 or later with a writable cgroup v2"
    for name in PROGRAMS:
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
        self._put("ca.pem", self.files.ca.read_bytes() + following.ca.read_bytes())
        restart(cluster)
        for name in ("server.key", "server.pem", "client.key", "client.pem"):
            self._put(name, (following.ca.parent / name).read_bytes())
        self._put("ca.pem", following.ca.read_bytes())
        restart(cluster)

    def _put(self, name: str, content: bytes) -> None:
        draft = self.folder / f"{name}.draft"
        draft.write_bytes(content)
        draft.rename(self.folder / name)


def restart(cluster: EtcdCluster) -> None:
    """One member after another: they read the authorities when they start."""
    for member in cluster.members:
        member.restart()
        member.until_healthy()


class UnusableError(Exception):
    """A launcher does not run at all."""


class Node:
    """A host with a launcher, which is started again whenever it has ended."""

    def __init__(self, number: int, host: Host, cgroup: Path, disk: Path, folder: Path) -> None:
        self.number, self.host, self.cgroup, self.disk, self.folder = number, host, cgroup, disk, folder
        self.process: subprocess.Popen[bytes] | None = None
        self.command: list[str] = []
        self.away = False
        self.restart_at = 0.0
        self.statuses: Counter[int] = Counter()
        # For each fault on this node that ends its launcher, the statuses that it explains once.
        self.explained: list[set[int]] = []

    @property
    def console(self) -> Path:
        return self.folder / f"console.{self.number}"

    def start(self) -> None:
        into = f'echo $$ > {self.cgroup}/cgroup.procs; exec "$@"'
        env = environment(NODE=str(self.number), PYTHONDONTWRITEBYTECODE=None)
        with self.console.open("ab") as console:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": console, "stderr": console}
            command = ["sh", "-c", into, "sh", *self.command]
            self.process = self.host.run(command, cwd=self.folder, env=env, start_new_session=True, **streams)

    def tick(self) -> None:
        """Collects a launcher that has ended, and starts the next one after a while."""
        if self.process is not None and (status := self.process.poll()) is not None:
            self.statuses[status] += 1
            self.process = None
            self.restart_at = time.monotonic() + RESTART_AFTER
            if status in UNUSABLE:
                last = self.console.read_text(errors="replace").splitlines()[-1:]
                raise UnusableError(f"a launcher exited with status {status}: {' '.join(last)}")
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

    def unexplained(self) -> list[int]:
        """The statuses of launchers that no fault has ended."""
        left, found = list(self.explained), []
        for status in self.statuses.elements():
            fault = next((fault for fault in left if status in fault), None)
            if fault is None:
                found.append(status)
            else:
                left.remove(fault)
        return found

    def end(self) -> None:
        """Kills all of it, and waits until it is gone."""
        if self.process is not None:
            # It may not be in the cgroup yet.
            self.process.kill()
        self.kill()
        events = self.cgroup / "cgroup.events"
        until(lambda: "populated 0" in events.read_text(), f"the end of all processes of node {self.number}")
        if self.process is not None:
            self.process.wait()
            self.process = None

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
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    try:
        subprocess.run(["mount", "-o", "loop", str(image), str(at)], check=True)
        yield at
    finally:
        for command in (["fsfreeze", "--unfreeze"], ["umount", "--lazy"]):
            subprocess.run([*command, str(at)], check=False, stderr=subprocess.DEVNULL)


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
        folders = [inner for inner in path.glob("**/") if inner.is_dir()]
        for inner in sorted(folders, key=lambda inner: -len(inner.parts)):
            inner.rmdir()


class World:
    """All of it."""

    def __init__(
        self, nodes: list[Node], servers: list[Host], etcd: EtcdCluster, authority: Authority
    ) -> None:
        self.nodes, self.servers, self.etcd, self.authority = nodes, servers, etcd, authority

    def leader(self) -> Etcd:
        """The member of etcd that leads, once there is one."""

        def found() -> Etcd | None:
            with contextlib.suppress(AssertionError):
                return self.etcd.leader()
            return None

        leader: Etcd = until(found, "a leader of etcd")
        return leader

    def tick(self) -> None:
        for node in self.nodes:
            node.tick()

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.tick()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))
            self.tick()

    def begin_job(self, number: int, folder: Path) -> str:
        """Starts its launchers: by turns those of either command line, with and without preloading.

        Returns what is run.
        """
        (folder / "checkpoints").mkdir(parents=True)
        words = torchruns if number % 2 else paddles
        preload = number // 2 % 2 == 0
        for node in self.nodes:
            node.folder, node.away, node.process = folder, False, None
            node.statuses.clear()
            node.explained.clear()
            options = [*words(self, f"job{number}", node.disk / f"job{number}")]
            options += ["--preload=torch"] * preload
            node.command = [sys.executable, "-m", *options, str(TRAIN), str(folder), str(node.number)]
            node.start()
        return ("rlaunch.run" if number % 2 else "rlaunch") + " --preload torch" * preload


def paddles(world: World, name: str, logs: Path) -> list[str]:
    """The module and the options of `python -m rlaunch`."""
    files = world.authority.files
    return [
        "rlaunch",
        "--frameworks=torch",
        f"--nnodes={MIN_NODES}:{NODES}",
        f"--job_id={name}",
        f"--master=etcds://{world.etcd.addresses}",
        f"--etcd_ca={files.ca}",
        f"--etcd_cert={files.client_cert}",
        f"--etcd_key={files.client_key}",
        "--elastic_level=1",
        "--max_restart=1000",
        "--restart_delay=0.1",
        "--restart_delay_max=0.5",
        f"--heartbeat_timeout={LEASE}",
        "--elastic_timeout=1",
        "--join_timeout=120",
        "--grace_period=3",
        f"--log_dir={logs}",
        "--nproc_per_node=1",
    ]


def torchruns(world: World, name: str, logs: Path) -> list[str]:
    """The same of `python -m rlaunch.run`."""
    files = world.authority.files
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
    return [
        "rlaunch.run",
        f"--nnodes={MIN_NODES}:{NODES}",
        f"--rdzv-id={name}",
        "--rdzv-backend=etcd",
        f"--rdzv-endpoint={world.etcd.addresses}",
        "--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in conf.items()),
        "--max-restarts=1000",
        "--shutdown-timeout=3",
        f"--log-dir={logs}",
        "--redirects=3",
        "--nproc-per-node=1",
    ]


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


SIGTERM_STATUSES = {128 + signal.SIGTERM, -signal.SIGTERM}
SIGKILL_STATUSES = {-signal.SIGKILL}
