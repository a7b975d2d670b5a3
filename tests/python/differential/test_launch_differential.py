"""Several fixed nodes: the variables of each rank, by rlaunch and by Paddle's launcher."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

import pytest
from effort import cases
from launching import environment, free_ports
from oracle import SEED, Oracle
from preloaded import head

PARTS = cases(2, 5)
CASES = cases(30, 50, in_ci=50) * PARTS
HOSTS = ["10.0.0.1", "10.0.0.2", "10.1.2.3", "192.168.7.8", "node-a.example", "node-b.example"]
# Named differently on purpose (docs/differences.md), of one run alone, or set by importing paddle, which
# the oracle has done before.
APART = (
    "RLAUNCH_",
    "POD_NAME",
    "PADDLE_LOG_DIR",
    "PADDLE_AUTO_CLUSTER",
    "OMP_NUM_THREADS",
    "PYTHONFAULTHANDLER",
)


def drawn(chance: random.Random) -> tuple[list[str], dict[str, str]]:
    """Options and variables of one launcher of a job."""
    hosts = chance.sample(HOSTS, chance.choice([1, 2, 2, 3, 4, 5]))
    own = chance.choice(hosts)
    # A dry run takes this node's ports too.
    first = free_ports(2)
    ranks = chance.randint(1, 5)
    argv, environ = [], {}
    for option, variable, value in (
        ("ips", "PADDLE_IPS", ",".join(hosts)),
        ("host", "POD_IP", own),
        ("start_port", "PADDLE_START_PORT", str(first)),
    ):
        if chance.random() < 0.3:
            environ[variable] = value
        else:
            argv.append(f"--{option}={value}")
    if chance.random() < 0.2:
        argv.append(f"--nnodes={len(hosts)}")
    if chance.random() < 0.5:
        argv.append(f"--nproc_per_node={ranks}")
    if chance.random() < 0.5:
        shown = chance.sample("01234567", chance.randint(ranks, 8))
        environ[chance.choice(["CUDA_VISIBLE_DEVICES", "XPU_VISIBLE_DEVICES"])] = ",".join(shown)
        if chance.random() < 0.5:
            argv.append("--devices=" + ",".join(chance.sample(shown, chance.randint(ranks, len(shown)))))
    return argv, environ


def by_rlaunch(argv: list[str], environ: dict[str, str]) -> list[dict[str, str]]:
    command = [sys.executable, "-m", "rlaunch", "--dry_run=json", "--log_level=ERROR", *argv, __file__]
    done = subprocess.run(command, env=environment(**environ), capture_output=True, text=True, check=False)
    assert done.returncode == 0, (argv, environ, done.stderr)
    return [rank["env"] for rank in json.loads(done.stdout)["ranks"]]


def compared(env: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in env.items() if not name.startswith(APART)]


@pytest.mark.parametrize("part", range(PARTS))
def test_every_node_sets_the_variables_that_paddles_launcher_sets(oracle: Oracle, part: int) -> None:
    chance = random.Random(f"{SEED}/{part}")
    for _ in range(CASES // PARTS):
        argv, environ = drawn(chance)
        (theirs,) = oracle.ask(
            {"argv": argv, "environ": environment(**environ), "custom": [], "plugins": True}, "launch"
        )
        mine = by_rlaunch(argv, environ)
        theirs_compared = [compared(row) for row in theirs["rows"]]
        assert [compared(row) for row in mine] == theirs_compared, (argv, environ)


def test_loopback_among_several_nodes_is_refused_with_paddles_text(oracle: Oracle) -> None:
    argv = ["--ips=127.0.0.1,10.0.0.1", "--host=10.0.0.1"]
    (theirs,) = oracle.ask({"argv": argv, "environ": environment(), "custom": [], "plugins": True}, "launch")
    command = [sys.executable, "-m", "rlaunch", *argv, __file__]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert theirs["error"][1] in done.stderr


def test_ten_thousand_endpoints_reach_the_real_reader(tmp_path: Any) -> None:
    """Longer than any variable may be: ParallelEnv reads them from the backup file."""
    hosts = [f"10.{n // 250}.{n % 250}.1" for n in range(1, 5000)]
    script = tmp_path / "read.py"
    script.write_text(
        head("paddle")
        + """
import os
from paddle.distributed import ParallelEnv
env = ParallelEnv()
assert "PADDLE_TRAINER_ENDPOINTS" not in os.environ
print("read", len(env.trainer_endpoints), env.trainer_endpoints[env.rank] == env.current_endpoint, env.rank)
"""
    )
    argv = [f"--ips={','.join(['10.200.0.1', *hosts])}", "--host=10.200.0.1", "--nproc_per_node=2"]
    argv.append(f"--start_port={free_ports(2)}")
    command = [sys.executable, "-m", "rlaunch", *argv, "--console_ranks=all", str(script)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"read 10000 True {rank}" in (tmp_path / f"log/workerlog.{rank}").read_text()
    backup = json.loads((tmp_path / "log/backup_env.1.json").read_text())
    assert len(backup["PADDLE_TRAINER_ENDPOINTS"]) > 131_072
    assert os.stat(tmp_path / "log/backup_env.1.json").st_mode & 0o777 == 0o600
