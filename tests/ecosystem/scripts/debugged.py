"""Two ranks that add up their numbers. `--listen`: rank 1 waits for a debugger."""

from __future__ import annotations

import os
import sys

import telling
from torch import distributed, ones

rank = int(os.environ["RANK"])
if rank == 1 and "--listen" in sys.argv:
    import debugpy

    host, port = debugpy.listen(("127.0.0.1", 0))
    telling.tell("debugger", host=host, port=port)
    debugpy.wait_for_client()
distributed.init_process_group("gloo")
total = ones(1) * (rank + 1)
distributed.all_reduce(total)
sum_of_ranks = int(total.item())
telling.tell(sum=sum_of_ranks)  # A breakpoint of the test.
distributed.destroy_process_group()
