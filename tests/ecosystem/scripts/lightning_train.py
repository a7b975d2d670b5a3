"""Three epochs of a linear model with Lightning's Trainer, which finds its ranks by itself."""

from __future__ import annotations

from pathlib import Path

import lightning
import telling
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

LAST = Path("checkpoints/last.ckpt")
options = telling.options()
losses: list[float] = []


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        data, wanted = batch
        loss = torch.nn.functional.mse_loss(self.layer(data), wanted)
        self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        losses.append(self.trainer.callback_metrics["loss"].item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Story(Callback):
    """Fails or waits in epoch 1, and tells which exception has ended the training."""

    def on_train_batch_start(
        self, trainer: lightning.Trainer, model: object, batch: object, index: int
    ) -> None:
        if index == 1:
            telling.fail_or_wait(options, trainer.current_epoch)
            if options.wait and trainer.current_epoch == 1:
                telling.wait_while(lambda: not trainer.received_sigterm)

    def on_exception(self, trainer: lightning.Trainer, model: object, error: BaseException) -> None:
        telling.tell("exception", name=type(error).__name__)


lightning.seed_everything(1, verbose=False)
inputs = torch.randn(32, 4)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=3,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[ModelCheckpoint("checkpoints", save_last=True), Story()],
)
trainer.fit(
    Model(),
    DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4),
    ckpt_path=LAST if telling.ATTEMPT and LAST.exists() else None,
)
environment = trainer.strategy.cluster_environment
telling.tell(
    environment=type(environment).__name__,
    rank=trainer.global_rank,
    local=trainer.local_rank,
    world=trainer.world_size,
    node=environment.node_rank(),
    losses=losses,
)
