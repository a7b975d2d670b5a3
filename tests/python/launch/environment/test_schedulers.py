"""Launchers that a scheduler has started on each node, without options: its variables name the nodes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from launching import LIMIT, Place, environment

COMMANDS = {"rlaunch": ["-m", "rlaunch"], "rlaunch.run": ["-m", "rlaunch.run"]}
TELL = """
import os
from pathlib import Path
rank = os.environ.get("RANK") or os.environ["PADDLE_TRAINER_ID"]
size = os.environ.get("WORLD_SIZE") or os.environ["PADDLE_TRAINERS_NUM"]
Path(f"rank.{rank}.of.{size}.on.{os.environ['SLURM_NODEID']}").touch()
"""


def step(node: int, job: Path, **changes: str) -> dict[str, str]:
    """The variables of a launcher that srun has started on a node; both nodes are this machine."""
    # The port of the master comes from the job's name.
    name = f"{job.parent.name}{job.name}"
    variables = {
        "SLURM_JOB_ID": name,
        "SLURM_STEP_ID": "0",
        "SLURM_NODEID": str(node),
        "SLURM_STEP_NODELIST": "127.0.0.1,127.0.0.2",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "2",
    }
    return environment(**{**variables, **changes})


def start(folder: Path, command: list[str], *options: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *command, *options, "train.py"],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_two_launchers_of_slurm_are_one_job(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "train.py").write_text(TELL)
    nodes = [start(tmp_path, command, env=step(node, tmp_path)) for node in range(2)]
    ended = [Place.wait(node) for node in nodes]
    assert [end.status for end in ended] == [0, 0], ended
    assert {path.name for path in tmp_path.glob("rank.*")} == {"rank.0.of.2.on.0", "rank.1.of.2.on.1"}
    if "rlaunch" in command:
        assert {path.name for path in (tmp_path / "log").iterdir()} == {"node-0", "node-1"}
    else:
        said = "rlaunch: Slurm has started launchers on 2 nodes (SLURM_STEP_NUM_NODES"
        assert [end.stderr.count(said) for end in ended] == [1, 0], ended


def test_nodes_of_slurm_with_parameter_servers_are_one_job(tmp_path: Path) -> None:
    body = """
    import os
    from pathlib import Path
    servers = os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")
    own = os.environ["POD_IP"] + ":" + os.environ["PADDLE_PORT"]
    if os.environ["TRAINING_ROLE"] == "PSERVER":
        Path(f"server.{servers.index(own)}.of.{len(servers)}.on.{os.environ['SLURM_NODEID']}").touch()
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(body))
    nodes = [
        start(tmp_path, COMMANDS["rlaunch"], "--server_num=1", env=step(node, tmp_path)) for node in range(2)
    ]
    ended = [Place.wait(node) for node in nodes]
    assert [end.status for end in ended] == [0, 0], ended
    assert {path.name for path in tmp_path.glob("server.*")} == {"server.0.of.2.on.0", "server.1.of.2.on.1"}


@pytest.mark.parametrize(
    ("command", "option"),
    [("rlaunch", "--nnodes=1"), ("rlaunch.run", "--standalone")],
)
def test_a_launcher_may_run_a_job_of_its_own(tmp_path: Path, command: str, option: str) -> None:
    (tmp_path / "train.py").write_text(TELL)
    ended = Place.wait(start(tmp_path, COMMANDS[command], option, env=step(1, tmp_path)))
    assert ended.status == 0, ended.stderr
    assert [path.name for path in tmp_path.glob("rank.*")] == ["rank.0.of.1.on.1"]


@pytest.mark.parametrize("changes", [{"PET_NNODES": "1"}, {}])
def test_a_launcher_whose_option_says_one_node_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "train.py").write_text(TELL)
    options = [] if changes else ["--nnodes=1"]
    ended = Place.wait(start(tmp_path, COMMANDS["rlaunch.run"], *options, env=step(0, tmp_path, **changes)))
    assert ended.status == 2
    (line,) = ended.error_lines()
    assert "is one node, but Slurm has started launchers on 2 (SLURM_STEP_NUM_NODES)" in line
    assert "give --standalone if each is to run its own" in line
    assert not list(tmp_path.glob("rank.*"))


def test_several_launchers_of_rlaunch_run_on_a_node_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TELL)
    env = step(0, tmp_path, SLURM_STEP_NUM_TASKS="4")
    done = subprocess.run(
        [sys.executable, "-m", "rlaunch.run", "train.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 2
    assert "SLURM_STEP_NUM_TASKS 4: is more than one launcher a node" in done.stderr
    assert "or give --standalone if each runs a job of its own" in done.stderr
