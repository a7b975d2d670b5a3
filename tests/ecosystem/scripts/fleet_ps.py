"""A parameter-server job with Paddle's fleet: workers that train a linear model, each at its own pace."""

from __future__ import annotations

import os

# Paddle's parameter servers know programs of the older form only.
os.environ.update(FLAGS_enable_pir_api="0")

import numpy
import paddle
import telling
from paddle.distributed import fleet

paddle.enable_static()
fleet.init(fleet.PaddleCloudRoleMaker())
data = paddle.static.data("data", [None, 4], "float32")
wanted = paddle.static.data("wanted", [None, 1], "float32")
loss = paddle.nn.functional.square_error_cost(paddle.static.nn.fc(data, 1), wanted).mean()
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
fleet.distributed_optimizer(paddle.optimizer.SGD(0.01), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    fleet.init_worker()
    batch = numpy.arange(16, dtype="float32").reshape(4, 4) / 16
    losses = [
        float(
            executor.run(
                paddle.static.default_main_program(),
                feed={"data": batch, "wanted": batch.sum(axis=1, keepdims=True)},
                fetch_list=[loss],
            )[0]
        )
        for _ in range(20)
    ]
    fleet.stop_worker()
    telling.tell(
        rank=fleet.worker_index(),
        world=fleet.worker_num(),
        servers=len(fleet.server_endpoints()),
        role=os.environ["TRAINING_ROLE"],
        learned=losses[-1] < losses[0],
    )
