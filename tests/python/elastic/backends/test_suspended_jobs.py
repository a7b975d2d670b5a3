"""A job that is suspended as a whole (``scontrol suspend``, a cgroup's freezer) goes on, without a loss."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from effort import each
from elastic_jobs import PADDLE, TORCH, Backend, Job, Node, await_next_round, joining
from launching import gone, until
from multi_host import MultiHost, await_ranks

# Launchers that run again have 0.3 of it to find each other, on a busy machine too.
LEASE = 6.0
# The limit of a wait for a node that does not come back would be 60 s.
JOIN = 60
RUNS = 'live_until("finish")'


def restarting(module: str) -> list[str]:
    return ["--max-restarts=3"] if module == TORCH else ["--elastic_level=1"]


def suspend(nodes: list[Node]) -> list[psutil.Process]:
    """Stops all processes of these nodes. None of those that are stopped is reaped, or starts another."""
    stopped: list[psutil.Process] = []

    def stop(process: psutil.Process) -> None:
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE), "it to be stopped")
        stopped.append(process)
        for child in process.children():
            stop(child)

    for node in nodes:
        stop(psutil.Process(node.process.pid))
    return stopped


def resume(stopped: list[psutil.Process]) -> None:
    for process in stopped:
        # The launcher, which runs first, may have killed ranks meanwhile.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)


@each("module", [PADDLE, TORCH])
@pytest.mark.parametrize("restarts", [False, True], ids=["fixed", "restarts"])
def test_a_job_that_was_suspended_for_longer_than_a_lease_goes_on(
    tmp_path: Path, made: MultiHost, backend: Backend, module: str, restarts: bool
) -> None:
    with Job(tmp_path, made.on, backend) as job:
        options = restarting(module) if restarts else []
        nodes = job.start(*joining(module, JOIN, LEASE), *options, job.script(RUNS), count=2, module=module)
        await_ranks(job, nodes)
        pids = {rank.pid for node in nodes for rank in node.ranks()}
        for _ in range(2):
            stopped = suspend(nodes)
            began = time.monotonic()
            until(lambda began=began: time.monotonic() > began + 1.5 * LEASE, "the leases to lapse")
            resume(stopped)
            # As long as a node that is lost would need to be found.
            began = time.monotonic()
            until(lambda began=began: time.monotonic() > began + 1.3 * LEASE, "what follows")
            for node in nodes:
                assert node.process.poll() is None, node.stderr()
        if restarts:
            for node in nodes:
                node.await_round(2)
        else:
            assert {rank.pid for node in nodes for rank in node.ranks()} == pids
        job.finish()
        job.end_successfully()
        job.check_one_world()
        for node in nodes:
            assert not [
                one for one in node.events() if one["event"] == "round_ended" and "failed" in str(one)
            ]
            assert node.result()["outcome"] == "completed", node.result()


@each("module", [PADDLE, TORCH])
def test_the_ranks_of_a_node_that_is_suspended_alone_take_no_step_beside_the_next_round(
    tmp_path: Path, made: MultiHost, backend: Backend, module: str
) -> None:
    with Job(tmp_path, made.on, backend, "1:2") as job:
        args = [*joining(module, JOIN, LEASE), *restarting(module), job.script(RUNS)]
        zero, one = job.start(*args, count=2, module=module)
        await_ranks(job, [zero, one])
        stopped, ranks = suspend([one]), one.ranks()
        try:
            await_next_round(zero)
        finally:
            # Not the ranks: they would go on until the launcher has run.
            resume([process for process in stopped if process not in ranks])
        until(lambda: all(gone(rank) for rank in ranks), "the end of the suspended ranks")
        one.await_round(2, 3)
        zero.await_round(2, 3)
        job.finish()
        job.end_successfully(zero, one)
        # A busy machine may take a lease's time once more.
        assert list(job.check_one_world().items())[:3] == [(1, 2), (2, 1), (3, 2)]


@each("module", [PADDLE, TORCH])
def test_a_round_that_begins_while_ctrl_z_suspends_the_job_begins_suspended(
    tmp_path: Path, made: MultiHost, backend: Backend, module: str
) -> None:
    with Job(tmp_path, made.on, backend) as job:
        args = [*joining(module, JOIN, JOIN), job.script(RUNS)]
        zero = job.node(0, *args, module=module)
        zero.await_message("1 of 2 nodes are here|waiting for other nodes")
        zero.process.send_signal(signal.SIGTSTP)
        one = job.node(1, *args, module=module)
        # The rank of the other node runs.
        one.await_round(2, 1)
        until(
            lambda: [rank.status() for rank in zero.ranks()] == [psutil.STATUS_STOPPED],
            "its rank, stopped",
        )
        zero.process.send_signal(signal.SIGCONT)
        until(
            lambda: psutil.STATUS_STOPPED not in [rank.status() for rank in zero.ranks()],
            "its ranks to go on",
        )
        job.finish()
        job.end_successfully()
