"""torch with CUDA on ranks: NCCL, preloading, failure reports about GPUs. Needs a torch that has CUDA."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import rlaunch
from launching import LIMIT, environment

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

NCCL = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(256, 256).cuda(), device_ids=[local])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    loss = model(torch.ones(64, 256, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
dist.destroy_process_group()
"""
FULL = """
import torch
def step():
    held = []
    while True:
        held.append(torch.empty(1 << 33, dtype=torch.uint8, device="cuda"))
step()
"""
ASSERTION = """
import torch
def look_up():
    table, index = torch.zeros(4, device="cuda"), torch.tensor([7], device="cuda")
    print(table[index])
look_up()
"""


def run(folder: Path, script: str, *command: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    return subprocess.run(
        [sys.executable, "-m", *command, "train.py"],
        cwd=folder,
        env=environment(CUDA_DEVICE_ORDER="PCI_BUS_ID"),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )


def test_a_job_with_nccl_beside_torchrun(
    tmp_path: Path, uuids: list[str], seen: Callable[[str, str], None]
) -> None:
    ours = run(tmp_path, NCCL, "rlaunch.run", "--nproc-per-node=gpu")
    theirs = run(tmp_path, NCCL, "torch.distributed.run", "--nproc-per-node=gpu")
    assert ours.returncode == theirs.returncode == 0, ours.stderr + theirs.stderr
    losses = sorted(line for line in ours.stdout.splitlines() if line.startswith("loss"))
    assert losses == sorted(line for line in theirs.stdout.splitlines() if line.startswith("loss"))
    assert len(losses) == len(uuids)
    seen(
        f"DDP with NCCL, torch {torch.__version__}, `--nproc-per-node gpu`",
        "the same loss under rlaunch-run and torchrun",
    )


def device_of_rank(count: int) -> tuple[str, int]:
    import torch
    from torch import distributed

    rlaunch.init_parallel_env()
    total = torch.ones(1, device="cuda")
    distributed.all_reduce(total)
    backend = distributed.get_backend()
    distributed.destroy_process_group()
    assert total.item() == count
    return backend, torch.cuda.current_device()


@pytest.mark.parametrize("start_method", ["spawn", "zygote"])
def test_init_parallel_env_takes_the_gpu_and_nccl(
    uuids: list[str], start_method: str, seen: Callable[[str, str], None]
) -> None:
    options = {"preload": "torch"} if start_method == "zygote" else {}
    count = len(uuids)
    try:
        found = rlaunch.spawn(
            device_of_rank,
            (count,),
            count,
            start_method=start_method,
            frameworks="torch",
            backend="nccl",
            **options,
        ).results()
    finally:
        rlaunch.end_zygotes()
    assert found == [("nccl", rank) for rank in range(count)]
    seen(f"`rlaunch.spawn` by {start_method}, `init_parallel_env()`", "NCCL, and rank N has device N")


def test_more_ranks_than_gpus_are_refused_with_words(tmp_path: Path, uuids: list[str]) -> None:
    script = "import torch, rlaunch\nrlaunch.init_parallel_env()"
    done = run(tmp_path, script, "rlaunch.run", f"--nproc-per-node={len(uuids) + 1}")
    assert done.returncode == 1
    assert f"LOCAL_RANK={len(uuids)} has no CUDA device: {len(uuids)} visible" in done.stderr, done.stderr


def test_the_report_of_a_full_gpu(tmp_path: Path, seen: Callable[[str, str], None]) -> None:
    done = run(tmp_path, FULL, "rlaunch", "--gpus=0")
    assert done.returncode == 1
    assert "torch.OutOfMemoryError: CUDA out of memory" in done.stderr, done.stderr
    assert "the memory of the GPU was full" in done.stderr, done.stderr
    assert "in step" in done.stderr
    seen(
        "The report of a rank that fills the GPU",
        "the exception, its line and `the memory of the GPU was full`",
    )


def test_the_report_of_an_assertion_on_the_gpu(tmp_path: Path, seen: Callable[[str, str], None]) -> None:
    done = run(tmp_path, ASSERTION, "rlaunch", "--gpus=0")
    assert done.returncode == 1
    assert "device-side assert triggered" in done.stderr, done.stderr
    assert "first assertion on the GPU: " in done.stderr, done.stderr
    assert "CUDA_LAUNCH_BLOCKING=1" in done.stderr
    seen(
        "The report of an assertion that fails in a kernel", "the assertion's text, and that GPUs report late"
    )
