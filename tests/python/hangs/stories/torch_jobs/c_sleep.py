"""Rank 2 sleeps in a C function that holds the GIL; the others wait in an all_reduce."""

import ctypes

import torch
import torch.distributed as dist

library = ctypes.PyDLL(None)


def preprocess(step: int) -> torch.Tensor:
    if step == 3 and rank == 2:
        library.sleep(1000)
    return torch.rand(8)


dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(10):
    if step == 3:
        print(f"rank {rank} ready", flush=True)
    batch = preprocess(step)
    dist.all_reduce(batch)
