"""A script that Hugging Face ships in TRL, on rlaunch: a tiny model and texts of the test's own."""

from __future__ import annotations

import json

import comparing
from ecosystem_jobs import RLAUNCH_RUN, TORCHRUN, Job, Jobs
from ecosystem_table import Row

OPTIONS = (
    "--model_name_or_path model --dataset_name texts --output_dir out --max_steps 4 --save_steps 4 "
    "--use_cpu true --bf16 false --gradient_checkpointing false --per_device_train_batch_size 2 "
    "--logging_steps 1 --report_to none"
)
SHOWN = "--model_name_or_path model --dataset_name texts ..."


def losses(job: Job) -> list[float]:
    state = json.loads((job.folder / "out/checkpoint-4/trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


def train(jobs: Jobs, command: str) -> Job:
    return jobs.run("python tiny_model.py", f"{command} {OPTIONS}")


def test_fine_tuning(jobs: Jobs, row: Row) -> None:
    command = "rlaunch-run --nproc-per-node 2 -m trl.scripts.sft"
    row.begin("trl", "its script for supervised fine-tuning, with a small GPT-2", f"{command} {SHOWN}")
    ours = losses(train(jobs, command))
    assert len(ours) == 4
    assert ours == losses(train(jobs, command.replace(RLAUNCH_RUN, TORCHRUN, 1)))
    row.seen = comparing.ALIKE


def test_its_command(jobs: Jobs, row: Row) -> None:
    """It calls the functions of accelerate's command."""
    command = f"trl sft {comparing.ACCELERATE}"
    row.begin("trl", "its command", f"python -m rlaunch.torch {command} {SHOWN}")
    job = train(jobs, f"python -m rlaunch.torch {command}")
    assert losses(job) == losses(train(jobs, command))
    row.seen = comparing.ALIKE
