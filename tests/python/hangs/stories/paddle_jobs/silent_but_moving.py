"""A training that prints nothing after its start, but makes a step about every 0.3 s: it does not hang."""

import time

import paddle
import paddle.distributed as dist


def load_batch() -> paddle.Tensor:
    time.sleep(0.1 + 0.05 * rank)
    return paddle.rand([64, 256])


def train_step() -> None:
    optimizer.clear_grad()
    loss = model(load_batch()).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()


dist.init_parallel_env()
rank = dist.get_rank()
model = paddle.nn.Sequential(paddle.nn.Linear(256, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 1))
optimizer = paddle.optimizer.SGD(0.01, model.parameters())
train_step()
print(f"rank {rank} ready", flush=True)
while True:
    train_step()
