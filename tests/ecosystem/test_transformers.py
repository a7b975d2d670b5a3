"""transformers' Trainer on rlaunch."""

from __future__ import annotations

import comparing
from ecosystem_jobs import RLAUNCH_RUN, Jobs
from ecosystem_table import Row

SCRIPT = "trainer_train.py"


def test_training(jobs: Jobs, row: Row) -> None:
    tried = "training of a small GPT-2 with `Trainer`"
    seen = comparing.train_beside_torchrun(jobs, row, "transformers", tried, SCRIPT)
    assert seen[0]["mode"] == "ParallelMode.DISTRIBUTED"


def test_a_failure(jobs: Jobs, row: Row) -> None:
    comparing.fail_on_rank_1(jobs, row, "transformers", SCRIPT)


def test_a_restart(jobs: Jobs, row: Row) -> None:
    tried = "a restart with `resume_from_checkpoint`"
    comparing.restart_after_a_failure(jobs, row, "transformers", tried, SCRIPT, lost=0)


def test_a_stop(jobs: Jobs, row: Row) -> None:
    command = f"{RLAUNCH_RUN} --nproc-per-node 2 {SCRIPT} --wait"
    row.begin("transformers", "SIGTERM to the launcher, `enable_jit_checkpoint=True`", command)
    job = comparing.stop_when_ready(jobs, command)
    assert (job.folder / "out/checkpoint-2/trainer_state.json").exists(), job.stderr
    assert not (job.folder / "out/checkpoint-2/checkpoint-is-incomplete.txt").exists()
    # The step that had begun is done after the checkpoint; all three epochs have six.
    assert [one["steps"] for one in job.facts()] == [3, 3]
    row.seen = "the Trainer saves a checkpoint within the grace period, and all ranks end by themselves"
