"""Rank 1 reads a FIFO without a writer, as on a hung network disk; the others wait in an all_reduce."""

import os
import tempfile

import torch
import torch.distributed as dist


def open_sample() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "sample")
        os.mkfifo(path)
        return os.open(path, os.O_RDWR)  # To write too: it opens without a writer.


def read_sample(file: int) -> bytes:
    return os.read(file, 4096)


dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(10):
    if step == 3:
        print(f"rank {rank} ready", flush=True)
        if rank == 1:
            read_sample(open_sample())
    dist.all_reduce(torch.rand(8))
