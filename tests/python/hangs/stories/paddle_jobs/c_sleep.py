"""Rank 2 sleeps in a C function that holds the GIL; the others wait in an all_reduce."""

import ctypes

import paddle
import paddle.distributed as dist

library = ctypes.PyDLL(None)


def preprocess(step: int) -> paddle.Tensor:
    if step == 3 and rank == 2:
        library.sleep(1000)
    return paddle.rand([8])


dist.init_parallel_env()
rank = dist.get_rank()
for step in range(10):
    if step == 3:
        print(f"rank {rank} ready", flush=True)
    batch = preprocess(step)
    dist.all_reduce(batch)
