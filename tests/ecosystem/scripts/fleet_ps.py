"""A job with a parameter server as Paddle's fleet sees it: roles, and the trainers' own collectives.

PyPI's Paddle is built without the servers' own code, so nothing is trained here.
"""

from __future__ import annotations

from pathlib import Path

import numpy
import paddle
import telling
from paddle.distributed import fleet

paddle.enable_static()
fleet.init(fleet.PaddleCloudRoleMaker())
if fleet.is_server():
    # As a server does, which the trainers tell that they are done.
    telling.wait_while(lambda: len(list(Path().glob("seen.*.json"))) < fleet.worker_num())
    raise SystemExit
total = fleet.util.all_reduce(numpy.array([fleet.worker_index() + 1]), "sum", "worker")
telling.tell(
    rank=fleet.worker_index(),
    world=fleet.worker_num(),
    servers=len(fleet.server_endpoints()),
    sum=int(total[0]),
)
