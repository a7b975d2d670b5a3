"""A Slurm cluster of network namespaces on this machine: a head, and nodes that run jobs."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hosts import Host, hosts
from launching import until
from node_setup import CGROUPS
from paths import ROOT
from torch_launching import TorchPlace

# Debian's packages, unpacked (`make target/slurm`).
PACKAGES = ROOT / "target/slurm"
SETUP = Path(__file__).with_name("node_setup.py")
PROGRAMS = ("mount", "nsenter", "openssl", "unshare")
NODES = 3
CPUS = 96
GPUS = 8
KILL_WAIT = 30  # Slurm's default.
# A launcher on each of two nodes.
SRUN = ["srun", "--nodes=2", "--ntasks-per-node=1"]
# The same in a batch script. mpirun refuses root, as which these tests run.
MPIRUN = "mpirun --map-by ppr:1:node --bind-to none"
MPIRUN_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MUNGE_SOCKET = "/run/munge.socket"
# A job of `urgent` preempts those of the others, as their names say.
PARTITIONS = {
    "cancelled": "Default=YES PriorityTier=1 PreemptMode=CANCEL",
    "requeued": "PriorityTier=1 PreemptMode=REQUEUE",
    "urgent": "PriorityTier=2 PreemptMode=OFF",
}
# Of one job after another, which are started by these seconds: long enough for any.
JOB_LIMIT = 100.0


def missing() -> str | None:
    """What a cluster needs and this machine lacks."""
    if os.geteuid() != 0:
        return "it needs root, for namespaces and mounts"
    if not all((PACKAGES / program).exists() for program in ("usr/sbin/slurmctld", "usr/bin/mpirun")):
        return "Debian's packages are missing; `rm -r target/slurm; make target/slurm/unpacked` unpacks them"
    for name in PROGRAMS:
        if not any(os.access(Path(folder) / name, os.X_OK) for folder in os.get_exec_path()):
            return f"it needs the program {name}"
    return None


def versions() -> str:
    """By the names of the packages' files."""
    names = {"Slurm": "slurmd", "Open MPI": "openmpi-bin"}
    files = {
        name: next(PACKAGES.with_name("slurm.debs").glob(f"{package}_*.deb"))
        for name, package in names.items()
    }
    return " and ".join(f"{name} {file.name.split('_')[1]}" for name, file in files.items())


def configuration(folder: Path, names: list[str]) -> str:
    head, *nodes = names
    lines = {
        "ClusterName": "rlaunch",
        "SlurmctldHost": f"{head}({address(0)})",
        "SlurmUser": "root",
        "SlurmdUser": "root",
        # A job that is queued again waits until the old job's credential has expired.
        "AuthInfo": f"socket={MUNGE_SOCKET},cred_expire=5",
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "spool.%n",
        "SlurmctldPidFile": "/run/slurmctld.pid",
        "SlurmdPidFile": "/run/slurmd.pid",
        "SlurmctldLogFile": folder / "slurmctld.log",
        "SlurmdLogFile": folder / "slurmd.%n.log",
        "ProctrackType": "proctrack/cgroup",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU",
        "GresTypes": "gpu",
        # Nodes have more cores than this machine.
        "SlurmdParameters": "config_overrides",
        "SchedulerParameters": "sched_min_interval=0,sched_interval=1,bf_interval=1",
        "KillWait": KILL_WAIT,
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "ReturnToService": 2,
    }
    text = "".join(f"{name}={value}\n" for name, value in lines.items())
    for number, name in enumerate(nodes, 1):
        text += f"NodeName={name} NodeAddr={address(number)} CPUs={CPUS} RealMemory=100000 Gres=gpu:{GPUS}\n"
    for name, options in PARTITIONS.items():
        text += f"PartitionName={name} Nodes=ALL MaxTime=INFINITE State=UP {options}\n"
    return text


def address(number: int) -> str:
    return f"10.77.0.{number + 1}"


class Node:
    """A host that is a node of the cluster, or its head."""

    def __init__(self, name: str, host: Host, folder: Path, daemons: list[list[str]]) -> None:
        self.name, self.host, self.folder = name, host, folder
        self.ip = host.ip
        self.hosts_file = folder / f"hosts.{name}"
        log = (folder / f"daemons.{name}.log").open("wb")
        command = [sys.executable, "-I", str(SETUP), name, str(self.hosts_file), str(PACKAGES / "usr")]
        self.setup = host.run(
            [*command, json.dumps(daemons)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
        log.close()
        assert self.setup.stdout is not None
        line = self.setup.stdout.readline()
        assert line, (folder / f"daemons.{name}.log").read_text()
        self.pid = int(line)

    def enter(self, command: list[str], folder: Path) -> list[str]:
        """A command that runs another one on the node, in this folder."""
        namespaces = ["--mount", "--uts", "--net", "--pid", "--cgroup"]
        return ["nsenter", f"--target={self.pid}", *namespaces, f"--wdns={folder}", "--", *command]

    def run(self, *command: str) -> None:
        subprocess.run(self.enter(list(command), self.folder), check=True)

    def close(self) -> None:
        # Closes its stdin, which ends it.
        self.setup.communicate()


class Cluster:
    """Names of nodes are node1, node2 and so on; all see the same files, as on a shared file system."""

    def __init__(self, folder: Path, head: Node, nodes: list[Node]) -> None:
        self.folder, self.head, self.nodes = folder, head, nodes

    def environment(self, folder: Path, **changes: str | None) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        # Jobs of a node are listed on that node.
        own = {"RLAUNCH_RUNTIME_DIR": "/run/rlaunch", "PYTHONDONTWRITEBYTECODE": None}
        env = TorchPlace(folder).environment(
            PATH=path, SLURM_CONF=str(self.folder / "slurm.conf"), **own, **changes
        )
        return {name: value for name, value in env.items() if not name.startswith("PYTEST_")}

    def start(self, *command: str, folder: Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Starts a command on the head."""
        return subprocess.Popen(
            self.head.enter(list(command), folder),
            env=self.environment(folder, **(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *command: str, folder: Path | None = None, env: dict[str, str] | None = None) -> str:
        """The output of a command on the head."""
        status, output = self.finish(*command, folder=folder or self.folder, env=env)
        assert status == 0, (command, output)
        return output

    def finish(self, *command: str, folder: Path, env: dict[str, str] | None = None) -> tuple[int, str]:
        """The exit status and the output of a command on the head."""
        with self.start(*command, folder=folder, env=env) as process:
            try:
                output, _ = process.communicate(timeout=JOB_LIMIT)
            except subprocess.TimeoutExpired:
                self.run("scancel", "--user=root")
                raise
        return process.returncode, output

    def numbers_of(self, array: Job) -> list[int]:
        """The job numbers of an array's tasks, of which all have begun."""
        text = self.run("scontrol", "--oneliner", "show", "job", str(array.number))
        return [int(number) for number in re.findall(r"^JobId=(\d+)", text, re.M)]

    def node(self, name: str) -> Node:
        (node,) = (node for node in self.nodes if node.name == name)
        return node

    @contextmanager
    def cut_off(self, name: str) -> Iterator[None]:
        """Takes the node's cable out, and waits until Slurm uses the node again."""
        self.node(name).host.link("down")
        try:
            yield
        finally:
            self.node(name).host.link("up")
            # Otherwise it asks the node for the ends of its jobs once a minute.
            update = ("scontrol", "update", f"nodename={name}", "reason=test")
            self.run(*update, "state=down")
            # Refused if the node has come back by itself meanwhile.
            self.finish(*update, "state=resume", folder=self.folder)
            self.await_idle()

    def await_idle(self) -> None:
        states = ("sinfo", "--noheader", "--format=%D %T")
        until(lambda: self.run(*states) == f"{NODES} idle\n", "idle nodes")

    @contextmanager
    def own_names_are_loopback(self) -> Iterator[None]:
        """Each node finds its own name at 127.0.1.1, as Debian's installer has it."""
        before = self.head.hosts_file.read_text()
        for node in self.nodes:
            node.hosts_file.write_text(named_after_loopback(before, node))
        try:
            yield
        finally:
            for node in self.nodes:
                node.hosts_file.write_text(before)

    def submit(self, script: str, *options: str, folder: Path, env: dict[str, str] | None = None) -> Job:
        """Submits a batch script with these options of sbatch."""
        file = folder / "job.sh"
        file.write_text(script)
        number = self.run("sbatch", "--parsable", *options, str(file), folder=folder, env=env)
        return Job(self, int(number), folder)


def named_after_loopback(hosts: str, node: Node) -> str:
    others = [line for line in hosts.splitlines() if not line.endswith(f" {node.name}")]
    return "\n".join([f"127.0.1.1 {node.name}", *others, ""])


class Job:
    """A job of the cluster."""

    def __init__(self, cluster: Cluster, number: int, folder: Path) -> None:
        self.cluster, self.number, self.folder = cluster, number, folder

    def fields(self) -> dict[str, str]:
        text = self.cluster.run("scontrol", "--oneliner", "show", "job", str(self.number))
        return dict(word.partition("=")[::2] for word in text.split() if "=" in word)

    @property
    def state(self) -> str:
        return self.fields()["JobState"]

    def wait(self, *states: str, limit: float = JOB_LIMIT) -> str:
        """Waits until it is in one of these states; by default, until it has ended. Returns the state."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")

        def reached() -> str | None:
            state = self.state
            return state if state in (states or ended) else None

        found: str = until(reached, f"job {self.number} {states or ended}: {self.output()}", limit)
        return found

    def exit_status(self) -> int:
        """That of the batch script."""
        return int(self.fields()["ExitCode"].partition(":")[0])

    def await_end(self) -> None:
        """Waits until all its processes have ended: a cancelled job counts as ended before."""
        self.wait()
        listed = ("squeue", "--noheader", f"--jobs={self.number}", "--states=all", "--format=%T")
        until(lambda: "COMPLETING" not in self.cluster.run(*listed), f"the end of job {self.number}")

    def output(self) -> str:
        file = self.folder / f"slurm-{self.number}.out"
        return file.read_text(errors="replace") if file.exists() else ""


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """The folder needs a path that all of its parents let root alone write, or a sticky one."""
    names = ["head", *(f"node{number}" for number in range(1, NODES + 1))]
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(configuration(folder, names))
    (folder / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={CGROUPS}\n")
    # Slurm numbers GPUs by the names of their files.
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n")
    for number in range(GPUS):
        (folder / f"gpu{number}").touch()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    with ExitStack() as stack:
        made = stack.enter_context(hosts(1 + NODES))
        text = "127.0.0.1 localhost\n" + "".join(
            f"{host.ip} {name}\n" for name, host in zip(names, made, strict=True)
        )
        members = []
        for name, host in zip(names, made, strict=True):
            (folder / f"hosts.{name}").write_text(text)
            node = Node(name, host, folder, daemons(folder, name))
            stack.callback(node.close)
            members.append(node)
        built = Cluster(folder, members[0], members[1:])
        built.await_idle()
        yield built


def daemons(folder: Path, name: str) -> list[list[str]]:
    munged = ["munged", "--foreground", "--force", f"--key-file={folder / 'munge.key'}", "--num-threads=1"]
    munged += [f"--socket={MUNGE_SOCKET}", "--pid-file=/run/munged.pid", "--seed-file=/run/munged.seed"]
    conf = str(folder / "slurm.conf")
    slurm = ["slurmctld", "-D", "-f", conf] if name == "head" else ["slurmd", "-D", "-N", name, "-f", conf]
    return [[*munged, f"--log-file={folder / f'munged.{name}.log'}"], slurm]
