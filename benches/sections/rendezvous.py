"""Nodes that find each other, at a master that one of them is and at etcd: start, loss, restart."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
from bench_launchers import PADDLE, RLAUNCH, RUN, TORCHRUN, Launcher, environment
from figures import NOT_INSTALLED, NOT_MEASURED, Cell, Promise
from machines import Etcd
from running import HEAD, Late
from session import Session

NODES = 2
# Writes when a rank runs, with the life of its node. Rank 1 fails in its first life once `fail` exists.
BODY = """
life = len([name for name in os.listdir(here) if name.startswith("up.") and name.endswith(f".{rank}")])
tell(f"up.{life}", time.monotonic())
while not os.path.exists(os.path.join(here, "end")):
    if rank == 1 and life == 0 and os.path.exists(os.path.join(here, "fail")):
        tell("failed", time.monotonic())
        os._exit(3)
    time.sleep(0.005)
"""
NOT_NOTICED = 30.0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class Job:
    """The same launcher on each of two nodes, both of them this machine."""

    def __init__(self, launcher: Launcher, parent: Path, etcd: int | None, options: list[str]) -> None:
        self.launcher = launcher
        self.folder = Path(tempfile.mkdtemp(dir=parent, prefix=f"{launcher.name}."))
        self.script = self.folder / "rank.py"
        self.script.write_text(HEAD + BODY)
        name, port = f"job{free_port()}", free_port()
        self.port = port
        if launcher in (RLAUNCH, PADDLE):
            master = f"127.0.0.1:{port}" if etcd is None else f"etcd://127.0.0.1:{etcd}"
            rendezvous = ["--nnodes", str(NODES), "--master", master, "--job_id", name]
        else:
            backend = ("c10d", port) if etcd is None else ("etcd", etcd)
            at = ["--rdzv-backend", backend[0], "--rdzv-endpoint", f"localhost:{backend[1]}"]
            rendezvous = ["--nnodes", str(NODES), "--nproc-per-node", "1", *at, "--rdzv-id", name]
        self.options = [*rendezvous, *options]
        self.began = time.monotonic()
        self.nodes = [self.start(node) for node in range(NODES)]

    def start(self, node: int) -> subprocess.Popen[bytes]:
        dashes = "_" if self.launcher in (RLAUNCH, PADDLE) else "-"
        logs = [f"--log{dashes}dir", str(self.folder / f"log{node}")]
        # The module that Paddle speaks to etcd by was made by an old protoc.
        env = environment() | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
        command = [self.launcher.python, "-m", self.launcher.module, *self.options, *logs, str(self.script)]
        sink = subprocess.DEVNULL
        return subprocess.Popen(
            command, cwd=self.folder, env=env, stdin=sink, stdout=sink, stderr=sink, start_new_session=True
        )

    def times(self, name: str, ranks: int = NODES, limit: float = 90) -> list[float]:
        """When each of these ranks has written the file of this name."""
        deadline = time.monotonic() + limit
        paths = [self.folder / f"{name}.{rank}" for rank in range(ranks)]
        while not all(path.exists() for path in paths):
            if time.monotonic() > deadline:
                again = " again" if name != "up.0" else ""
                raise Late(f"{self.launcher.title}: not all ranks run{again} within {limit:g} s")
            time.sleep(0.002)
        return [float(path.read_text()) for path in paths]

    def serving(self) -> int:
        """The node whose launcher serves the master."""
        for number, node in enumerate(self.nodes):
            launcher = psutil.Process(node.pid)
            for process in [launcher, *launcher.children()]:
                ports = [at.laddr.port for at in process.net_connections() if at.status == psutil.CONN_LISTEN]
                if self.port in ports:
                    return number
        raise Late(f"{self.launcher.title}: no node serves the master")

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error: object) -> None:
        (self.folder / "end").touch()
        for node in self.nodes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(15)
            node.kill()
            node.wait()
        # Ranks of rivals that were left behind have seen that it is over.
        shutil.rmtree(self.folder, ignore_errors=True)


def both_up(launcher: Launcher, folder: Path, etcd: int | None) -> float:
    with Job(launcher, folder, etcd, []) as job:
        return (max(job.times("up.0")) - job.began) * 1000


def restarted(launcher: Launcher, folder: Path, etcd: int | None) -> float:
    options = ["--max-restarts", "1"]
    if launcher in (RLAUNCH, PADDLE):
        options = ["--elastic_level", "1", "--max_restart", "1"]
    if launcher is RLAUNCH:
        options += ["--restart_delay", "0"]
    with Job(launcher, folder, etcd, options) as job:
        job.times("up.0")
        (job.folder / "fail").touch()
        return (max(job.times("up.1")) - float((job.folder / "failed.1").read_text())) * 1000


def noticed(launcher: Launcher, folder: Path, etcd: int | None) -> float:
    """From SIGKILL to the launcher of one node to the end of the other's."""
    with Job(launcher, folder, etcd, []) as job:
        job.times("up.0")
        server = job.serving()
        killed = time.monotonic()
        os.kill(job.nodes[1 - server].pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.nodes[server].wait(NOT_NOTICED)
        return (time.monotonic() - killed) * 1000


def measure_rendezvous(session: Session) -> None:
    """Two nodes on this machine that find each other; 1 rank each, no framework imported by the ranks."""
    turns = session.amount(5, 2)
    has_etcd = bool(importlib.util.find_spec("etcd3"))

    def of(measure: object, etcd: int | None, launchers: list[Launcher]) -> dict[str, Cell]:
        cells: dict[str, Cell] = {}
        for launcher in launchers:
            if not launcher.version:
                cells[launcher.name] = NOT_INSTALLED
            elif etcd is not None and (launcher is TORCHRUN or (launcher is PADDLE and not has_etcd)):
                # torchrun needs an etcd of version 2, Paddle a module of Python's.
                cells[launcher.name] = NOT_MEASURED
            else:
                assert callable(measure)
                try:
                    times = [measure(launcher, session.folder, etcd) for _ in range(turns)]
                    cells[launcher.name] = statistics.median(times)
                except Late as error:
                    cells[launcher.name] = str(error).removeprefix(f"{launcher.title}: ")
        return cells

    all_launchers = [RLAUNCH, RUN, PADDLE, TORCHRUN]
    with Etcd(session.folder / "etcd") as server:
        for where, etcd in (("the master", None), ("etcd", server.port)):
            session.row(
                f"both launchers started to all ranks running, at {where}",
                of(both_up, etcd, all_launchers),
                "ms",
                Promise("start", most=500),
            )
            again = all_launchers if etcd else [RLAUNCH, RUN, TORCHRUN]
            session.row(
                f"a rank fails to all ranks running again, at {where}",
                of(restarted, etcd, again),
                "ms",
                Promise("restart", most=500),
            )
    session.row(
        f"a launcher killed to the other's end, at the master ({NOT_NOTICED:.0f} s: not noticed)",
        of(noticed, None, all_launchers),
        "ms",
        Promise("loss", most=1000),
    )
