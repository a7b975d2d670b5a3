"""Launchers that are killed, hosts cut off: when the others notice, and that there are never two worlds."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import each
from elastic_jobs import (
    NODE_LOST,
    NOTES_SIGTERM,
    PADDLE,
    STOPPED_ELSEWHERE,
    STORE_LOST,
    TORCH,
    AtMaster,
    Backend,
    Job,
    Node,
    await_next_round,
    freeze_until_lost,
    joining,
)
from hosts import Host, hosts
from launching import gone, until

LEASE = 4

RUN = """
tell(f"began.{node}.{attempt}", world)
live_until("finish")
"""
# The second node's does not hear that it is to stop.
DEAF = 'if node == "1": signal.signal(signal.SIGTERM, signal.SIG_IGN)\n' + RUN


@pytest.fixture(scope="module")
def two() -> Iterator[list[Host]]:
    with hosts(2) as made:
        yield made


def both(job: Job, module: str, *args: str, body: str = RUN) -> tuple[Node, Node]:
    """Two nodes whose ranks run."""
    script = job.script(body)
    zero, one = job.start(*joining(module, 20, LEASE), *args, script, module=module)
    numbers = [node.await_round(2)["node"] for node in (zero, one)]
    assert sorted(numbers) == [0, 1]
    until(lambda: len(list(job.folder.glob("began.*.0.*"))) == 2, "both ranks")
    return zero, one


def ended_after(node: Node, began: float) -> float:
    """How long after that the node wrote down its end."""
    return float(node.events("job_ended")[-1]["monotonic"]) - began


@each("module", [PADDLE, TORCH])
@pytest.mark.parametrize("whole", [False, True], ids=["front", "whole"])
def test_a_killed_launcher_is_noticed_at_once(
    tmp_path: Path, two: list[Host], backend: Backend, module: str, whole: bool
) -> None:
    with Job(tmp_path, two, backend) as job:
        zero, one = both(job, module)
        left = one.ranks()
        killed = one.kill(whole)
        end = zero.end()
        assert end.status == NODE_LOST, end.stderr
        assert re.search(r"node 1 \(.*10\.77\.0\.2\) is lost: its launcher has gone", end.stderr), end.stderr
        assert zero.result()["outcome"] == "node_lost"
        (round_ended,) = zero.events("round_ended")
        assert round_ended["monotonic"] - killed < 1.5
        until(lambda: all(gone(rank) for rank in left), "the end of the killed launcher's ranks")
        job.check_one_world()


@each("module", [PADDLE, TORCH])
@pytest.mark.parametrize("whole", [False, True], ids=["front", "whole"])
def test_without_the_serving_node_the_others_end_within_the_lease(
    tmp_path: Path, two: list[Host], module: str, whole: bool
) -> None:
    with Job(tmp_path, two, AtMaster) as job:
        zero, one = both(job, module)
        killed = zero.kill(whole)
        end = one.end()
        assert end.status == STORE_LOST, end.stderr
        assert ended_after(one, killed) < LEASE + 1
        assert "the master at" in end.stderr
        assert not one.ranks()
        job.check_one_world()


@pytest.mark.parametrize(
    ("module", "options"),
    [(PADDLE, ["--elastic_level=1", "--elastic_timeout=1"]), (TORCH, ["--max-restarts=3"])],
    ids=["rlaunch", "rlaunch.run"],
)
def test_a_killed_launcher_leaves_no_master_that_others_can_join(
    tmp_path: Path, two: list[Host], module: str, options: list[str]
) -> None:
    with Job(tmp_path, two, AtMaster, "1:2") as job:
        # The rank of the killed launcher is still there when another starts.
        zero, one = both(job, module, *options, body=f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{RUN}")
        zero.kill(both=False)
        again = job.node(0, *joining(module, 20, LEASE), *options, "train.py", module=module)
        end = one.end()
        assert end.status == STORE_LOST, end.stderr
        assert len(one.events("round_started")) == 1
        # The new launcher's job is another one, and has no other node.
        again.await_round(1, 1)
        job.finish()
        job.end_successfully(again)


def test_a_job_goes_on_after_a_short_cut(tmp_path: Path, two: list[Host], backend: Backend) -> None:
    with Job(tmp_path, two, backend) as job:
        script = job.script(RUN)
        # By default, after ten seconds of silence a node is lost.
        zero, one = job.start(script)
        for node in (zero, one):
            node.await_round(2)
        cut = time.monotonic()
        two[1].link("down")
        try:
            one.await_message("no contact with .*the ranks keep running")
            until(lambda: time.monotonic() > cut + 5, "five seconds")
        finally:
            two[1].link("up")
        one.await_message("contact with .* restored")
        job.finish()
        job.end_successfully()
        assert job.check_one_world() == {1: 2}


@each("module", [PADDLE, TORCH])
def test_a_host_that_is_cut_off_is_named_and_its_ranks_end(
    tmp_path: Path, two: list[Host], backend: Backend, module: str
) -> None:
    with Job(tmp_path, two, backend) as job:
        zero, one = both(job, module)
        cut = time.monotonic()
        two[1].link("down")
        try:
            end, other = zero.end(), one.end()
        finally:
            two[1].link("up")
        assert end.status == NODE_LOST, end.stderr
        said = re.search(
            r"node 1 \(.*10\.77\.0\.2\) is lost: its last heartbeat came ([0-9.]+) s", end.stderr
        )
        assert said, end.stderr
        assert LEASE / 2 < float(said[1]) < LEASE + 1
        assert zero.events("round_ended")[0]["monotonic"] - cut < LEASE + 1
        assert other.status == STORE_LOST, other.stderr
        assert ended_after(one, cut) < 2 * LEASE
        assert not one.ranks()
        job.check_one_world()


@pytest.mark.parametrize("body", [RUN, DEAF], ids=["", "deaf"])
@each("module", [PADDLE, TORCH])
def test_a_survivor_goes_on_alone_and_there_are_never_two_worlds(
    tmp_path: Path, two: list[Host], backend: Backend, module: str, body: str
) -> None:
    with Job(tmp_path, two, backend, "1:2") as job:
        args = (
            ["--elastic_level=1", "--grace_period=1"]
            if module == PADDLE
            else ["--max-restarts=3", "--shutdown-timeout=1"]
        )
        zero, one = both(job, module, *args, body=body)
        two[1].link("down")
        try:
            zero.await_round(1, 2)
            until(lambda: (job.folder / "began.0.1.0").exists(), "the survivor's rank")
        finally:
            two[1].link("up")
        # It has ended by name, or comes again.
        until(
            lambda: one.process.poll() is not None or one.events("round_ended"),
            "the end of the cut-off ranks",
        )
        again = (
            one
            if one.process.poll() is None
            else job.node(1, *joining(module, 20, LEASE), *args, "train.py", module=module)
        )
        again.await_round(2, 3)
        zero.await_round(2, 3)
        job.finish()
        job.end_successfully(zero, again)
        assert job.check_one_world() == {1: 2, 2: 1, 3: 2}


def test_a_node_that_thaws_after_its_lease_kills_its_ranks_at_once(
    tmp_path: Path, two: list[Host], backend: Backend
) -> None:
    with Job(tmp_path, two, backend, "1:2") as job:
        zero, one = both(job, PADDLE, "--elastic_level=1", body=NOTES_SIGTERM + RUN)
        freeze_until_lost(one, lambda: await_next_round(zero))


def test_so_does_one_whose_job_has_ended_meanwhile(tmp_path: Path, two: list[Host], backend: Backend) -> None:
    with Job(tmp_path, two, backend) as job:
        zero, one = both(job, PADDLE, body=NOTES_SIGTERM + RUN)

        def lost() -> None:
            assert zero.end().status == NODE_LOST

        # No lease binds the ranks of such a job, and the master has gone: it waits 0.3 T for contact.
        freeze_until_lost(one, lost, 0.3 * LEASE + 1)
        assert one.end().status in (NODE_LOST, STORE_LOST), one.stderr()


def test_a_node_that_loses_the_serving_node_ends_before_that_one_goes_on(
    tmp_path: Path, two: list[Host]
) -> None:
    with Job(tmp_path, two, AtMaster, "1:2") as job:
        zero, one = both(job, PADDLE, "--elastic_level=1", "--grace_period=30", body=DEAF)
        two[0].link("down")
        try:
            end = one.end()
            zero.await_round(1, 2)
        finally:
            two[0].link("up")
        assert end.status == STORE_LOST, end.stderr
        job.finish()
        job.end_successfully(zero)
        assert job.check_one_world() == {1: 2, 2: 1}


@each("module", [PADDLE, TORCH])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_of_one_stops_all(
    tmp_path: Path, two: list[Host], backend: Backend, module: str, number: int
) -> None:
    with Job(tmp_path, two, backend) as job:
        zero, one = both(job, module)
        one.process.send_signal(number)
        assert [node.end().status for node in (one, zero)] == [128 + number, STOPPED_ELSEWHERE]
        assert zero.result()["job_culprit"]["text"] == f"its launcher received {signal.Signals(number).name}"
        assert re.search(f"the launcher on .* received {signal.Signals(number).name}", zero.stderr()), (
            zero.stderr()
        )
        assert not zero.ranks()
