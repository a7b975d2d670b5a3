"""Ranks of several fixed nodes in real processes: long lists of endpoints, and two nodes that meet."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import ranks
import rlaunch
from effort import each
from launching import free_ports
from paths import PYTHONPATH
from rlaunch._spawn.plan.env_overflow import move_long_endpoints
from spawning import METHODS, results
from spawning import nothing_left_fixture as _nothing_left  # noqa: F401


@pytest.fixture
def two_gpus(nothing_left: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A visible list is trusted, so no GPU needs to be there."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")


@pytest.mark.usefixtures("two_gpus")
@each("method", METHODS)
def test_paddle_reads_ten_thousand_endpoints(method: str) -> None:
    # execve takes no variable of 128 KiB, and importing Paddle starts a program.
    nodes = [f"10.1.{i // 250}.{i % 250 + 1}" for i in range(5000)]
    port = free_ports(2)
    endpoints = [f"{node}:{port + local}" for node in nodes for local in range(2)]
    where = {"ips": ",".join(nodes), "node_ip": nodes[1234], "started_port": port}
    context = rlaunch.spawn(ranks.endpoints_of_paddle, nprocs=2, backend="nccl", start_method=method, **where)
    for local, seen in enumerate(results(context)):
        rank = 2 * 1234 + local
        assert seen == (endpoints, endpoints[rank], rank, 10_000)


@pytest.mark.usefixtures("two_gpus")
@each("method", METHODS)
def test_long_endpoints_go_into_the_backup_file(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Inherited descriptors of the program belong to another.
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", "9.9.9.9:9")
    nodes = [f"[fd00::{i:x}]" for i in range(1, 10_001)]
    port = free_ports(1)
    options = {"backend": "nccl", "ips": ",".join(nodes), "node_ip": nodes[7], "started_port": port}
    context = rlaunch.spawn(ranks.variables, nprocs=1, start_method=method, **options)
    (env,) = results(context)
    assert "PADDLE_TRAINER_ENDPOINTS" not in env
    assert env["PADDLE_MASTER"] == f"[fd00::1]:{port}"
    assert env["PADDLE_CURRENT_ENDPOINT"] == f"[fd00::8]:{port}"
    assert env["PADDLE_TRAINERS_NUM"] == "10000"
    del context
    # It was this process's memory, and goes with the ranks.
    gc.collect()
    assert not os.path.exists(env["PADDLE_BACKUP_ENV_PATH"])


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("length", [128 * 1024 - 1, 128 * 1024])
def test_the_longest_variable_that_fits_is_a_variable(length: int) -> None:
    port = free_ports(1)
    # Names of 63 letters and one last that fills up, each with its port and a comma.
    left = length - len("PADDLE_TRAINER_ENDPOINTS=")
    each = 63 + len(f":{port},")
    count = left // each - 1
    last = left - count * each - len(f":{port}")
    nodes = [f"n{i:062}" for i in range(count)] + ["x" * last]
    options = {"backend": "nccl", "ips": ",".join(nodes), "node_ip": nodes[0], "started_port": port}
    (env,) = results(rlaunch.spawn(ranks.variables, nprocs=1, **options))
    assert ("PADDLE_TRAINER_ENDPOINTS" in env) == (length < 128 * 1024)
    assert ("PADDLE_BACKUP_ENV_PATH" in env) == (length >= 128 * 1024)


def test_a_forked_rank_reads_the_backup_file_anew(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # Paddle reads it once, and this program may have done so before.
    reader = types.ModuleType("paddle.distributed.backup_env")
    reader.g_backup_envs = {}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, reader.__name__, reader)
    options = {"backend": "nccl", "start_method": "fork", "nprocs": 1}
    (seen,) = results(rlaunch.spawn(getattr, (reader, "g_backup_envs"), **options))
    assert seen is None
    assert reader.g_backup_envs == {}


def test_a_master_that_was_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLE_MASTER", "10.0.0.9:1")
    (env,), file = move_long_endpoints([{"PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:2," * 20_000}])
    assert file is not None
    assert list(env) == ["PADDLE_BACKUP_ENV_PATH"]


def test_ranks_of_two_nodes_rendezvous(tmp_path: Path) -> None:
    """Two programs, as on two machines: the platform gives them ports of their own."""
    script = tmp_path / "train.py"
    script.write_text(
        "import ranks, rlaunch\n"
        "if __name__ == '__main__':\n"
        "    context = rlaunch.spawn(ranks.meet, nprocs=2, backend='nccl')\n"
        "    print([queue.get() for queue in context.return_queues])\n"
    )
    port = free_ports(4)
    platform = {
        "PADDLE_TRAINERS": "127.0.0.1,127.0.0.2",
        "PADDLE_TRAINERS_NUM": "2",
        "TRAINER_PORTS_NUM": "2",
        "DISTRIBUTED_TRAINER_ENDPOINTS": ",".join(f"127.0.0.{1 + i // 2}:{port + i}" for i in range(4)),
        "CUDA_VISIBLE_DEVICES": "0,1",
        "PYTHONPATH": PYTHONPATH,
    }
    programs = [
        subprocess.Popen(
            [sys.executable, script],
            env={**os.environ, **platform, "POD_IP": f"127.0.0.{1 + i}", "PADDLE_TRAINER_ID": str(i)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    ends = [program.communicate(timeout=120) for program in programs]
    assert [out for out, _ in ends] == [
        "[(0, [1, 2, 3]), (1, [0, 2, 3])]\n",
        "[(2, [0, 1, 3]), (3, [0, 1, 2])]\n",
    ]
    note = "Please NOTE: When using paddlecloud, node_ip is automatically got from POD_IP."
    assert ends[1][1].startswith(note)
    assert note not in ends[0][1]
