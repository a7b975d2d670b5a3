"""Jobs of nodes that rendezvous, on hosts of their own: started, watched, cut off."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import preloaded
import psutil
from hosts import Host
from launching import LIMIT, TALKING, Ended, environment, gone, supervisor_of, until
from torch_launching import STEERING

NODE_LOST, STORE_LOST, NOT_MET, USAGE = 75, 74, 73, 2
FAILED_ELSEWHERE, STOPPED_ELSEWHERE = 76, 77
PADDLE, TORCH = "rlaunch", "rlaunch.run"
PADDLES = "paddle.distributed.launch"

# A rank of either launcher. `live` writes down that this round runs now.
RANK = f"""
import json, os, signal, sys, time
node, attempt = os.environ["NODE"], int(os.environ.get("RLAUNCH_RANK_KEY", "/0").split("/")[1])
rank = int(os.environ.get("PADDLE_TRAINER_ID") or os.environ["RANK"])
world = int(os.environ.get("PADDLE_TRAINERS_NUM") or os.environ["WORLD_SIZE"])
{TALKING}
# Where Python's handler would only say where it was.
signal.signal(signal.SIGINT, signal.SIG_DFL)
life = open(f"life.{{node}}.{{attempt}}.{{rank}}", "a", 1)

def live():
    life.write(f"{{time.monotonic()}} {{world}}\\n")

def live_until(name):
    while not os.path.exists(name):
        live()
        time.sleep(0.01)

live()
"""

# Sums whole numbers over all ranks, by a star around rank 0 that only this world's network can make.
STAR = """
import socket
endpoints = os.environ.get("PADDLE_TRAINER_ENDPOINTS") or os.environ["MASTER_ADDR"] + ":6000"
host, port = endpoints.split(",")[0].split(":")
if rank == 0:
    star = socket.create_server((host, int(port)), reuse_port=True)

if rank == 0:
    rays = [star.accept()[0].makefile("rw") for _ in range(1, world)]
else:
    while True:
        try:
            ray = socket.create_connection((host, int(port)), 20)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    ray.settimeout(None)
    ray = ray.makefile("rw")

def hear(ray):
    line = ray.readline()
    if not line:
        raise ConnectionResetError("a peer has gone")
    return json.loads(line)

def all_reduce(own):
    if rank == 0:
        total = [sum(column) for column in zip(own, *map(hear, rays), strict=True)]
        for ray_ in rays:
            ray_.write(json.dumps(total) + "\\n")
            ray_.flush()
        return total
    ray.write(json.dumps(own) + "\\n")
    ray.flush()
    return hear(ray)
"""


class At(Protocol):
    """Where the nodes of a job find each other, said in each launcher's words."""

    def paddle(self) -> list[str]: ...

    def torch(self) -> list[str]: ...

    def close(self) -> None: ...


class AtMaster:
    """The launcher on this host serves."""

    ports = itertools.count(29700)

    def __init__(self, on: Host) -> None:
        self.host, self.port = on.ip, next(self.ports)

    def paddle(self) -> list[str]:
        return [f"--master={self.host}:{self.port}", "--job_id=job"]

    def torch(self) -> list[str]:
        return ["--rdzv-backend=c10d", f"--rdzv-endpoint={self.host}:{self.port}", "--rdzv-id=job"]

    def close(self) -> None:
        pass


# Made anew for each job, by its first host.
Backend = Callable[[Host], At]
BACKENDS: dict[str, Backend] = {"master": AtMaster}


def joining(module: str, seconds: float, lease: float = 10) -> list[str]:
    """How long nodes wait for others, as options of either launcher."""
    if module == TORCH:
        return [
            f"--rdzv-conf=join_timeout={seconds:.0f},last_call_timeout=1,keep_alive_interval={lease / 2:.0f},"
            "keep_alive_max_attempt=2"
        ]
    return [f"--join_timeout={seconds}", f"--heartbeat_timeout={lease}", "--elastic_timeout=2"]


class Node:
    """A launcher, with all that it says and writes."""

    def __init__(self, folder: Path, label: int, process: subprocess.Popen[bytes]) -> None:
        self.folder, self.label, self.process = folder, label, process

    def stderr(self) -> str:
        return (self.folder / f"err.{self.label}").read_text(errors="replace")

    def await_message(self, pattern: str, limit: float = LIMIT) -> re.Match[str]:
        """The messages that match this."""

        def found() -> re.Match[str] | None:
            # It may have said it last.
            ended = self.process.poll() is not None
            match = re.search(pattern, self.stderr())
            assert match or not ended, f"{pattern}: the launcher ended first: {self.stderr()}"
            return match

        match: re.Match[str] = until(found, f"{pattern} of node {self.label}", limit)
        return match

    def own_folder(self) -> Path | None:
        found = [path.parent for path in (self.folder / f"log.{self.label}").glob("**/rlaunch/events.jsonl")]
        return found[0] if found else None

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """Its events, or those of this name."""
        own = self.own_folder()
        text = (own / "events.jsonl").read_text() if own else ""
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in lines if name in (None, line["event"])]

    def await_round(self, world: int, number: int | None = None, limit: float = LIMIT) -> dict[str, Any]:
        """The round that runs here, once all its ranks here have started; and it is this one."""

        def found() -> dict[str, Any] | None:
            assert self.process.poll() is None, f"the launcher ended first: {self.stderr()}"
            rounds = self.events("round_started")
            if not rounds or len(self.events("round_ended")) == len(rounds):
                return None
            last = rounds[-1]
            started = [one for one in self.events("rank_started") if one["attempt"] == last["attempt"]]
            fits = last["world_size"] == world and number in (None, last["round"])
            return last if fits and started else None

        last: dict[str, Any] = until(found, f"a round of {world} on node {self.label}", limit)
        return last

    def result(self) -> dict[str, Any]:
        own = self.own_folder()
        assert own is not None
        result: dict[str, Any] = json.loads((own / "result.json").read_text())
        return result

    def end(self, limit: float = LIMIT) -> Ended:
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"node {self.label} still runs; {self.state_of_job()}") from None
        return Ended(self.process.returncode, (self.folder / f"out.{self.label}").read_bytes(), self.stderr())

    def state_of_job(self) -> str:
        """The output and the last events of all nodes, and the kernel's view of this launcher's threads."""
        parts = [f"{path.name}: {path.read_text(errors='replace')}" for path in self.folder.glob("err.*")]
        for path in self.folder.glob("log.*/**/rlaunch/events.jsonl"):
            parts.append(f"{path}: {''.join(path.read_text().splitlines(keepends=True)[-8:])}")
        here = psutil.Process(self.process.pid)
        for process in [here, *here.children(recursive=True)]:
            for task in Path(f"/proc/{process.pid}/task").iterdir():
                words = [(task / name).read_text().strip() for name in ("comm", "wchan")]
                parts.append(f"{process.pid}/{task.name} {words}")
        return "\n".join(parts)

    def ranks(self) -> list[psutil.Process]:
        """Its ranks that live."""
        found = []
        ended = {one["pid"] for one in self.events("rank_ended")}
        for one in self.events("rank_started"):
            if one["pid"] not in ended and psutil.pid_exists(one["pid"]):
                found.append(psutil.Process(one["pid"]))
        return found

    def kill(self, both: bool = True) -> float:
        """Kills the launcher, whole or its front alone; when, on the monotonic clock."""
        killed = [supervisor_of(self.process)] if both else []
        now = time.monotonic()
        for process in killed:
            process.kill()
        self.process.kill()
        self.process.wait()
        return now


class Job:
    """The launchers of one job, none of which outlives it."""

    def __init__(self, folder: Path, on: list[Host], backend: Backend, nnodes: str = "2") -> None:
        self.folder, self.on, self.nnodes = folder, on, nnodes
        self.backend = backend(on[0])
        self.nodes: list[Node] = []

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            if node.process.poll() is None:
                node.process.kill()
                node.process.wait()
        self.backend.close()

    def script(self, body: str, name: str = "train.py", framework: str | None = None) -> str:
        """Writes a script of a rank. `framework`: it runs where this one is imported already."""
        head = preloaded.head(framework) if framework else ""
        (self.folder / name).write_text(head + RANK + textwrap.dedent(body))
        return name

    def command(self, module: str, *args: str) -> list[str]:
        where = self.backend.torch() if module == TORCH else self.backend.paddle()
        label = len(self.nodes)
        log = f"--log-dir=log.{label}" if module == TORCH else f"--log_dir=log.{label}"
        return [sys.executable, "-m", module, f"--nnodes={self.nnodes}", *where, log, *args]

    def node(self, on: int, *args: str, module: str = PADDLE, **variables: str) -> Node:
        """Starts a launcher on a host."""
        return self.run(on, self.command(module, *args), **variables)

    def run(self, on: int, command: list[str], **variables: str) -> Node:
        label = len(self.nodes)
        env = {name: value for name, value in environment(**variables).items() if not STEERING.match(name)}
        env |= {"NODE": str(label), "RLAUNCH_MIN_ROUND_TIME": "0", **variables}
        with (
            open(self.folder / f"out.{label}", "wb") as out,
            open(self.folder / f"err.{label}", "wb") as err,
        ):
            pipes = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            # A group none of whose parents is in its session ignores SIGTSTP: pytest's own may be such.
            process = self.on[on].run(command, cwd=self.folder, env=env, preexec_fn=os.setpgrp, **pipes)
        self.nodes.append(Node(self.folder, label, process))
        return self.nodes[-1]

    def start(self, *args: str, count: int | None = None, **options: Any) -> list[Node]:
        """Starts a launcher on each host."""
        return [self.node(on, *args, **options) for on in range(count or len(self.on))]

    def await_files(self, *names: str) -> None:
        """Waits until ranks have written these."""
        for name in names:
            until(lambda name=name: (self.folder / name).exists(), name)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def await_text(self, name: str, fits: Callable[[str], bool]) -> None:
        """Waits until what is in this file fits."""
        path = self.folder / name
        until(lambda: path.exists() and fits(path.read_text()), name)

    def finish(self) -> None:
        """Lets ranks that wait for it end."""
        (self.folder / "finish").touch()

    def end_successfully(self, *nodes: Node, limit: float = LIMIT) -> None:
        for node in nodes or self.nodes:
            ended = node.end(limit)
            assert ended.status == 0, (node.label, ended.stderr, ended.stdout.decode(errors="replace"))

    def lives(self) -> Iterator[tuple[int, int, float, float]]:
        """Of each rank that ever ran: the round, its world, when it began and when it was last there."""
        for node in self.nodes:
            rounds = {one["attempt"]: one["round"] for one in node.events("round_started")}
            for path in self.folder.glob(f"life.{node.label}.*"):
                lines = [
                    line.split() for line in path.read_text().splitlines(keepends=True) if line[-1] == "\n"
                ]
                attempt = int(path.name.split(".")[2])
                if lines:
                    yield rounds[attempt], int(lines[0][1]), float(lines[0][0]), float(lines[-1][0])

    def check_one_world(self) -> dict[int, int]:
        """Never did ranks of two rounds run at once. The rounds' worlds."""
        spans: dict[int, tuple[float, float]] = {}
        worlds: dict[int, int] = {}
        for number, world, began, ended in self.lives():
            first, last = spans.get(number, (began, ended))
            spans[number] = (min(first, began), max(last, ended))
            assert worlds.setdefault(number, world) == world, (number, worlds)
        order = sorted(spans)
        for one, next_one in itertools.pairwise(order):
            assert spans[one][1] < spans[next_one][0], (one, next_one, spans)
        return {number: worlds[number] for number in order}


# The real Paddle's launcher imports Paddle first, which takes a busy machine longer than other things do.
IMPORT_LIMIT = 3 * LIMIT


def await_next_round(node: Node) -> None:
    """Waits until this node's first rank of the second round, in which it is alone, has begun."""
    node.await_round(1, 2)
    life = node.folder / f"life.{node.label}.1.0"
    until(lambda: life.exists() and "\n" in life.read_text(), "the rank of the next round")


# The second node's rank notes that it was asked to end, and continues.
NOTES_SIGTERM = 'if node == "1": signal.signal(signal.SIGTERM, lambda *_: tell(f"asked.{node}"))\n'


def freeze_until_lost(node: Node, await_loss: Callable[[], object], within: float = 1) -> None:
    """Freezes a node with its rank, which runs NOTES_SIGTERM, until the other node has acted on its loss.

    The rank is killed within so many seconds then, by the supervisor process alone, and not asked.
    """
    (rank,) = node.ranks()
    launcher, supervisor = psutil.Process(node.process.pid), supervisor_of(node.process)
    for process in (launcher, supervisor, rank):
        process.suspend()
    try:
        await_loss()
    finally:
        for process in (supervisor, rank):
            # The supervisor process may have killed the rank already.
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
    thawed = time.monotonic()
    try:
        until(lambda: gone(rank), "the end of the thawed rank")
    finally:
        launcher.resume()
    (life,) = node.folder.glob(f"life.{node.label}.0.*")
    last = float(life.read_text().split()[-2])
    print(f"the thawed rank ran for {max(0.0, last - thawed) * 1000:.0f} ms")
    assert last - thawed < within
    assert not list(node.folder.glob(f"asked.{node.label}.*")), "it could have saved over a newer checkpoint"


def start_at_once(job: Job, on: tuple[int, ...], *args: str) -> None:
    """Starts launchers on these hosts at the same moment: all are there already and wait for it."""
    wait = 'echo > "here.$NODE"; while [ ! -e go ]; do :; done; exec "$@"'
    for host in on:
        job.run(host, ["sh", "-c", wait, "sh", *job.command(PADDLE, *args)])
    job.await_files(*(f"here.{node}" for node in range(len(on))))
    (job.folder / "go").touch()
