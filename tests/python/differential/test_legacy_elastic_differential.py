"""Elastic jobs of the legacy launcher beside Paddle's own: variables and numbers of ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from etcd import Etcd
from legacy_nodes import Node
from oracle import Oracle

DEVICES = {"CUDA_VISIBLE_DEVICES": "0,1"}


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    made = Oracle()
    yield made
    made.close()


def by_paddle(
    oracle: Oracle, np: str, own: str, ips: str, hosts: list[str], **changes: str
) -> dict[str, Any]:
    """The variables of its one rank on this node, where etcd shows these."""
    elastic = {"SERVER": "127.0.0.1:1", "JOB_ID": "job", "NP": np, "TIMEOUT": "0"}
    environ = {f"PADDLE_ELASTIC_{name}": value for name, value in elastic.items()}
    environ |= {**DEVICES, **changes, "PATH": os.environ["PATH"]}
    argv = [f"--ips={ips}", f"--host={own}", "--nproc_per_node=1"]
    asked = {"argv": argv, "environ": environ, "build": "gpu", "count": 2, "hosts": hosts}
    (answer,) = oracle.ask(asked, "legacy")
    assert "error" not in answer, answer
    (row,) = answer["rows"]
    return {**environ, **row}


def normal(env: dict[str, str]) -> dict[str, str]:
    """The variables that a launcher sets, without ports and the name of the job's folder."""
    variables = {name: value for name, value in env.items() if re.match("PADDLE|FLAGS|DISTRIBUTED", name)}
    variables = {name: value for name, value in variables.items() if not name.startswith("PADDLE_ELASTIC_")}
    variables["PADDLE_GLOO_FS_PATH"] = "FOLDER"
    return {name: re.sub(r":\d{4,}", ":PORT", value) for name, value in variables.items()}


def test_ranks_have_the_same_variables(oracle: Oracle, tmp_path: Path) -> None:
    ips = "127.0.0.2,127.0.0.1"
    with Etcd(tmp_path / "etcd") as etcd:
        nodes = [Node(tmp_path / host, etcd, "job", host) for host in ips.split(",")]
        for number, node in enumerate(nodes):
            words = ("--np", "2", "--ips", ips, "--nproc_per_node", "1", "--backend", "nccl")
            node.begin(*words, PADDLE_TRAINER_ID=str(number), **DEVICES)
        mine = [normal(node.round(0)) for node in nodes]
        for node in nodes:
            node.leave(0)
        assert [node.ended().status for node in nodes] == [0, 0]
    hosts = [f"{host}:6170" for host in ips.split(",")]
    for number, node in enumerate(nodes):
        number_of_before = {"PADDLE_TRAINER_ID": str(number)}
        real = normal(by_paddle(oracle, "2", node.host, ips, hosts, **number_of_before))
        # The one line more is in docs/differences-legacy.md.
        assert mine[number].pop("DISTRIBUTED_TRAINER_ENDPOINTS") == real["PADDLE_TRAINER_ENDPOINTS"]
        assert mine[number] == real


def test_remaining_nodes_have_the_numbers_that_paddle_gives_them(oracle: Oracle) -> None:
    """As `test_nodes_come_and_go_and_the_others_keep_their_numbers` has it of rlaunch."""
    hosts = [f"127.0.0.{number}" for number in range(1, 5)]
    fewer = [f"{host}:6170" for host in hosts[1:]]
    variables = [by_paddle(oracle, "2:4", host, ",".join(hosts), fewer) for host in hosts[1:]]
    assert [env["PADDLE_TRAINERS"] for env in variables] == ["127.0.0.4,127.0.0.2,127.0.0.3"] * 3
    assert [env["PADDLE_TRAINER_ID"] for env in variables] == ["1", "2", "0"]
