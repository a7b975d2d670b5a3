"""Restarts: how soon all ranks are there again, and how many restarts of a gloo job succeed."""

from __future__ import annotations

import statistics
import subprocess

from bench_launchers import RUN, TORCHRUN, Launcher
from figures import Cell, Promise
from running import Run
from session import Session, each

RESTARTED = """
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if rank == 1:
        wait_for("up.0")
        tell("death", time.monotonic())
        os._exit(3)
    tell("up", "")
    time.sleep(60)
tell("again", time.monotonic())
"""

# Rank 1 dies after a collective; the group that comes next has to meet anew.
GLOO = """
import datetime
import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=40))
total = torch.ones(1)
dist.all_reduce(total)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 1:
    os._exit(3)
dist.all_reduce(total)
dist.destroy_process_group()
"""


def measure_restart(session: Session) -> None:
    """`--max-restarts 1` of two ranks, of which one dies in the first attempt."""
    both = [it for it in (RUN, TORCHRUN) if it.version]

    def again(launcher: Launcher) -> float:
        with Run(launcher, session.folder, RESTARTED, options=["--max-restarts", "1"]) as run:
            all_there = max(run.await_values("again"))
            return (all_there - run.await_values("death", [1])[0]) * 1000

    turns = session.amount(10, 2)
    session.row(
        f"from the death of a rank to all ranks again, p50 of {turns}",
        each(lambda it: statistics.median(again(it) for _ in range(turns)), both),
        "ms",
    )

    def succeeds(launcher: Launcher) -> bool:
        options = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--max-restarts", "1"]
        with Run(launcher, session.folder, GLOO, options=options) as run:
            try:
                return run.process.wait(90) == 0
            except subprocess.TimeoutExpired:
                return False

    ours, theirs = session.amount(20, 3), session.amount(10, 2)

    def rate(launcher: Launcher) -> Cell:
        tried = theirs if launcher.is_rival else ours
        return 100 * sum(succeeds(launcher) for _ in range(tried)) / tried

    session.row(
        f"restarts of a gloo job that succeed, of {ours} ({theirs} of torchrun)",
        each(rate, both),
        "%",
        Promise("restarts", least=100),
    )
