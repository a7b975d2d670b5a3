"""Some steps of a linear model with Lightning Fabric, whose command `fabric run` chooses the ranks."""

from __future__ import annotations

import os

import telling
import torch
from lightning.fabric import Fabric

fabric = Fabric()
fabric.seed_everything(1, verbose=False)
model = torch.nn.Linear(4, 1)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
losses = []
for step in range(5):
    data = torch.full((4, 4), float(step + fabric.global_rank))
    loss = torch.nn.functional.mse_loss(model(data), data.sum(1, keepdim=True))
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(fabric.all_reduce(loss.detach()).item())
telling.tell(
    rank=fabric.global_rank,
    local=fabric.local_rank,
    world=fabric.world_size,
    strategy=type(fabric.strategy).__name__,
    losses=losses,
)
telling.tell("launcher", name="rlaunch" if "RLAUNCH_RANK_KEY" in os.environ else "torchrun")
