"""Rank 2 hangs in the import of a module; the others wait in an all_reduce."""

import paddle
import paddle.distributed as dist


def load_tokenizer() -> None:
    if rank == 2:
        import waits_at_import  # noqa: F401


dist.init_parallel_env()
rank = dist.get_rank()
dist.all_reduce(paddle.ones([1]))
print(f"rank {rank} ready", flush=True)
load_tokenizer()
dist.all_reduce(paddle.ones([8]))
