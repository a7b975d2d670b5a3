"""Rank 1 exits with status 0; the others wait while they create a group with it."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
loss = torch.rand(1)
dist.all_reduce(loss)
print(f"rank {rank} ready", flush=True)
if rank == 1:
    os._exit(0)
evaluation = dist.new_group()
dist.all_reduce(loss, group=evaluation)
