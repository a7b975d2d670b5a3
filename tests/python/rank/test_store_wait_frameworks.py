"""Real ranks of Paddle and torch that reach the store of rank 0 too early, however they were started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from effort import cases, each
from hosts import hosts
from launching import TALKING, environment

# Rank 0 goes on once rank 1 sleeps: in the wait for the store, or because the framework was refused.
HEAD = f"""
import os, sys, time
rank = int(os.environ.get("PADDLE_TRAINER_ID") or os.environ["RANK"])
{TALKING}
def await_early_rank():
    if rank == 1:
        await_file("imported.0")
        return tell("early", os.getpid())
    tell("imported")
    await_file("early.1")
    with open("early.1") as file:
        pid = file.read()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with open(f"/proc/{{pid}}/wchan") as file:
            if "nanosleep" in file.read():
                return
        time.sleep(0.001)
    sys.exit("rank 1 does not wait")
"""
PADDLE = f"""{HEAD}
import paddle.distributed as dist
await_early_rank()
dist.init_parallel_env()
tell("met")
"""
# Logged for each refused connection (phi/core/distributed/store/tcp_utils.cc).
REFUSED = "Retry to connect to"
SPAWN = """
import rlaunch

def train():
    import runpy
    runpy.run_path("train.py")

if __name__ == "__main__":
    rlaunch.spawn(train, nprocs=2, backend="gloo", start_method="spawn")
"""
COMMANDS = {
    "command": ["-m", "rlaunch", "--nproc_per_node=2", "--console_ranks=all", "train.py"],
    "preload": ["-m", "rlaunch", "--nproc_per_node=2", "--console_ranks=all", "--preload=paddle", "train.py"],
    "spawn": ["spawn.py"],
}


def run_paddle(folder: Path, how: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(PADDLE)
    (folder / "spawn.py").write_text(SPAWN)
    return subprocess.run(
        [sys.executable, *COMMANDS[how]],
        cwd=folder,
        env=environment(CUDA_VISIBLE_DEVICES="", **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("how", list(COMMANDS)[: cases(2, 3)])
def test_no_rank_of_paddle_is_refused(how: str, tmp_path: Path) -> None:
    done = run_paddle(tmp_path, how)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "met.1").exists()
    assert REFUSED not in done.stdout


@each("how", ["command", "preload"])
def test_without_the_wait_paddle_is_refused(how: str, tmp_path: Path) -> None:
    """So that the test above can fail. The end of the job is of no importance: Paddle has aborted there."""
    assert REFUSED in run_paddle(tmp_path, how, RLAUNCH_STORE_WAIT="0").stdout


TORCH = f"""{HEAD}
import torch.distributed as dist
await_early_rank()
dist.init_process_group("gloo")
# Gloo fails if a peer that has connected to all ends before this rank has.
dist.barrier()
tell("met")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("waits", [True, False])
@each("options", [(), ("--preload=torch",)])
def test_no_rank_of_torch_is_refused(options: tuple[str, ...], waits: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TORCH)
    with hosts(1) as (host,):
        # Ranks of rlaunch.run connect to the store of the launcher, which listens before they start.
        command = [sys.executable, "-m", "rlaunch", "--frameworks=torch", "--nproc_per_node=2"]
        command += [*options, "train.py"]
        env = environment(RLAUNCH_STORE_WAIT=None if waits else "0")
        with host.run(command, cwd=tmp_path, env=env) as launcher:
            assert launcher.wait() == 0
        assert (tmp_path / "met.1").exists()
        # Connections that were refused, in this host's network (RFC 4022, tcpAttemptFails).
        lines = Path(f"/proc/{host.pid}/net/snmp").read_text().splitlines()
        names, values = (line.split() for line in lines if line.startswith("Tcp:"))
        assert (int(values[names.index("AttemptFails")]) == 0) is waits
