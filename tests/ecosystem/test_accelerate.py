"""Hugging Face accelerate on rlaunch."""

from __future__ import annotations

import comparing
import pytest
from ecosystem_jobs import RLAUNCH_RUN, Jobs
from ecosystem_table import Row

SCRIPT = "accelerate_train.py"
LAUNCH = f"accelerate launch {comparing.ACCELERATE}"


def test_training(jobs: Jobs, row: Row) -> None:
    seen = comparing.train_beside_torchrun(jobs, row, "accelerate", "training with `Accelerator`", SCRIPT)
    assert seen[0]["distributed"] == "DistributedType.MULTI_CPU"


def test_its_command(jobs: Jobs, row: Row) -> None:
    command = row.begin("accelerate", "its command", f"python -m rlaunch.torch {LAUNCH} {SCRIPT}")
    comparing.check_alike(jobs.run(command), jobs.run(f"{LAUNCH} {SCRIPT}"))
    row.seen = comparing.ALIKE


@pytest.mark.parametrize("name", ["test_ops", "test_sync"])
def test_its_own_checks(jobs: Jobs, row: Row, name: str) -> None:
    command = f"{RLAUNCH_RUN} --nproc-per-node 2 -m accelerate.test_utils.scripts.{name}"
    jobs.run(row.begin("accelerate", "a check that accelerate ships", command))
    row.seen = "passes"


def test_a_failure(jobs: Jobs, row: Row) -> None:
    comparing.fail_on_rank_1(jobs, row, "accelerate", SCRIPT)


def test_a_restart(jobs: Jobs, row: Row) -> None:
    tried = "a restart from a checkpoint of `save_state`"
    comparing.restart_after_a_failure(jobs, row, "accelerate", tried, SCRIPT, lost=4)
