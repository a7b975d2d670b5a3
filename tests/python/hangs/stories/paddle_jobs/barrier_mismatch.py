"""The last rank leaves the loop early for the final all_reduce; the others wait in a barrier."""

import paddle
import paddle.distributed as dist


def train(batches: int) -> paddle.Tensor:
    loss = paddle.zeros([1])
    for step in range(batches):
        if step == 3:
            print(f"rank {rank} ready", flush=True)
        loss += paddle.rand([1])
        dist.barrier()
    return loss


def average(loss: paddle.Tensor) -> float:
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


dist.init_parallel_env()
rank = dist.get_rank()
last = dist.get_world_size() - 1
loss = train(3 if rank == last else 4)
if rank == last:
    print(f"rank {rank} ready", flush=True)
print("loss", average(loss))
