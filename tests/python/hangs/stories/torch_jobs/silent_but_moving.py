"""A training that prints nothing after its start, but makes a step about every 0.3 s: it does not hang."""

import time

import torch
import torch.distributed as dist


def load_batch() -> torch.Tensor:
    time.sleep(0.1 + 0.05 * rank)
    return torch.rand(64, 256)


def train_step() -> None:
    optimizer.zero_grad()
    loss = model(load_batch()).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()


dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train_step()
print(f"rank {rank} ready", flush=True)
while True:
    train_step()
