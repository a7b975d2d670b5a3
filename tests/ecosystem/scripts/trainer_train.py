"""Three epochs of a tiny GPT-2 with transformers' Trainer; restarts resume from its last checkpoint."""

from __future__ import annotations

import telling
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

options = telling.options()


class Texts(torch.utils.data.Dataset):
    """Sixteen rows of numbers in the place of texts."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = (torch.arange(8) * (index + 1)) % 32
        return {"input_ids": row, "labels": row}


class Story(TrainerCallback):
    def on_epoch_begin(self, arguments: object, state: object, control: object, **_: object) -> None:
        epoch = round(state.epoch or 0)
        telling.fail_or_wait(options, epoch)
        if options.wait and epoch == 1:
            telling.wait_while(lambda: not requested())


def requested() -> bool:
    """Whether the Trainer's own handler of SIGTERM has asked for a checkpoint."""
    return any(
        callback.jit_manager is not None and callback.jit_manager.is_checkpoint_requested
        for callback in trainer.callback_handler.callbacks
        if hasattr(callback, "jit_manager")
    )


def build() -> Trainer:
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    return Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            "out",
            use_cpu=True,
            num_train_epochs=3,
            per_device_train_batch_size=4,
            save_strategy="epoch",
            logging_steps=1,
            report_to="none",
            disable_tqdm=True,
            enable_jit_checkpoint=options.wait,
            seed=1,
        ),
        train_dataset=Texts(),
        callbacks=[Story()],
    )


trainer = build()
trainer.train(resume_from_checkpoint=get_last_checkpoint("out") if telling.ATTEMPT else None)
telling.tell(
    rank=trainer.args.process_index,
    local=trainer.args.local_process_index,
    world=trainer.args.world_size,
    mode=str(trainer.args.parallel_mode),
    steps=trainer.state.global_step,
    losses=[entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
)
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
