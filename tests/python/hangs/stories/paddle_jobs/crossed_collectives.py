"""Rank 0 reduces before it broadcasts, the others broadcast first: no order completes.

One group: ranks that create a second group of gloo in Paddle 3.3.1 fail or hang.
"""

import paddle
import paddle.distributed as dist


def reduce_loss() -> None:
    dist.all_reduce(paddle.ones([8]))


def broadcast_state() -> None:
    dist.broadcast(paddle.ones([16]), src=0)


dist.init_parallel_env()
rank = dist.get_rank()
for step in range(10):
    if step == 3:
        print(f"rank {rank} ready", flush=True)
    if step == 3 and rank == 0:
        reduce_loss()
        broadcast_state()
    else:
        broadcast_state()
        reduce_loss()
