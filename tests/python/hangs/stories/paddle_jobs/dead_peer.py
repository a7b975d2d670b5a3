"""Rank 1 exits with status 0; the others wait for a key in the store that it never sets."""

import os

import paddle
import paddle.distributed as dist

dist.init_parallel_env()
rank = dist.get_rank()
store = paddle.base.core.create_or_get_global_tcp_store()
dist.all_reduce(paddle.rand([1]))
print(f"rank {rank} ready", flush=True)
if rank == 1:
    os._exit(0)
store.set(f"checkpoint/{rank}", "yes")
for peer in range(dist.get_world_size()):
    store.wait(f"checkpoint/{peer}")
