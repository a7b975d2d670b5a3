"""Lightning's Trainer and Fabric on rlaunch."""

from __future__ import annotations

import signal

import comparing
from ecosystem_jobs import RLAUNCH_RUN, Jobs
from ecosystem_table import Row

SCRIPT = "lightning_train.py"


def test_training(jobs: Jobs, row: Row) -> None:
    tried = "training with `Trainer(strategy='ddp')`"
    seen = comparing.train_beside_torchrun(jobs, row, "lightning", tried, SCRIPT)
    assert {one["environment"] for one in seen} == {"TorchElasticEnvironment"}
    row.seen += "; the environment is `TorchElasticEnvironment`"


def test_fabric_s_command(jobs: Jobs, row: Row) -> None:
    run = "fabric run --accelerator cpu --devices 2 --strategy ddp fabric_train.py"
    ours = jobs.run(row.begin("lightning", "its command", f"python -m rlaunch.torch {run}"))
    comparing.check_alike(ours, jobs.run(run))
    assert [one["name"] for one in ours.facts("launcher")] == ["rlaunch"] * 2
    row.seen = comparing.ALIKE


def test_a_failure(jobs: Jobs, row: Row) -> None:
    comparing.fail_on_rank_1(jobs, row, "lightning", SCRIPT)


def test_a_restart(jobs: Jobs, row: Row) -> None:
    tried = "a restart with `ckpt_path` of `ModelCheckpoint(save_last=True)`"
    comparing.restart_after_a_failure(jobs, row, "lightning", tried, SCRIPT, lost=1)


def test_a_stop(jobs: Jobs, row: Row) -> None:
    command = f"{RLAUNCH_RUN} --nproc-per-node 2 {SCRIPT} --wait"
    row.begin("lightning", "SIGTERM to the launcher during training", command)
    job = comparing.stop_when_ready(jobs, command)
    assert [one["name"] for one in job.facts("exception")] == ["SIGTERMException"] * 2
    assert job.status == 128 + signal.SIGTERM
    row.seen = "each rank's Trainer ends with `SIGTERMException` and calls the `on_exception` of callbacks"
