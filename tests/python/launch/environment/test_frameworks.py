"""``--frameworks``: the variables of several frameworks, read by the real frameworks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from effort import each
from launching import Place, environment, free_ports, until
from preloaded import head

# jax and torch take seconds to be imported, and on a busy machine many.
pytestmark = pytest.mark.timeout(400)
PATIENCE = 300.0

# Steers none of them, but would be taken for a cluster's by jax.
OF_CLUSTERS = ("SLURM_", "OMPI_", "JAX_", "MASTER_", "TORCHELASTIC_")


def base_environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in environment().items() if not name.startswith(OF_CLUSTERS)}
    return {**kept, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", **changes}


def command_of(front_end: str, *args: str) -> list[str]:
    module, ranks = {
        "paddle": ("rlaunch", "--nproc_per_node=2"),
        "torch": ("rlaunch.run", "--nproc-per-node=2"),
    }[front_end]
    return [sys.executable, "-m", module, ranks, *args]


def run(folder: Path, command: list[str], **changes: str) -> subprocess.CompletedProcess[str]:
    environ = base_environment(**changes)
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"written.{rank}").read_text()) for rank in range(2)]


# Each rank writes a file named by its number, once all of them have exchanged their numbers.
JAX = """
import json
import os
from pathlib import Path


def main():
    import jax
    import numpy
    from jax.experimental import multihost_utils

    jax.distributed.initialize()
    here = jax.process_index()
    sum = int(multihost_utils.process_allgather(numpy.array([here + 1])).sum())
    from rlaunch import env

    said = {
        "processes": jax.process_count(), "devices": jax.device_count(), "sum": sum,
        "rank": env.get_rank(), "size": env.get_world_size(),
        "torch": "RANK" in os.environ, "paddle": "PADDLE_TRAINER_ID" in os.environ,
    }
    Path(f"written.{here}").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
"""

SPAWN = """
from train import main
import rlaunch

if __name__ == "__main__":
    rlaunch.spawn(main, nprocs=2, backend="gloo", frameworks="jax")
"""


@each("front_end", ["torch", "paddle", "spawn"])
def test_real_jax_finds_its_processes_without_arguments(front_end: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(JAX)
    (tmp_path / "program.py").write_text(SPAWN)
    by_spawn = [sys.executable, "program.py"]
    command = by_spawn if front_end == "spawn" else command_of(front_end, "--frameworks", "jax", "train.py")
    # A cluster that this job is a step of, with one process as far as it knows.
    slurm = {"JOB_ID": "7", "STEP_NODELIST": "node1", "NTASKS": "1", "PROCID": "0", "LOCALID": "0"}
    ended = run(tmp_path, command, **{f"SLURM_{name}": value for name, value in slurm.items()})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    alike = {"processes": 2, "devices": 2, "sum": 3, "size": 2, "torch": False, "paddle": False}
    assert written(tmp_path) == [{**alike, "rank": rank} for rank in range(2)]


TORCH = """
import json
import os
from pathlib import Path

import torch
from torch import distributed

distributed.init_process_group("gloo")
mine = torch.tensor([int(os.environ["PADDLE_TRAINER_ID"]) + 1])
distributed.all_reduce(mine)
said = [distributed.get_rank(), distributed.get_world_size(), int(mine)]
distributed.destroy_process_group()
Path(f"written.{os.environ['PADDLE_TRAINER_ID']}").write_text(json.dumps(said))
"""


def test_real_torch_rendezvous_at_rank_0s_own_store_under_paddles_front_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(head("torch") + TORCH)
    ended = run(tmp_path, command_of("paddle", "--frameworks", "paddle,torch", "train.py"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert written(tmp_path) == [[0, 2, 3], [1, 2, 3]]


PADDLE = """
import json
import os
from pathlib import Path

import paddle
from paddle import distributed

distributed.init_parallel_env()
mine = paddle.to_tensor([distributed.get_rank() + 1])
distributed.all_reduce(mine)
said = [distributed.get_rank(), distributed.get_world_size(), mine.tolist()[0]]
Path(f"written.{os.environ['RANK']}").write_text(json.dumps(said))
"""


def test_real_paddle_rendezvous_under_torchs_front_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(head("paddle") + PADDLE)
    ended = run(tmp_path, command_of("torch", "--frameworks", "paddle,torch", "train.py"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert written(tmp_path) == [[0, 2, 3], [1, 2, 3]]


ALL = """
import json
import os
from pathlib import Path


def main():
    here = os.environ["RLAUNCH_RANK_KEY"].rpartition("/")[2]
    Path(f"written.{here}").write_text(json.dumps(dict(os.environ)))


if __name__ == "__main__":
    main()
"""

SPAWN_ALL = SPAWN.replace('"jax"', "__import__('sys').argv[1]")

Start = Callable[[str], list[dict[str, str]]]


@pytest.fixture(params=["torch", "paddle", "spawn"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    """Runs two ranks for these frameworks; their environments."""
    (tmp_path / "train.py").write_text(ALL)
    (tmp_path / "program.py").write_text(SPAWN_ALL)

    def started(frameworks: str) -> list[dict[str, str]]:
        if request.param == "spawn":
            ended = run(tmp_path, [sys.executable, "program.py", frameworks])
        else:
            ended = run(tmp_path, command_of(request.param, "--frameworks", frameworks, "train.py"))
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return written(tmp_path)

    return started


def ports(environ: Mapping[str, str]) -> list[str]:
    """The ports of all rendezvous endpoints of a rank."""
    listed = environ["PADDLE_TRAINER_ENDPOINTS"].split(",")
    return [
        *(endpoint.rpartition(":")[2] for endpoint in [*listed, environ["JAX_COORDINATOR_ADDRESS"]]),
        environ["MASTER_PORT"],
    ]


def test_one_rank_has_the_variables_of_all(start: Start) -> None:
    ranks = start("paddle,torch,jax")
    for rank, environ in enumerate(ranks):
        names = ("PADDLE_TRAINER_ID", "RANK", "LOCAL_RANK", "JAX_PROCESS_ID", "OMPI_COMM_WORLD_RANK")
        assert {environ[name] for name in names} == {str(rank)}
        names = ("PADDLE_TRAINERS_NUM", "WORLD_SIZE", "JAX_NUM_PROCESSES", "OMPI_COMM_WORLD_SIZE")
        assert {environ[name] for name in names} == {"2"}
        assert len(set(ports(environ))) == 4
        assert environ["JAX_COORDINATOR_ADDRESS"] == environ["JAX_COORDINATOR_BIND_ADDRESS"]
        assert environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    assert ports(ranks[0]) == ports(ranks[1])


def test_frameworks_that_were_not_requested_are_not_there(start: Start) -> None:
    for environ in start("jax"):
        assert "JAX_PROCESS_ID" in environ
        for name in ("PADDLE_TRAINER_ID", "PADDLE_TRAINER_ENDPOINTS", "RANK", "WORLD_SIZE", "MASTER_PORT"):
            assert name not in environ, name


@pytest.mark.parametrize("front_end", ["torch", "paddle"])
@pytest.mark.parametrize("text", ["tensorflow", "paddle,,torch", ""])
def test_an_unknown_framework_is_refused(front_end: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    ended = run(tmp_path, command_of(front_end, f"--frameworks={text}", "train.py"))
    (line,) = ended.stderr.splitlines()
    assert "--frameworks" in line
    assert "give paddle, torch or jax, separated by commas" in line
    assert ended.returncode == 2


@pytest.mark.filterwarnings("ignore:Your model will be trained under CPUONLY")
def test_spawn_refuses_an_unknown_framework() -> None:
    import rlaunch

    with pytest.raises(
        ValueError, match=r'frameworks "mpi" has an unknown framework.*give paddle, torch or jax'
    ):
        rlaunch.spawn(os.getpid, nprocs=1, backend="gloo", frameworks="mpi")


@pytest.mark.parametrize("kind", ["--run_mode=ps", "--run_mode=rpc", "--legacy=1", "--server_num=1"])
def test_jobs_with_only_paddle_variables_refuse_other_frameworks(kind: str, place: Place) -> None:
    ended = place.run(kind, "--frameworks", "paddle,torch", place.script(""))
    (line,) = ended.error_lines()
    assert "support only Paddle's variables; leave it out, or give paddle" in line


def test_a_launcher_in_a_rank_has_frameworks_of_its_own(place: Place) -> None:
    inner = place.script(
        """
        import json
        names = ("RANK", "MASTER_PORT", "JAX_PROCESS_ID", "OMPI_COMM_WORLD_RANK", "PADDLE_TRAINERS_NUM")
        tell("inner", json.dumps({name: os.environ.get(name) for name in names}))
        """,
        "inner.py",
    )
    outer = place.script(
        f"""
        import subprocess
        if rank == 1:
            subprocess.run([sys.executable, "-m", "rlaunch", "{inner}"], check=True)
        """
    )
    environ = base_environment(RLAUNCH_FRAMEWORKS="paddle,torch,jax")
    ended = place.run("--nproc_per_node", "2", outer, env=environ)
    assert ended.status == 0, ended.stderr
    nothing = dict.fromkeys(("RANK", "MASTER_PORT", "JAX_PROCESS_ID", "OMPI_COMM_WORLD_RANK"))
    assert json.loads(place.text("inner.0")) == {**nothing, "PADDLE_TRAINERS_NUM": "1"}


def test_fixed_ports_of_other_frameworks_are_behind_those_of_the_ranks(place: Place) -> None:
    first = free_ports(4)
    command = (
        "--ips=127.0.0.1",
        f"--start_port={first}",
        "--nproc_per_node=2",
        "--frameworks=paddle,torch,jax",
    )
    for seen in place.tell(*command, env=base_environment()):
        assert ports(seen["env"]) == [str(first), str(first + 1), str(first + 3), str(first + 2)]


def test_another_attempt_has_the_same_ports_and_knows_its_number(place: Place) -> None:
    script = place.script(
        """
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        tell("attempt-" + attempt, os.environ["MASTER_PORT"] + " " + os.environ["JAX_COORDINATOR_ADDRESS"])
        sys.exit(attempt == "0")
        """
    )
    command = ("--frameworks=paddle,torch,jax", "--max_restart=1", "--restart_delay=0", script)
    ended = place.run(*command, env=base_environment())
    assert ended.status == 0, ended.stderr
    assert place.text("attempt-0.0") == place.text("attempt-1.0")


def start_node(folder: Path, options: list[str], number: int, **changes: str) -> subprocess.Popen[bytes]:
    """Starts a launcher of one rank."""
    common = ["--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=job"]
    command = [sys.executable, "-m", "rlaunch.run", *common, *options, "train.py"]
    with (folder / f"printed.{number}").open("w") as output:
        return subprocess.Popen(
            command, cwd=folder, env=base_environment(**changes), stdout=output, stderr=output
        )


@contextmanager
def nodes(folder: Path, *frameworks: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Starts a launcher of one rank for each of these options. The first one serves the master."""
    at = [f"--nnodes={len(frameworks)}", f"--rdzv-endpoint=127.0.0.1:{free_ports(1)}"]
    with ExitStack() as stack:
        yield [
            stack.enter_context(Place.cleaned(start_node(folder, [*at, f"--frameworks={given}"], number)))
            for number, given in enumerate(frameworks, 1)
        ]


def printed(folder: Path) -> list[str]:
    return [(folder / f"printed.{number}").read_text() for number in (1, 2)]


@pytest.mark.parametrize(("frameworks", "script"), [("paddle,torch", head("paddle") + PADDLE), ("jax", JAX)])
def test_real_frameworks_on_two_nodes_of_torchrun(tmp_path: Path, frameworks: str, script: str) -> None:
    (tmp_path / "train.py").write_text(script)
    with nodes(tmp_path, frameworks, frameworks) as started:
        assert [node.wait(PATIENCE) for node in started] == [0, 0], printed(tmp_path)
    if frameworks == "jax":
        said = [[one["rank"], one["processes"], one["sum"]] for one in written(tmp_path)]
    else:
        said = written(tmp_path)
    assert said == [[0, 2, 3], [1, 2, 3]]


# As Paddle reads it: from a file if it is too long for the environment.
ENDPOINTS = """
import json
import os

world = os.environ["PADDLE_TRAINERS_NUM"]
listed = os.environ.get("PADDLE_TRAINER_ENDPOINTS")
if listed is None:
    with open(os.environ["PADDLE_BACKUP_ENV_PATH"]) as file:
        listed = json.load(file)["PADDLE_TRAINER_ENDPOINTS"]
tell(f"round.{world}", listed)
await_file("go")
"""


@pytest.mark.parametrize("longest", ["48000", "20"])
def test_ranks_of_a_later_round_learn_the_endpoints_of_its_nodes(tmp_path: Path, longest: str) -> None:
    place = Place(tmp_path)
    place.script(ENDPOINTS)
    at = f"--rdzv-endpoint=127.0.0.1:{free_ports(1)}"
    changes = {"RLAUNCH_MIN_ROUND_TIME": "0", "PADDLE_ENV_LIMIT_LEN": longest}
    options = ["--nnodes=1:2", "--rdzv-conf=last_call_timeout=1", "--frameworks=paddle"]
    with ExitStack() as stack:
        started = []
        for size in (1, 2):
            node = start_node(tmp_path, [*options, at], size, **changes)
            started.append(stack.enter_context(Place.cleaned(node)))
            seen = [tmp_path / f"round.{size}.{rank}" for rank in range(size)]
            until(lambda seen=seen: all(path.exists() for path in seen), f"a round of {size}")
            (listed,) = {path.read_text() for path in seen}
            assert len(set(listed.split(","))) == size, listed
        (tmp_path / "go").touch()
        assert [node.wait(PATIENCE) for node in started] == [0, 0], printed(tmp_path)


def test_nodes_of_torchrun_need_the_same_frameworks(tmp_path: Path) -> None:
    """Otherwise ranks would lack the endpoints of others."""
    (tmp_path / "train.py").write_text("open('began', 'w')")
    with nodes(tmp_path, "torch", "paddle") as started:
        until(lambda: [node for node in started if node.poll() is not None], "the node that is refused")
        (refused,) = [number for number, node in enumerate(started) if node.poll() is not None]
        assert started[refused].returncode == 73
    line = printed(tmp_path)[refused]
    assert "this node cannot take part" in line, line
    assert "torch (--frameworks paddle)" in line, line
    assert not (tmp_path / "began").exists()


@pytest.mark.parametrize("framework", ["paddle", "jax", "torch,paddle"])
def test_a_static_rendezvous_of_torchrun_is_for_torch_alone(tmp_path: Path, framework: str) -> None:
    """Otherwise each rank would run without its variables, and so alone. No other node is waited for."""
    (tmp_path / "train.py").write_text("open('began', 'w')")
    options = ["--nnodes=2", "--node-rank=1", f"--master-port={free_ports(1)}"]
    ended = run(tmp_path, command_of("torch", f"--frameworks={framework}", *options, "train.py"))
    assert ended.returncode == 2
    (line,) = [line for line in ended.stderr.splitlines() if "error" in line]
    assert "on several nodes of a static rendezvous only torch is possible; give --rdzv-backend c10d" in line
    assert not (tmp_path / "began").exists()
