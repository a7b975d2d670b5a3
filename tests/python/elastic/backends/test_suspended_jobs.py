"""A job that is suspended as a whole (``scontrol suspend``, a cgroup's freezer) goes on, without a loss."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from effort import each
from elastic_jobs import BACKENDS, PADDLE, TORCH, Backend, Job, Node, joining
from launching import until
from multi_host import MultiHost, await_ranks

LEASE = 2.0
# The limit of a wait for a node that does not come back would be 60 s.
JOIN = 60
RUNS = 'live_until("finish")'


@pytest.fixture(params=[*BACKENDS, "etcd"])
def backend(request: pytest.FixtureRequest, made: MultiHost) -> Backend:
    if request.param == "etcd":
        return made.at(request.getfixturevalue("etcd"))
    return BACKENDS[request.param]


def restarting(module: str) -> list[str]:
    return ["--max-restarts=3"] if module == TORCH else ["--elastic_level=1"]


def tree(node: Node) -> list[psutil.Process]:
    launcher = psutil.Process(node.process.pid)
    return [launcher, *launcher.children(recursive=True)]


def suspend(nodes: list[Node]) -> list[psutil.Process]:
    """Stops all processes of these nodes; those of one node at once, as their parents come first."""
    stopped: list[psutil.Process] = []
    for node in nodes:
        for process in tree(node):
            os.kill(process.pid, signal.SIGSTOP)
            stopped.append(process)

    def all_stopped() -> bool:
        return all(process.status() == psutil.STATUS_STOPPED for process in stopped)

    until(all_stopped, "all to be stopped")
    return stopped


def resume(stopped: list[psutil.Process]) -> None:
    for process in stopped:
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
            until(lambda began=began: time.monotonic() > began + 2.5 * LEASE, "the leases to lapse")
            resume(stopped)
            # As long as a node that is lost would need to be found.
            began = time.monotonic()
            until(lambda began=began: time.monotonic() > began + 1.5 * LEASE, "what follows")
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
