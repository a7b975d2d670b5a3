"""Two epochs of a linear model with accelerate; each ends with a checkpoint, from which a restart goes on."""

from __future__ import annotations

from pathlib import Path

import telling
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

options = telling.options()
set_seed(1)
inputs = torch.randn(32, 4)
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
begin = 0
if Path("state/done").exists():
    accelerator.load_state("state")
    begin = 1
losses = []
for epoch in range(begin, 3):
    telling.fail_or_wait(options, epoch)
    for data, wanted in batches:
        loss = torch.nn.functional.mse_loss(model(data), wanted)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    if epoch == 0:
        accelerator.save_state("state")
        accelerator.wait_for_everyone()
        Path("state/done").touch()
telling.tell(
    rank=accelerator.process_index,
    local=accelerator.local_process_index,
    world=accelerator.num_processes,
    distributed=str(accelerator.distributed_type),
    losses=losses,
)
accelerator.end_training()
