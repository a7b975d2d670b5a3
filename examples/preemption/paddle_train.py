"""Training with Paddle that saves and ends before its machines are taken, and continues where it was.

    python -m rlaunch --nproc_per_node 2 examples/preemption/paddle_train.py FOLDER
    rlaunch preempt      # in another terminal: the exit status of the job is 78

Every rank saves a part of its own, which needs that all ranks stop at the same step. The parts become a
checkpoint when rank 0 renames their folder, after a barrier. FOLDER is one that all nodes share.
"""

from __future__ import annotations

import sys
from pathlib import Path

import paddle
import paddle.distributed as dist
import rlaunch

STEPS = 1_000_000


def newest(folder: Path) -> int:
    """The step of the newest checkpoint, or 0."""
    return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=0)


def barrier() -> None:
    """Waits for all ranks."""
    total = paddle.zeros([1])
    dist.all_reduce(total)
    total.item()


def main(folder: Path) -> None:
    dist.init_parallel_env()
    paddle.seed(0)
    model = paddle.DataParallel(paddle.nn.Linear(8, 1))
    optimizer = paddle.optimizer.SGD(learning_rate=0.05, parameters=model.parameters())
    part = f"rank-{dist.get_rank()}.pdparams"
    # Rank 0 alone looks: another rank may see a folder later.
    found = paddle.to_tensor([newest(folder) if dist.get_rank() == 0 else 0], dtype="int64")
    dist.broadcast(found, 0)
    first = int(found.item())
    if first:
        model.set_state_dict(paddle.load(str(folder / str(first) / part)))
    print(f"begins at step {first}", flush=True)
    for step in range(first, STEPS):
        if rlaunch.should_stop(step):
            draft = folder / f"{step}.draft"
            draft.mkdir(exist_ok=True)
            paddle.save(model.state_dict(), str(draft / part))
            barrier()
            if dist.get_rank() == 0:
                draft.rename(folder / str(step))
            print(f"saved step {step}, {rlaunch.time_left():.0f} s left", flush=True)
            barrier()
            break
        inputs = paddle.randn([32, 8])
        loss = paddle.nn.functional.mse_loss(model(inputs), inputs.sum(axis=1, keepdim=True))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        if step % 100 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
