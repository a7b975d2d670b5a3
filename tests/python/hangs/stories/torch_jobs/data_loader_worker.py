"""Rank 1 waits for a worker process of its DataLoader; the others wait in an all_reduce."""

import threading

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        if rank == 1 and index == 12:
            with lock, lock:
                pass
        return torch.full((8,), float(index))


dist.init_process_group("gloo")
rank = dist.get_rank()
lock = threading.Lock()
for step, batch in enumerate(DataLoader(Samples(), batch_size=4, num_workers=1)):
    if step == 2:
        print(f"rank {rank} ready", flush=True)
    dist.all_reduce(batch)
