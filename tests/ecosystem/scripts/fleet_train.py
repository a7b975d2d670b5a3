"""A collective job with Paddle's fleet: a linear model on two ranks."""

from __future__ import annotations

import paddle
import telling
from paddle.distributed import fleet

options = telling.options()
strategy = fleet.DistributedStrategy()
fleet.init(is_collective=True, strategy=strategy)
paddle.seed(1)
model = fleet.distributed_model(paddle.nn.Linear(4, 1))
optimizer = fleet.distributed_optimizer(paddle.optimizer.SGD(0.1, parameters=model.parameters()))
losses = []
for step in range(5):
    telling.fail_or_wait(options, step)
    data = paddle.full([4, 4], float(step + fleet.worker_index()))
    loss = paddle.nn.functional.mse_loss(model(data), data.sum(axis=1, keepdim=True))
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    losses.append(loss.item())
telling.tell(
    rank=fleet.worker_index(),
    world=fleet.worker_num(),
    first=fleet.is_first_worker(),
    endpoints=len(fleet.worker_endpoints()),
    losses=losses,
    weights=[float(parameter.sum()) for parameter in model.parameters()],
)
