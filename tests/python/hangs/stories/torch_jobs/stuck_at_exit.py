"""Rank 1 raises an exception and waits at exit for a thread; the others wait in an all_reduce."""

import queue
import threading

import torch
import torch.distributed as dist


def prefetch(wanted: queue.Queue) -> None:
    while True:
        wanted.get()


def train_step(step: int) -> None:
    if step == 3:
        print(f"rank {rank} ready", flush=True)
        if rank == 1:
            raise ValueError("bad sample 17")
    dist.all_reduce(torch.rand(8))


dist.init_process_group("gloo")
rank = dist.get_rank()
threading.Thread(target=prefetch, args=[queue.Queue()], name="prefetch").start()
for step in range(10):
    train_step(step)
