"""Jobs on several hosts that lose a process, a machine, their etcd or its leader: how long no step is made.

Hosts are network namespaces, as in `make chaos`, whose machines this section uses.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench_launchers import PADDLE, RLAUNCH, RUN, TORCHRUN, Launcher, environment
from figures import NOT_INSTALLED, Cell, Promise
from machines import STAR, EtcdCluster, Host, Node, cgroup, hosts, missing, onto
from running import Late
from session import Session

# Seconds without a renewal after which a node is lost, with every launcher that has an option for it.
LEASE = 6
OUTAGE = 30.0
LIMIT = 30.0
# How long a rank of an older round that does not end is watched.
STAYS = 15.0

# A rank that sums a number with all others again and again, by a star that only its world's network makes.
# `life.*` has its world's size, a line for each step (s) and many while it is alive (a), by CLOCK_BOOTTIME.
RANK = f"""
import json, os, signal, sys, threading, time
rank = int(os.environ.get("PADDLE_TRAINER_ID") or os.environ["RANK"])
world = int(os.environ.get("PADDLE_TRAINERS_NUM") or os.environ["WORLD_SIZE"])
name = f"{{sys.argv[1]}}/life.{{os.environ['NODE']}}.{{os.getpid()}}"
life = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def tell(what):
    os.write(life, f"{{what}} {{time.clock_gettime(time.CLOCK_BOOTTIME)}}\\n".encode())

def live():
    while True:
        tell("a")
        time.sleep(0.005)

os.write(life, f"{{world}}\\n".encode())
threading.Thread(target=live, daemon=True).start()
{STAR}

while not all_reduce([os.path.exists(f"{{sys.argv[1]}}/finish")])[0]:
    tell("s")
    time.sleep(0.005)
"""


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Life:
    """What a rank has written so far."""

    def __init__(self, path: Path) -> None:
        self.path, self.read, self.rest = path, 0, b""
        self.node, self.world = int(path.name.split(".")[1]), 0
        self.steps: list[float] = []
        self.alive: list[float] = []

    def update(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self.read)
            text = self.rest + file.read()
            self.read = file.tell()
        *lines, self.rest = text.split(b"\n")
        if not self.world and lines:
            self.world = int(lines.pop(0))
        for line in lines:
            what, at = line.split()
            {b"s": self.steps, b"a": self.alive}[what].append(float(at))


@dataclass(frozen=True)
class Where:
    """The rendezvous of a job."""

    title: str
    etcd: EtcdCluster | None


class Job:
    """A launcher on each node, which is not started again when it ends."""

    ports = itertools.count(29800)

    def __init__(
        self,
        launcher: Launcher,
        where: Where,
        nodes: list[Node],
        parent: Path,
        elastic: bool,
        count: str | None = None,
        rank: str = RANK,
        more: tuple[list[str], list[str]] = ([], []),
    ) -> None:
        # `more`: further variables and options of each launcher.
        self.launcher, self.where, self.nodes = launcher, where, nodes
        self.folder = Path(tempfile.mkdtemp(dir=parent, prefix=f"{launcher.name}."))
        script = self.folder / "rank.py"
        script.write_text(rank)
        self.more = more
        self.name, self.port = f"job{next(self.ports)}", next(self.ports)
        self.count = count or (f"{len(nodes) - 1}:{len(nodes)}" if elastic else str(len(nodes)))
        self.script = script
        # torchrun and Paddle can be given one member of etcd alone.
        etcd = where.etcd
        self.leader = None if etcd is None else etcd.leader()
        self.etcd = "" if etcd is None else etcd.addresses
        if self.leader is not None and launcher.is_rival:
            self.etcd = self.leader.address
        self.files: dict[str, Life] = {}
        for node in nodes:
            self.prepare(node)
        self.began = now()
        for node in nodes:
            node.start()

    def prepare(self, node: Node, *words: str) -> None:
        """Gives a node its command. `words`: what its ranks run, if it is not the job's script."""
        launcher = self.launcher
        options = self.options(node, self.count, self.name, self.port)
        logs = f"--log{'_' if self.is_paddles else '-'}dir={self.folder}/log{node.number}"
        runs = words or (str(self.script), str(self.folder))
        more_variables, more_options = self.more
        command = [launcher.python, "-m", launcher.module, *options, *more_options, logs, *runs]
        node.folder = self.folder
        node.command = ["env", f"NODE={node.number}", *variables(launcher), *more_variables, *command]

    @property
    def is_paddles(self) -> bool:
        return self.launcher in (RLAUNCH, PADDLE)

    def options(self, node: Node, count: str, name: str, port: int) -> list[str]:
        elastic = ":" in count
        if self.is_paddles:
            master = f"etcd://{self.etcd}" if self.etcd else f"{self.nodes[0].host.ip}:{port}"
            words = [f"--nnodes={count}", f"--master={master}", f"--job_id={name}"]
            # Paddle makes 3 s of 1, and gives up where its launchers take longer to start.
            words += [f"--elastic_timeout={1 if self.launcher is RLAUNCH else 5}"]
            words += ["--elastic_level=1"] if elastic else []
            if self.launcher is RLAUNCH:
                words += [f"--heartbeat_timeout={LEASE}", *(["--restart_delay=0"] if elastic else [])]
            return [*words, "--nproc_per_node=1", f"--host={node.host.ip}"]
        backend = ("etcd-v2" if self.launcher.is_rival else "etcd") if self.etcd else "c10d"
        endpoint = self.etcd or f"{self.nodes[0].host.ip}:{port}"
        conf = f"last_call_timeout=1,keep_alive_interval={LEASE // 3},keep_alive_max_attempt=3"
        if self.launcher is TORCHRUN and not self.etcd:
            # It compares host names, of which this machine has one.
            conf += f",is_host={int(node is self.nodes[0])}"
        words = [
            f"--nnodes={count}",
            "--nproc-per-node=1",
            f"--max-restarts={3 * elastic}",
            f"--rdzv-id={name}",
        ]
        words += [f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint}", f"--rdzv-conf={conf}"]
        return [*words, f"--local-addr={node.host.ip}"]

    def lives(self) -> list[Life]:
        for path in self.folder.glob("life.*"):
            self.files.setdefault(path.name, Life(path)).update()
        return list(self.files.values())

    def await_steps(self, world: int | None, since: float) -> float:
        """When the first step after that was made, in a world of this size if one is given, once it was."""
        deadline = time.monotonic() + LIMIT
        while True:
            for node in self.nodes:
                if node.process is not None and node.process.poll() is not None:
                    node.process = None
            lives = [life for life in self.lives() if world in (None, life.world)]
            steps = [step for life in lives for step in life.steps if step > since]
            if steps:
                return min(steps)
            if all(node.process is None for node in self.nodes):
                raise Late(f"{self.launcher.title}: the job has ended")
            if time.monotonic() > deadline:
                raise Late(f"{self.launcher.title}: no step within {LIMIT:g} s")
            time.sleep(0.02)

    def longest_pause(self, begin: float, end: float) -> float:
        """Between two steps of any rank, until now if none came."""
        steps = sorted(step for life in self.lives() for step in life.steps)
        before = [step for step in steps if step < begin][-1:]
        inside = [step for step in steps if begin <= step <= end]
        points = [*before, *inside, *([] if inside and inside[-1] > end - 1 else [end])]
        return max(later - earlier for earlier, later in itertools.pairwise(points))

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        (self.folder / "finish").touch()
        for node in self.nodes:
            node.host.link("up")
            node.freeze(False)
            node.end()


def variables(launcher: Launcher) -> list[str]:
    # Paddle speaks to etcd by a module that an old protoc made.
    more = ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python"] if launcher is PADDLE else []
    return [*more, f"OMP_NUM_THREADS={environment()['OMP_NUM_THREADS']}"]


def start(job: Job) -> dict[str, float]:
    return {"first step": job.await_steps(len(job.nodes), job.began) - job.began}


def process_lost(job: Job) -> dict[str, Cell]:
    """All processes of a node are killed; its machine says so to the others."""
    return lost(job, by_link=False)


def machine_lost(job: Job) -> dict[str, Cell]:
    """Nothing comes from it any more."""
    return lost(job, by_link=True)


def lost(job: Job, by_link: bool) -> dict[str, Cell]:
    job.await_steps(len(job.nodes), job.began)
    victim = job.nodes[-1]
    begin = now()
    if by_link:
        victim.host.link("down")
    victim.kill()
    stepped = job.await_steps(len(job.nodes) - 1, begin)
    others = [life for life in job.lives() if life.node != victim.number and life.world == len(job.nodes)]
    ends = [life.alive[-1] for life in others if life.alive and life.alive[-1] > begin]
    noticed: Cell = max(ends) - begin if ends else "no sign of the old ranks after the loss"
    return {"noticed": noticed, "first step": stepped - begin}


def leader_killed(job: Job) -> dict[str, float]:
    job.await_steps(len(job.nodes), job.began)
    leader = job.leader
    assert leader is not None
    begin = now()
    leader.stop()
    try:
        time.sleep(2 * LEASE)
        stepped = job.await_steps(len(job.nodes), now())
        return {"pause": job.longest_pause(begin, stepped + 0.01)}
    finally:
        leader.start()
        leader.until_healthy()


def etcd_down(job: Job) -> dict[str, float]:
    job.await_steps(len(job.nodes), job.began)
    assert job.where.etcd is not None
    members = job.where.etcd.members
    begin = now()
    for member in members:
        member.stop()
    try:
        time.sleep(OUTAGE)
    finally:
        for member in members:
            member.start()
        for member in members:
            member.until_healthy()
    stepped = job.await_steps(len(job.nodes), now())
    return {"pause": job.longest_pause(begin, stepped + 0.01)}


def frozen(job: Job) -> dict[str, float]:
    """A node stands still for two leases, and goes on. Without a newer round the old one goes on too."""
    job.await_steps(len(job.nodes), job.began)
    victim = job.nodes[-1]
    begin = now()
    victim.freeze(True)
    try:
        time.sleep(2 * LEASE)
    finally:
        thawed = now()
        victim.freeze(False)
    # The others stand still soon after it.
    stepped = job.await_steps(None, begin + 1)
    newer = [life.alive[0] for life in job.lives() if life.alive and life.alive[0] > begin]
    old = [
        life for life in job.lives() if life.node == victim.number and life.alive and life.alive[0] < begin
    ]
    deadline = thawed + STAYS
    # Until each has been silent for a second.
    while now() < deadline and any(now() - max(life.alive[-1], thawed) < 1 for life in old):
        time.sleep(0.1)
        job.lives()
    last = max(life.alive[-1] for life in old)
    beside = max(0.0, last - max(thawed, min(newer))) if newer else 0.0
    return {"first step": stepped - begin, "beside the new round": beside}


@dataclass(frozen=True)
class Story:
    """An event of a job, and its figures by name, each a row."""

    title: str
    happens: Callable[[Job], Mapping[str, Cell]]
    figures: dict[str, str]
    elastic: bool = True
    etcd_only: bool = False
    promises: dict[str, Promise] = field(default_factory=dict)


STORIES = [
    Story("3 nodes start", start, {"first step": "to the first step of all"}, elastic=False),
    Story(
        "all processes of a node are killed",
        process_lost,
        {"noticed": "to the end of the other nodes' ranks", "first step": "to the first step without it"},
    ),
    Story(
        "a machine is lost",
        machine_lost,
        {"noticed": "to the end of the other nodes' ranks", "first step": "to the first step without it"},
        promises={"noticed": Promise("loss", most=LEASE + 0.8)},
    ),
    Story(
        "a node is frozen for two leases",
        frozen,
        {
            "first step": "to the next step",
            "beside the new round": "its old rank runs beside a new round",
        },
        promises={"beside the new round": Promise("one world", most=1.0)},
    ),
    Story(
        "etcd's leader is killed, the one member that rivals know",
        leader_killed,
        {"pause": "longest time without a step"},
        etcd_only=True,
    ),
    Story(
        f"etcd is down for {OUTAGE:.0f} s, elastic job",
        etcd_down,
        {"pause": "longest time without a step"},
        etcd_only=True,
    ),
    Story(
        f"etcd is down for {OUTAGE:.0f} s, fixed number of nodes",
        etcd_down,
        {"pause": "longest time without a step"},
        elastic=False,
        etcd_only=True,
        promises={"pause": Promise("outage", most=2.0)},
    ),
]


def can(launcher: Launcher, where: Where, story: Story) -> Cell | None:
    """Why there is no figure of a launcher, if so."""
    if not launcher.version:
        return NOT_INSTALLED
    client = {TORCHRUN: "etcd", PADDLE: "etcd3"}.get(launcher)
    if where.etcd is not None and client is not None and not has_module(launcher, client):
        return f"{client} {NOT_INSTALLED}"
    if where.etcd is None and launcher is PADDLE and story.elastic:
        return "no elastic jobs"
    return None


@functools.cache
def has_module(launcher: Launcher, name: str) -> bool:
    probe = [launcher.python, "-c", f"import {name}"]
    env = environment() | dict(word.split("=") for word in variables(launcher))
    return not subprocess.run(probe, cwd="/", env=env, capture_output=True, check=False).returncode


@contextlib.contextmanager
def machines(folder: Path) -> Iterator[tuple[list[Node], Host]]:
    with hosts(4) as made, ExitStack() as stack:
        groups = [stack.enter_context(cgroup(f"bench-{os.getpid()}-{number}")) for number in range(3)]
        yield [Node(at, made[at], group, folder, folder) for at, group in enumerate(groups)], made[3]


def measure_nodes(session: Session) -> None:
    """Three hosts, 1 rank each; a lease of 6 s, and 1 s for nodes that may come (Paddle: 10 s, 5 s)."""
    if reason := missing():
        print(f"nodes: not measured: {reason}", flush=True)
        return
    with machines(session.folder) as (nodes, server):
        places = [(server.ip, onto(server))] * 3
        # What torchrun speaks.
        with EtcdCluster(session.folder / "etcd", places=places, options=["--enable-v2=true"]) as etcd:
            for story in STORIES:
                for where in (Where("the master", None), Where("etcd", etcd)):
                    if where.etcd is not None or not story.etcd_only:
                        rows(session, story, where, nodes)


def rows(session: Session, story: Story, where: Where, nodes: list[Node]) -> None:
    cells: dict[str, dict[str, Cell]] = {name: {} for name in story.figures}
    for launcher in (RLAUNCH, RUN, PADDLE, TORCHRUN):
        seen = can(launcher, where, story)
        if seen is None:
            try:
                with Job(launcher, where, nodes, session.folder, story.elastic) as job:
                    figures = story.happens(job)
            except Late as error:
                seen = str(error).removeprefix(f"{launcher.title}: ")
            except (AssertionError, ValueError) as error:
                seen = f"not measured ({error})"
        for name in story.figures:
            cells[name][launcher.name] = figures[name] if seen is None else seen
    for name, text in story.figures.items():
        title = f"{story.title}: {text}, at {where.title}"
        session.row(title, cells[name], "s", story.promises.get(name))
