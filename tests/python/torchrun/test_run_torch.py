"""``python -m rlaunch.run`` under real torch: training, restarts, and tools that call torchrun."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from launching import Place, environment
from paths import ROOT
from preloaded import head, python

DIGITS = ROOT / "examples" / "torch_digits.py"

# Under load every import of torch takes long.
pytestmark = pytest.mark.timeout(300)


def ran(
    *command: str, cwd: Path, interpreter: list[str] | None = None, **changes: str | None
) -> subprocess.CompletedProcess[str]:
    """A Python program, to its good end."""
    env = environment(OMP_NUM_THREADS="1", **changes)
    done = subprocess.run(
        [*(interpreter or [sys.executable]), *command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def reports(folder: Path) -> list[dict[str, object]]:
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def test_training_sees_the_losses_that_it_sees_under_torchrun(tmp_path: Path) -> None:
    seen = {}
    torch_is_here = tmp_path / DIGITS.name
    torch_is_here.write_text(head("torch") + DIGITS.read_text())
    for module, interpreter in (
        ("rlaunch.run", [sys.executable]),
        ("torch.distributed.run", python("torch")),
    ):
        folder = tmp_path / module
        words = [str(torch_is_here), "--epochs", "6", "--report", str(folder)]
        done = ran("-m", module, "--nproc-per-node", "2", *words, cwd=tmp_path, interpreter=interpreter)
        assert "parameters equal on every rank (2)" in done.stdout
        seen[module] = reports(folder)
    ours, theirs = seen.values()
    assert ours == theirs
    assert len(ours[0]["losses"]) == 6 * 22  # type: ignore[arg-type]


GLOO = """
import datetime
import torch
import torch.distributed as dist

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
total = torch.full((1,), float(rank + 1))
dist.all_reduce(total)
tell(f"sum-{attempt}", total.item())
if attempt == 0 and rank == 1:
    os._exit(3)
dist.barrier()
dist.destroy_process_group()
"""


def test_restarted_ranks_rendezvous_again(tmp_path: Path) -> None:
    """Under torchrun the second attempt reads what the first has left in the store, and most often fails."""
    place = Place(tmp_path)
    script = tmp_path / place.script(GLOO, framework="torch")
    script.write_text(script.read_text().replace("PADDLE_TRAINER_ID", "RANK"))
    done = ran("-m", "rlaunch.run", "--nproc-per-node=2", "--max-restarts=1", script.name, cwd=tmp_path)
    sums = [(tmp_path / f"sum-{attempt}.{rank}").read_text() for attempt in (0, 1) for rank in (0, 1)]
    assert sums == ["3.0"] * 4, done.stderr
    assert "rank 1 failed first, with exit code 3" in done.stderr


ACCELERATED = """
import os
import torch
from accelerate import Accelerator

# Only rlaunch sets it.
assert "RLAUNCH_RANK_KEY" in os.environ
accelerator = Accelerator(cpu=True)
model, optimizer = torch.nn.Linear(4, 1), None
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
for _ in range(3):
    loss = model(torch.ones(2, 4) * (accelerator.process_index + 1)).pow(2).mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
weights = accelerator.gather(next(model.parameters()).detach().reshape(1, -1))
assert torch.equal(weights[0], weights[1])
print(f"trained on {accelerator.num_processes}\\n", end="", flush=True)
del model, optimizer
accelerator.end_training()
"""


def test_accelerate_runs_on_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(head("torch") + ACCELERATED)
    options = [
        "--multi_gpu",
        "--num_processes=2",
        "--num_machines=1",
        "--mixed_precision=no",
        "--dynamo_backend=no",
    ]
    home = str(tmp_path / "home")
    done = ran(
        "-m", "rlaunch.torch", "accelerate", "launch", *options, "train.py", cwd=tmp_path, HF_HOME=home
    )
    assert done.stdout.count("trained on 2\n") == 2


def test_usage_of_rlaunch_torch_is_printed_or_an_error(tmp_path: Path) -> None:
    usage = "usage: python -m rlaunch.torch PROGRAM"
    assert ran("-m", "rlaunch.torch", "--help", cwd=tmp_path).stdout.startswith(usage)
    command = [sys.executable, "-m", "rlaunch.torch"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(usage)


INSTALLED = """
import torch.distributed.run as torchrun
import rlaunch.run, rlaunch.torch

own = torchrun.run
with rlaunch.torch.install():
    assert torchrun.run is rlaunch.run.run and torchrun.get_args_parser is rlaunch.run.get_args_parser
    rlaunch.torch.install().uninstall()
    assert torchrun.run is rlaunch.run.run
    args = torchrun.parse_args(["--nproc-per-node", "2", "--no-python", "--", "sh", "-c", "echo rank $RANK"])
    torchrun.run(args)
    args = torchrun.parse_args(["--no-python", "--", "sh", "-c", "echo no disk >&2; exit 3"])
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    try:
        torchrun.run(args)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        assert (rank, failure.exitcode, error.name) == (0, 3, "sh")
        assert "  traceback : no disk" in ChildFailedError.format_msg(error)
    else:
        raise AssertionError("nothing was raised")
assert torchrun.run is own
"""


def test_programs_that_call_torchrun_can_be_put_on_it(tmp_path: Path) -> None:
    done = ran("-c", INSTALLED, cwd=tmp_path, interpreter=python("torch"))
    assert sorted(done.stdout.split("\n")) == ["", "rank 0", "rank 1"]
