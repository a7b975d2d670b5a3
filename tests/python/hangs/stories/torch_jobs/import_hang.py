"""Rank 2 hangs in the import of a module; the others wait in an all_reduce."""

import torch
import torch.distributed as dist


def load_tokenizer() -> None:
    if rank == 2:
        import waits_at_import  # noqa: F401


dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(1))
print(f"rank {rank} ready", flush=True)
load_tokenizer()
dist.all_reduce(torch.ones(8))
