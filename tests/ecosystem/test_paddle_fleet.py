"""PaddlePaddle's fleet on rlaunch, beside Paddle's own launcher."""

from __future__ import annotations

import comparing
from ecosystem_jobs import PADDLE, RLAUNCH, Jobs
from ecosystem_table import Row

AS_UNDER_PADDLE = "as under Paddle's launcher"


def test_collective(jobs: Jobs, row: Row) -> None:
    options = "--nproc_per_node 2 fleet_train.py"
    command = row.begin("paddlepaddle", "`fleet`, a collective job", f"{RLAUNCH} {options}")
    comparing.check_alike(jobs.run(command), jobs.run(f"{PADDLE} {options}"))
    row.seen = AS_UNDER_PADDLE


def test_parameter_server(jobs: Jobs, row: Row) -> None:
    options = "--server_num 1 --trainer_num 2 fleet_ps.py"
    command = row.begin(
        "paddlepaddle",
        "`fleet`, roles and a sum of two trainers beside a parameter server",
        f"{RLAUNCH} {options}",
    )
    ours = jobs.run(command)
    seen = comparing.check_alike(ours, jobs.run(f"{PADDLE} {options}"))
    assert [(one["servers"], one["sum"]) for one in seen] == [(1, 3)] * 2
    row.seen = AS_UNDER_PADDLE


def test_a_failure(jobs: Jobs, row: Row) -> None:
    command = f"{RLAUNCH} --nproc_per_node 2 fleet_train.py --fail 1"
    job = jobs.run(row.begin("paddlepaddle", "an exception of rank 1 in the second step", command), status=1)
    comparing.check_report(job)
    row.seen = comparing.REPORTED
