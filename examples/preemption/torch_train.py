"""Training with torch that saves and ends before its machines are taken, and continues where it was.

    python -m rlaunch.run --nproc-per-node 2 examples/preemption/torch_train.py FOLDER
    rlaunch preempt      # in another terminal: the exit status of the job is 78

Every rank saves a part of its own, which needs that all ranks stop at the same step. The parts become a
checkpoint when rank 0 renames their folder, after a barrier. FOLDER is one that all nodes share.
"""

from __future__ import annotations

import sys
from pathlib import Path

import rlaunch
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS = 1_000_000


def newest(folder: Path) -> int:
    """The step of the newest checkpoint, or 0."""
    return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=0)


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    part = f"rank-{dist.get_rank()}.pt"
    # Rank 0 alone looks: another rank may see a folder later.
    found = torch.tensor(newest(folder) if dist.get_rank() == 0 else 0)
    dist.broadcast(found, 0)
    first = int(found.item())
    if first:
        state = torch.load(folder / str(first) / part)
        model.load_state_dict(state["model"])
        torch.set_rng_state(state["random"])
    print(f"begins at step {first}", flush=True)
    for step in range(first, STEPS):
        if rlaunch.should_stop(step):
            draft = folder / f"{step}.draft"
            draft.mkdir(exist_ok=True)
            torch.save({"model": model.state_dict(), "random": torch.get_rng_state()}, draft / part)
            dist.barrier()
            if dist.get_rank() == 0:
                draft.rename(folder / str(step))
            print(f"saved step {step}, {rlaunch.time_left():.0f} s left", flush=True)
            dist.barrier()
            break
        inputs = torch.randn(32, 8)
        loss = mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
