"""Rank 0 reduces over the data group first, the others over the expert group: no order completes."""

import torch
import torch.distributed as dist


def reduce_data() -> None:
    dist.all_reduce(torch.ones(8), group=data)


def reduce_experts() -> None:
    dist.all_reduce(torch.ones(16), group=experts)


dist.init_process_group("gloo")
rank = dist.get_rank()
data, experts = dist.new_group(), dist.new_group()
for step in range(10):
    if step == 3:
        print(f"rank {rank} ready", flush=True)
    if step == 3 and rank == 0:
        reduce_data()
        reduce_experts()
    else:
        reduce_experts()
        reduce_data()
