"""Rank 1 is stopped by SIGSTOP before its all_reduce; the others wait in theirs."""

import os
import signal

import torch
import torch.distributed as dist


def train_step(step: int) -> None:
    gradient = torch.rand(8)
    if step == 3:
        print(f"rank {rank} ready", flush=True)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(gradient)


dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(10):
    train_step(step)
