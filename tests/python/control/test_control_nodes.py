"""``rlaunch status``, ``stacks`` and ``stop`` on jobs of several nodes, from any of them."""

from __future__ import annotations

import json
import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from effort import each
from elastic_jobs import BACKENDS, PADDLE, STOPPED_ELSEWHERE, TORCH, Backend, Job, Node, joining
from hanging_folder import hanging_folder
from hosts import Host
from jobs import Jobs, request
from launching import LIMIT, environment, supervisor_of, until
from multi_host import MultiHost
from test_control import check

# The second rank of the second node does something else, while all others wait in a collective, which the
# path of its file makes it.
ODD = """
def collective(path="/v/site-packages/torch/distributed/distributed_c10d.py"):
    source = "def all_reduce():\\n    sleep()\\n"
    exec(compile(source, path, "exec"), globals())

def load():
    tell("odd", rank)
    sleep()

collective()
print("rank", rank, "waits", flush=True)
tell("ready", os.getpid())
load() if node == "1" and int(os.environ.get("LOCAL_RANK", rank % 2)) == 1 else all_reduce()
"""
NODES = b'{"version": 1, "request": "nodes", "question": "status"}\n'


@pytest.fixture(params=[*BACKENDS, "etcd"])
def backend(request: pytest.FixtureRequest, made: MultiHost) -> Backend:
    if request.param == "etcd":
        return made.at(request.getfixturevalue("etcd"))
    return BACKENDS[request.param]


def runtime(node: int) -> str:
    """The folder of a node's control socket. Both nodes share this machine's files."""
    return f"run.{node}"


def start(job: Job, module: str, *options: str, body: str = ODD, prefix: Sequence[str] = ()) -> list[Node]:
    """Two launchers with two ranks each, which are there."""
    script = job.script(body)
    option = "--nproc-per-node=2" if module == TORCH else "--nproc_per_node=2"
    nodes = [
        job.run(
            on,
            [*prefix, *job.command(module, option, *options, script)],
            RLAUNCH_RUNTIME_DIR=str(job.folder / runtime(on)),
        )
        for on in range(2)
    ]
    job.await_files(*(f"ready.{rank}" for rank in range(4)))
    return nodes


def ask(job: Job, node: int, *args: str) -> subprocess.CompletedProcess[str]:
    """Runs ``rlaunch ARGS`` on a node."""
    command = [sys.executable, "-m", "rlaunch.control", *args]
    env = environment(RLAUNCH_RUNTIME_DIR=str(job.folder / runtime(node)))
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=job.folder, timeout=LIMIT)


def shown(job: Job, node: int, *args: str) -> Any:
    done = ask(job, node, *args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def await_text(job: Job, node: int, pattern: str, *args: str) -> str:
    def found() -> str:
        text = ask(job, node, *args).stdout
        return text if re.search(pattern, text, re.MULTILINE) else ""

    return str(until(found, pattern))


def stop(job: Job, *on: int) -> None:
    """Stops the job on one node, or on these where they have no common backend."""
    for node in on or (1,):
        assert ask(job, node, "stop").returncode == 0
    asked = on or (1,)
    statuses = [node.end().status for node in job.nodes]
    expected = [128 + signal.SIGTERM if node in asked else STOPPED_ELSEWHERE for node in range(2)]
    assert statuses == expected, statuses
    assert not [rank for node in job.nodes for rank in node.ranks()]


# The job's own grace period, which no test waits for.
LONG_GRACE = {PADDLE: "--grace_period=500", TORCH: "--shutdown-timeout=500"}
DEAF = """
signal.signal(signal.SIGTERM, lambda *_: tell("asked", os.getpid()))
tell("ready", os.getpid())
while True:
    sleep()
"""


@each("module", [PADDLE, TORCH])
def test_a_shorter_grace_period_of_a_stop_is_that_of_all_nodes(
    tmp_path: Path, made: MultiHost, backend: Backend, module: str
) -> None:
    with Job(tmp_path, made.on, backend) as job:
        start(job, module, LONG_GRACE[module], body=DEAF)
        done = ask(job, 1, "stop", "--grace_period=0.5")
        assert done.returncode == 0, done.stderr
        assert re.search(r": ranks \d, \d stopped after \d.*, exit status \d+$", done.stdout, re.MULTILINE)
        for node in job.nodes:
            ended = node.end()
            expected = STOPPED_ELSEWHERE if node is job.nodes[0] else 128 + signal.SIGTERM
            assert ended.status == expected, ended.stderr
            assert {one["exit"]["signal"]["name"] for one in node.events("rank_ended")} == {"SIGKILL"}


def test_a_shorter_grace_period_of_a_restart_is_that_of_all_nodes_in_this_round(
    tmp_path: Path, made: MultiHost, backend: Backend
) -> None:
    body = f"round = os.environ['RLAUNCH_ROUND']\n{DEAF}".replace(
        'tell("ready", os.getpid())', 'tell(f"ready.{round}", os.getpid()), tell("ready", os.getpid())'
    )
    with Job(tmp_path, made.on, backend) as job:
        nodes = start(job, PADDLE, LONG_GRACE[PADDLE], body=body)
        done = ask(job, 1, "restart", "--grace_period=0.5")
        assert done.returncode == 0, done.stderr
        job.await_files(*(f"ready.2.{rank}" for rank in range(4)))
        # It was that of the first round alone.
        assert ask(job, 0, "stop", "--no-wait").returncode == 0
        nodes[0].await_message(r"waiting up to 500 s for rank\(s\) \d, \d to stop")
        assert ask(job, 0, "stop", "--grace_period=0.5").returncode == 0
        assert [node.end().status for node in nodes] == [128 + signal.SIGTERM, STOPPED_ELSEWHERE]


@each("module", [PADDLE, TORCH])
def test_each_node_shows_the_ranks_of_all(
    tmp_path: Path, made: MultiHost, backend: Backend, module: str
) -> None:
    with Job(tmp_path, made.on, backend) as job:
        nodes = start(job, module)
        # The file may be there before its text.
        (odd,) = until(
            lambda: [text for it in tmp_path.glob("odd.*") if (text := it.read_text())], "the odd rank"
        )
        odd_rank = int(odd)
        pids = {rank: int(job.text(f"ready.{rank}")) for rank in range(4)}
        for node in range(2):
            status = shown(job, node, "status")
            assert [entry["error"] for entry in status["nodes"]] == [None, None], status
            ranks = [rank for entry in status["nodes"] for rank in entry["status"]["ranks"]]
            assert {rank["rank"]: rank["pid"] for rank in ranks} == pids
            assert all(rank["memory_bytes"] > 1 << 20 and rank["processes"] == 1 for rank in ranks), ranks
            assert [rank["rank"] for rank in status["ranks"]] == sorted(
                rank["rank"] for rank in status["ranks"]
            )
            assert status["launcher"] == nodes[node].process.pid
            own = shown(job, node, "status", "--this-node")
            assert [rank["pid"] for rank in own["ranks"]] == [rank["pid"] for rank in status["ranks"]]
            assert len(own["ranks"]) == 2
            assert len(own["nodes"]) == 1
            table = ask(job, node, "status").stdout
            assert re.search(r"^job \S+ \(pid \d+\): running for .*, 2 nodes$", table, re.MULTILINE), table
            rows = re.findall(r"^(\d) \S+ +rank (\d) +running .* (\d+) +\d+ %", table, re.MULTILINE)
            assert {int(rank): int(pid) for _, rank, pid in rows} == pids, table
            text = await_text(job, node, "the odd one", "stacks")
            assert re.search(r"^ranks [0-3, -]+ \(3 of 4\): waiting for other ranks in all_reduce", text), (
                text
            )
            conclusion = (
                rf"^rank {odd_rank} on node \d \(\S+\) is the odd one: the others wait in all_reduce, and "
                rf"rank {odd_rank} is in "
            )
            assert re.search(conclusion, text, re.MULTILINE), text
            if module == PADDLE:
                last = rf"^  last output, .* ago: rank {odd_rank} waits$"
                assert re.search(last, text, re.MULTILINE), text
            both = shown(job, node, "stacks")["nodes"]
            assert [len(entry["stacks"]["ranks"]) for entry in both] == [2, 2]
        stop(job)
        assert [node.result()["outcome"] for node in nodes] == ["stopped"] * 2


def test_a_node_that_does_not_answer_is_named(tmp_path: Path, made: MultiHost, backend: Backend) -> None:
    with Job(tmp_path, made.on, backend) as job:
        nodes = start(job, PADDLE, *joining(PADDLE, 60, 600))
        frozen = supervisor_of(nodes[1].process)
        frozen.suspend()
        try:
            status = shown(job, 0, "status")
            (late,) = [entry for entry in status["nodes"] if entry["error"]]
            assert late["error"] == "has not answered within 3 s"
            assert late["status"] is None
            (other,) = [entry for entry in status["nodes"] if not entry["error"]]
            assert len(other["status"]["ranks"]) == 2
            table = ask(job, 0, "status").stdout
            named = rf"^node {late['node']} \(\S+\) has not answered within 3 s$"
            assert re.search(named, table, re.MULTILINE), table
            assert len(re.findall(r"^\d .* running ", table, re.MULTILINE)) == 2, table
            text = ask(job, 0, "stacks").stdout
            assert "(2 of 4): waiting for other ranks in all_reduce" in text, text
            assert "has not answered within 10 s: its ranks may be those that the others wait for" in text, (
                text
            )
        finally:
            frozen.resume()
        until(
            lambda: [entry["error"] for entry in shown(job, 0, "status")["nodes"]] == [None, None],
            "both answer again",
        )
        stop(job)


def test_a_node_whose_log_folder_hangs_answers(tmp_path: Path, made: MultiHost) -> None:
    with (
        hanging_folder(made.on[1].run, tmp_path / "log.1") as logs,
        Job(tmp_path, made.on, BACKENDS["master"]) as job,
    ):
        start(job, PADDLE, prefix=logs.prefix)
        with logs.hangs():
            for asker in range(2):
                # More often than looks may hang.
                for _ in range(6):
                    status = shown(job, asker, "status")
                    assert [entry["error"] for entry in status["nodes"]] == [None, None], status
                    hangs, others = sorted(
                        (
                            [rank["silent_seconds"] for rank in entry["status"]["ranks"]]
                            for entry in status["nodes"]
                        ),
                        key=lambda silences: silences[0] is not None,
                    )
                    assert hangs == [None, None], status
                    assert None not in others, status
                stacks = shown(job, asker, "stacks")
                assert [len(entry["stacks"]["ranks"]) for entry in stacks["nodes"]] == [2, 2], stacks
        until(
            lambda: all(
                rank["silent_seconds"] is not None
                for entry in shown(job, 0, "status")["nodes"]
                for rank in entry["status"]["ranks"]
            ),
            "the logs' times",
        )
        stop(job)


def test_a_launcher_of_an_earlier_version(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    with jobs.job(ranks=1) as launcher:
        with jobs.connect() as client:
            status = request(client, b'{"version": 1, "request": "status"}\n')
        (path,) = jobs.sockets()
        path.rename(path.with_suffix(".new"))

        class Old(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                name = json.loads(self.rfile.readline())["request"]
                unknown = f"not a request of version 1: unknown variant `{name}`, expected one of `status`"
                error = {"answer": "error", "message": unknown}
                self.wfile.write(
                    json.dumps({**status, "nnodes": 2} if name == "status" else error).encode() + b"\n"
                )

        with socketserver.ThreadingUnixStreamServer(str(path), Old) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                for command in ("status", "restart"):
                    refused = jobs.ask(command)
                    assert refused.status == 1, refused
                    assert "the job's launcher is of an earlier version of rlaunch" in refused.stderr
            finally:
                server.shutdown()
                thread.join()
        path.unlink()
        path.with_suffix(".new").rename(path)
        assert launcher.poll() is None
        assert jobs.ask("stop").status == 0


def test_the_answer_has_its_schema(tmp_path: Path, made: MultiHost, backend: Backend) -> None:
    with Job(tmp_path, made.on, backend) as job:
        start(job, PADDLE)
        (path,) = (tmp_path / runtime(0)).glob("*.sock")
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(LIMIT)
            client.connect(str(path))
            for question in ("status", "stacks"):
                line = NODES.replace(b'"status"', f'"{question}"'.encode())
                check(json.loads(line), "request")
                answer = request(client, line)
                check(answer, "answer")
                assert [entry["error"] for entry in answer["nodes"]] == [None, None]
        stop(job)


# A job whose nodes have no backend in common: torchrun's static rendezvous.
def test_nodes_without_a_common_backend(tmp_path: Path, made: MultiHost) -> None:
    class Static:
        def __init__(self, on: Host) -> None:
            self.host = on.ip

        def paddle(self) -> list[str]:
            raise NotImplementedError

        def torch(self) -> list[str]:
            rank = len(job.nodes)
            return ["--rdzv-backend=static", f"--master-addr={self.host}", f"--node-rank={rank}"]

        def close(self) -> None:
            pass

    with Job(tmp_path, made.on, Static) as job:
        start(job, TORCH)
        done = ask(job, 0, "status")
        assert len(re.findall("^rank .* running ", done.stdout, re.MULTILINE)) == 2, done.stdout
        assert "these are the ranks of this machine: the nodes of this job have no common" in done.stderr
        stop(job, 1, 0)
