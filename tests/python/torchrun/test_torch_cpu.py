"""PyTorch without CUDA, as tests/torch_cpu.py makes it: it trains, and knows that there is no GPU."""

from __future__ import annotations

import subprocess

from launching import Place, environment
from preloaded import head, python

# The last line: as the interpreter ends, torch 2.15 sometimes aborts with "terminate called without an active
# exception". A thread of gloo that frees the last collective waits for the GIL then. Python ends such threads
# by unwinding their stack, which has a destructor of torch's that must not throw.
TRAIN = """
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
assert not torch.cuda.is_available()
try:
    torch.backends.cudnn.version()
except RuntimeError as error:
    # A stand-in has answered, with an error and no crash.
    assert "cuDNN" in str(error)
else:
    raise AssertionError("there is a cuDNN")
own, total = dist.get_rank() + 1, torch.ones(2) * (dist.get_rank() + 1)
dist.all_reduce(total)
assert total.tolist() == [3, 3]
model = DistributedDataParallel(torch.nn.Linear(2, 1))
model(torch.ones(1, 2) * own).sum().backward()
# The mean of what the two have seen.
assert model.module.weight.grad.tolist() == [[1.5, 1.5]]
Path(f"trained.{dist.get_rank()}").touch()
dist.destroy_process_group()
os._exit(0)
"""


def test_two_ranks_train(place: Place) -> None:
    (place.folder / "train.py").write_text(head("torch") + TRAIN)
    command = [
        *python("torch"),
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "train.py",
    ]
    done = subprocess.run(command, cwd=place.folder, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {"trained.0", "trained.1"} <= place.names()
