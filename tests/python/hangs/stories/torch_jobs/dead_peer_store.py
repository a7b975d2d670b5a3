"""Rank 1 exits with status 0; the others wait for a key in the store that it never sets."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.PrefixStore("checkpoint", dist.distributed_c10d._get_default_store())
dist.all_reduce(torch.rand(1))
print(f"rank {rank} ready", flush=True)
if rank == 1:
    os._exit(0)
store.set(f"saved/{rank}", "yes")
store.wait([f"saved/{peer}" for peer in range(dist.get_world_size())])
