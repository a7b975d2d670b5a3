"""Notices of preemption to one of two nodes: the ranks of both stop at one step, and lose no checkpoint."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import cases
from etcd import Etcd
from launching import TALKING, Ended, Place, free_ports, until
from steps import PREEMPTED, STEPS, TERMINATED, ask, checkpoints, events, state_after, variables

BACKENDS = ["paddle master", "paddle etcd", "c10d", "static"]


def command(backend: str, node: int, port: int, ranks: int, etcd: int) -> list[str]:
    """A launcher's module and options."""
    if backend.startswith("paddle"):
        # A run has a port of its own for the master, and a job of its own at etcd.
        at = {
            "paddle master": [f"--master=127.0.0.1:{port}", f"--rank={node}"],
            "paddle etcd": [f"--master=etcd://127.0.0.1:{etcd}", f"--job_id={port}"],
        }
        return ["rlaunch", "--nnodes=2", *at[backend], f"--nproc_per_node={ranks}", f"--log_dir=log.{node}",
                "--host=127.0.0.1"]  # fmt: skip
    where = {
        "c10d": ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job"],
        "static": [f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}"],
    }
    return [
        "rlaunch.run",
        "--nnodes=2",
        *where[backend],
        f"--nproc-per-node={ranks}",
        f"--log-dir=log.{node}",
    ]


class TwoNodes:
    """Two launchers of one job on this machine."""

    def __init__(self, folder: Path, backend: str, ranks: tuple[int, int], etcd: Etcd | None = None) -> None:
        self.folder, self.backend, self.ranks = folder, backend, ranks
        self.etcd_port = etcd.port if etcd else 0
        self.launchers: list[subprocess.Popen[bytes]] = []

    def runtime(self, node: int) -> Path:
        return self.folder / f"run.{node}"

    @contextlib.contextmanager
    def run(self, **more: str) -> Iterator[list[subprocess.Popen[bytes]]]:
        port, pipes = free_ports(1), {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with contextlib.ExitStack() as cleaned:
            launchers = []
            for node, ranks in enumerate(self.ranks):
                options = command(self.backend, node, port, ranks, self.etcd_port)
                words = [sys.executable, "-m", *options, "train.py"]
                env = variables(self.runtime(node), **more)
                process = subprocess.Popen(words, cwd=self.folder, env=env, **pipes)  # type: ignore[call-overload]
                launchers.append(cleaned.enter_context(Place.cleaned(process)))
            yield launchers

    def await_ready(self, launchers: list[subprocess.Popen[bytes]]) -> None:
        def are_ready() -> bool:
            assert all(launcher.poll() is None for launcher in launchers), self.ends(launchers)
            return all((self.folder / f"ready.{rank}").exists() for rank in range(sum(self.ranks)))

        until(are_ready, "the ranks")

    def ends(self, launchers: list[subprocess.Popen[bytes]]) -> list[Ended]:
        return [Place.wait(launcher) for launcher in launchers]

    def log_dir(self, node: int) -> Path:
        folder = self.folder / f"log.{node}"
        return folder if self.backend.startswith("paddle") else next(folder.iterdir())


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", range(cases(2, 13, in_ci=13)))
def test_a_random_notice_ends_both_nodes_at_one_step(
    case: int, backend: str, tmp_path: Path, etcd: Etcd
) -> None:
    rng = random.Random(f"{backend} {case}")
    job = TwoNodes(tmp_path, backend, (rng.randint(1, 2), rng.randint(1, 2)), etcd)
    node, how, after = rng.randrange(2), rng.choice(["SIGTERM", "rlaunch preempt"]), rng.random() * 0.5
    (tmp_path / "train.py").write_text(STEPS)
    with job.run(STEP_SECONDS=str(rng.choice([0.0004, 0.002, 0.02]))) as launchers:
        job.await_ready(launchers)
        time.sleep(after)
        if how == "SIGTERM":
            launchers[node].send_signal(signal.SIGTERM)
        else:
            ask(job.runtime(node), "preempt", "--no-wait")
        ends = job.ends(launchers)
    assert [end.status for end in ends] == [PREEMPTED] * 2, [end.stderr for end in ends]
    saved = checkpoints(tmp_path)
    assert len(saved) == sum(job.ranks)
    ((step, state),) = set(saved)
    assert state == state_after(step)
    assert [events(job.log_dir(one), "stop_step")[0]["step"] for one in range(2)] == [step] * 2
    with job.run(LAST_STEP=str(step + 3)) as launchers:
        ends = job.ends(launchers)
    assert [end.status for end in ends] == [0, 0], [end.stderr for end in ends]
    assert set(checkpoints(tmp_path, "finished")) == {(step + 3, state_after(step + 3))}


def test_nodes_agree_without_control_sockets(tmp_path: Path) -> None:
    """Where their folders cannot be made."""
    job = TwoNodes(tmp_path, "c10d", (1, 1))
    (tmp_path / "train.py").write_text(STEPS)
    for node in range(2):
        job.runtime(node).touch()
    with job.run(STEP_SECONDS="0.002") as launchers:
        job.await_ready(launchers)
        launchers[1].send_signal(signal.SIGTERM)
        ends = job.ends(launchers)
    assert [end.status for end in ends] == [PREEMPTED] * 2, [end.stderr for end in ends]
    assert len(set(checkpoints(tmp_path))) == 1
    assert len({events(job.log_dir(one), "stop_step")[0]["step"] for one in range(2)}) == 1


def test_notices_to_both_nodes_at_once_are_one(tmp_path: Path) -> None:
    job = TwoNodes(tmp_path, "c10d", (2, 1))
    (tmp_path / "train.py").write_text(STEPS)
    with job.run() as launchers:
        job.await_ready(launchers)
        for launcher in launchers:
            launcher.send_signal(signal.SIGTERM)
        ends = job.ends(launchers)
    assert [end.status for end in ends] == [PREEMPTED] * 2, [end.stderr for end in ends]
    assert len(set(checkpoints(tmp_path))) == 1


@pytest.mark.parametrize("backend", ["paddle master", "c10d", "static"])
def test_a_users_stop_is_no_preemption_on_any_node(backend: str, tmp_path: Path) -> None:
    job = TwoNodes(tmp_path, backend, (1, 1))
    (tmp_path / "train.py").write_text(STEPS)
    with job.run() as launchers:
        job.await_ready(launchers)
        ask(job.runtime(1), "stop", "--no-wait")
        ends = job.ends(launchers)
    assert [end.status for end in ends] == [TERMINATED] * 2, [end.stderr for end in ends]
    assert len(set(checkpoints(tmp_path))) == 1


HEAD = f"""
import os, sys, time
import rlaunch
rank, step = os.environ.get("PADDLE_TRAINER_ID") or os.environ["RANK"], 0
{TALKING}
"""
# Makes steps until it is to stop.
STOPS = f"""
{HEAD}
while not rlaunch.should_stop(step):
    tell("ready")
    time.sleep(0.01)
    step += 1
"""
# Rank 0 saves for as long as the file `saved` is missing.
SAVES_LONG = f"""
{STOPS}
if rank == "0":
    await_file("saved")
"""


# A node of a static rendezvous does not wait for the others.
@pytest.mark.parametrize("backend", ["paddle master", "paddle etcd", "c10d"])
def test_a_late_sigterm_to_a_node_whose_ranks_have_ended_is_the_same_notice(
    backend: str, tmp_path: Path, etcd: Etcd
) -> None:
    job = TwoNodes(tmp_path, backend, (1, 1), etcd)
    (tmp_path / "train.py").write_text(SAVES_LONG)
    with job.run() as launchers:
        job.await_ready(launchers)
        # c10d numbers the nodes as they come.
        first = next(node for node in range(2) if events(job.log_dir(node), "rank_started")[0]["rank"] == 1)
        late = launchers[first]
        launchers[1 - first].send_signal(signal.SIGTERM)
        until(lambda: events(job.log_dir(first), "rank_ended"), "the end of rank 1")
        late.send_signal(signal.SIGTERM)
        until(lambda: events(job.log_dir(first), "signal"), "the launcher, which reads the signal")
        (tmp_path / "saved").touch()
        ends = job.ends(launchers)
    assert [end.status for end in ends] == [PREEMPTED] * 2, [end.stderr for end in ends]


# Makes no further step, and ends when less than 100 s are left.
WATCHES_TIME = f"""
{HEAD}
rlaunch.should_stop(0)
tell("ready")
until(lambda: (left := rlaunch.time_left()) is not None and left < 100, "a shorter notice")
tell("short")
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_of_both_nodes_learn_of_a_shorter_notice_to_one(
    backend: str, tmp_path: Path, etcd: Etcd
) -> None:
    job = TwoNodes(tmp_path, backend, (1, 1), etcd)
    (tmp_path / "train.py").write_text(WATCHES_TIME)
    with job.run(RLAUNCH_PREEMPT_TIME="3600") as launchers:
        job.await_ready(launchers)
        ask(job.runtime(0), "preempt", "--no-wait")
        until(lambda: all(events(job.log_dir(node), "stop_step") for node in range(2)), "the agreement")
        assert not list(tmp_path.glob("short.*"))
        launchers[1].send_signal(signal.SIGTERM)
        ends = job.ends(launchers)
    assert sorted(path.name for path in tmp_path.glob("short.*")) == ["short.0", "short.1"]
    assert [end.status for end in ends] == [0, 0], [end.stderr for end in ends]


# Saves for as long as the file `go` is missing.
SAVES = f"""
{STOPS}
tell("saves")
await_file("go")
tell("saved")
"""


@pytest.mark.parametrize("backend", ["master", "etcd"])
def test_a_node_that_joins_does_not_stop_ranks_that_save(backend: str, tmp_path: Path, etcd: Etcd) -> None:
    port = free_ports(1)
    at = {"master": [f"--master=127.0.0.1:{port}"], "etcd": [f"--master=etcd://127.0.0.1:{etcd.port}"]}[
        backend
    ]
    options = ["--nnodes=1:2", *at, f"--job_id={port}", "--min_round_time=0", "--elastic_timeout=1"]
    (tmp_path / "train.py").write_text(SAVES)

    def launcher(node: int) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "rlaunch", *options, f"--log_dir=log.{node}", "train.py"]
        with (tmp_path / f"output.{node}").open("wb") as output:
            return subprocess.Popen(
                words, cwd=tmp_path, env=variables(tmp_path / f"run.{node}"), stdout=output, stderr=output
            )

    def printed(node: int) -> str:
        return (tmp_path / f"output.{node}").read_text()

    with Place.cleaned(launcher(0)) as first:
        until(lambda: (tmp_path / "ready.0").exists(), "the rank")
        ask(tmp_path / "run.0", "preempt", "--no-wait")
        until(lambda: (tmp_path / "saves.0").exists(), "the agreement")
        with Place.cleaned(launcher(1)) as newcomer:
            until(lambda: "waiting" in printed(1), "the newcomer, which waits")
            (tmp_path / "go").touch()
            assert first.wait(60) == PREEMPTED, printed(0)
            assert newcomer.wait(60) == PREEMPTED, printed(1)
            assert "rlaunch: the job was preempted: its ranks stopped at step " in printed(1)
    assert (tmp_path / "saved.0").exists()


def test_nodes_without_a_rendezvous_are_stopped_by_sigterm(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.script(STEPS)
    # The other node does not exist: ranks do not talk with each other.
    options = ["--ips=10.99.0.1,10.99.0.2", "--host=10.99.0.1", f"--start_port={free_ports(1)}"]
    with place.start(*options, "--nproc_per_node=1", "train.py", env=variables(tmp_path / "run")) as launcher:
        place.ready(1)
        launcher.send_signal(signal.SIGTERM)
        ended = place.wait(launcher)
    assert ended.status == 128 + signal.SIGTERM, ended.stderr
    assert "they have no common rendezvous" in ended.stderr
    assert (tmp_path / "terminated.0").exists()
