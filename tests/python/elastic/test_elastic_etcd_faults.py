"""Faults of etcd, launchers and hosts while ranks run, in jobs whose nodes rendezvous at etcd."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import each
from elastic_jobs import (
    NODE_LOST,
    NOTES_SIGTERM,
    PADDLE,
    STORE_LOST,
    TORCH,
    Job,
    Node,
    await_next_round,
    freeze_until_lost,
)
from etcd import Etcd
from launching import gone, supervisor_of, until
from multi_host import MultiHost, await_ranks, joining, lived, name_of, rounds_of

LEASE = 3.0

RUN = 'live_until("finish")\n'
# One that does not hear that it is to stop.
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + RUN


@pytest.fixture
def own(made: MultiHost, tmp_path: Path) -> Iterator[Etcd]:
    """One that a test may harm."""
    with made.etcd(tmp_path / "etcd") as etcd:
        yield etcd


def both(
    job: Job, *args: str, module: str = PADDLE, body: str = RUN, lost: float | None = None
) -> list[Node]:
    """Two nodes whose ranks run."""
    script = job.script(body)
    nodes = job.start(*joining(module, 30, LEASE, lost), *args, script, module=module)
    await_ranks(job, nodes)
    return nodes


def in_order(nodes: list[Node]) -> list[Node]:
    """By the numbers that they have."""
    return sorted(nodes, key=lambda node: int(node.events("round_started")[0]["node"]))


def ended_after(node: Node, began: float, event: str = "job_ended") -> float:
    return float(node.events(event)[-1]["monotonic"]) - began


def pass_by(seconds: float, since: float) -> None:
    until(lambda: time.monotonic() > since + seconds, f"{seconds} s")


def check_goes_on(job: Job, nodes: list[Node]) -> None:
    """It ends well, and has never been anything but one round."""
    now = time.monotonic()
    # Whatever follows from what has been would have come by then.
    pass_by(LEASE + 1, now)
    assert [rounds_of(node) for node in nodes] == [[1]] * len(nodes), [node.stderr() for node in nodes]
    job.finish()
    job.end_successfully()
    assert job.check_one_world() == {1: 2}


@pytest.mark.parametrize("how", ["killed", "paused", "unplugged"])
def test_ranks_run_on_without_etcd(tmp_path: Path, made: MultiHost, own: Etcd, how: str) -> None:
    with Job(tmp_path, made.on, made.at(own)) as job:
        nodes = both(job)
        began = time.monotonic()
        if how == "killed":
            own.stop()
        elif how == "paused":
            own.pause()
        else:
            made.server.link("down")
        try:
            for node in nodes:
                node.await_message(
                    r"no contact with etcd at .*: .+; the ranks keep running for up to 60\.0 s", LEASE + 1
                )
            pass_by(2 * LEASE, began)
        finally:
            if how == "killed":
                own.start()
            elif how == "paused":
                own.resume()
            else:
                made.server.link("up")
        for node in nodes:
            said = node.await_message(r"contact with etcd at .* restored after ([0-9.]+) s")
            assert LEASE < float(said[1]) < 20
        check_goes_on(job, nodes)
        assert own.keys("/rlaunch/") == []


@pytest.mark.parametrize("how", ["moved", "killed"])
def test_ranks_run_on_when_a_clusters_leader_goes(tmp_path: Path, made: MultiHost, how: str) -> None:
    with made.cluster(tmp_path / "etcd") as cluster, Job(tmp_path, made.on, made.at(cluster)) as job:
        nodes = both(job)
        leader = cluster.leader()
        if how == "moved":
            assert cluster.move_leader() is not leader
        else:
            leader.stop()
        check_goes_on(job, nodes)
        others = [member for member in cluster.members if member is not leader]
        assert others[0].keys("/rlaunch/") == []


@each("module", [PADDLE, TORCH])
def test_a_job_ends_without_etcd_after_the_time_that_it_may(
    tmp_path: Path, made: MultiHost, own: Etcd, module: str
) -> None:
    with Job(tmp_path, made.on, made.at(own)) as job:
        # There is no grace period: when the time is over, the others may have continued.
        nodes = both(job, module=module, lost=3, body=DEAF)
        began = time.monotonic()
        own.stop()
        for node in nodes:
            end = node.end()
            assert end.status == STORE_LOST, end.stderr
            assert f"no contact with etcd at {own.address}" in end.error_lines()[-1], end.stderr
            assert re.search(r"for [34] s: ", end.error_lines()[-1]), end.stderr
            assert node.result()["outcome"] == "store_lost"
            assert 3 < ended_after(node, began) < LEASE + 3 + 2
            assert not node.ranks()
        job.check_one_world()


@pytest.mark.parametrize("body", [RUN, DEAF], ids=["", "deaf"])
@each("module", [PADDLE, TORCH])
def test_a_host_that_is_cut_off_stops_before_the_other_goes_on(
    tmp_path: Path, made: MultiHost, etcd: Etcd, module: str, body: str
) -> None:
    with Job(tmp_path, made.on, made.at(etcd), "1:2") as job:
        args = (
            ["--elastic_level=1", "--grace_period=1"]
            if module == PADDLE
            else ["--max-restarts=3", "--shutdown-timeout=1"]
        )
        zero, one = both(job, *args, module=module, body=body)
        cut = time.monotonic()
        made.on[1].link("down")
        try:
            zero.await_round(1, 2)
            until(lambda: list(tmp_path.glob("life.0.1.*")), "the survivor's rank")
            until(lambda: one.events("round_ended"), "the end of the ranks that are cut off")
        finally:
            made.on[1].link("up")
        assert lived(job, 1)[1] < lived(job, 2)[0]
        # However deaf they are: before the lease has lapsed, not because the others waited.
        ended = ended_after(one, cut, "round_ended")
        assert ended < 0.8 * LEASE + 0.3
        assert re.search(r"node [01] \(.*10\.77\.0\.2\) is lost: its last heartbeat came", zero.stderr()), (
            zero.stderr()
        )
        assert "the ranks of this node were killed, and it waits for contact" in one.stderr()
        # It takes part again, or has ended by name.
        if one.process.poll() is not None or one.events("job_ended"):
            assert one.end().status == STORE_LOST, one.stderr()
            one = job.node(1, *joining(module, 30, LEASE), *args, "train.py", module=module)
        one.await_round(2, 3)
        zero.await_round(2, 3)
        job.finish()
        job.end_successfully(zero, one)
        assert job.check_one_world() == {1: 2, 2: 1, 3: 2}
        begins = lived(job, 2)[0] - cut
        print(f"{module}: ranks cut off ended after {ended:.2f} s, the next round began after {begins:.2f} s")


def test_a_node_that_thaws_after_its_lease_kills_its_ranks_at_once(
    tmp_path: Path, made: MultiHost, etcd: Etcd
) -> None:
    with Job(tmp_path, made.on, made.at(etcd), "1:2") as job:
        zero, one = both(job, "--elastic_level=1", body=NOTES_SIGTERM + RUN)
        freeze_until_lost(one, lambda: await_next_round(zero))


def test_lost_data_of_etcd_is_no_failed_rendezvous(tmp_path: Path, made: MultiHost, etcd: Etcd) -> None:
    with Job(tmp_path, made.on, made.at(etcd)) as job:
        nodes = both(job)
        etcd.control("del", "--prefix", f"/rlaunch/{name_of(job)}/")
        for node in nodes:
            end = node.end()
            assert end.status == STORE_LOST, end.stderr
            assert node.result()["outcome"] == "store_lost"
            assert not node.ranks()
        job.check_one_world()


def test_a_short_cut_changes_nothing(tmp_path: Path, made: MultiHost, etcd: Etcd) -> None:
    with Job(tmp_path, made.on, made.at(etcd), "1:2") as job:
        nodes = both(job, "--elastic_level=1")
        cut = time.monotonic()
        made.on[1].link("down")
        try:
            pass_by(LEASE / 3, cut)
        finally:
            made.on[1].link("up")
        check_goes_on(job, nodes)


@each("module", [PADDLE, TORCH])
@pytest.mark.parametrize("whole", [False, True], ids=["front", "whole"])
def test_a_killed_launcher_is_noticed_within_the_lease(
    tmp_path: Path, made: MultiHost, etcd: Etcd, module: str, whole: bool
) -> None:
    with Job(tmp_path, made.on, made.at(etcd)) as job:
        nodes = both(job, module=module)
        left = nodes[1].ranks()
        killed = nodes[1].kill(whole)
        end = nodes[0].end()
        assert end.status == NODE_LOST, end.stderr
        said = re.search(
            r"node [01] \(.*10\.77\.0\.2\) is lost: (its launcher has gone|.* came ([0-9.]+) s)", end.stderr
        )
        assert said, end.stderr
        if said[2]:
            # A third of it may have gone by already, and etcd looks at leases once in a while.
            assert LEASE / 3 < float(said[2]) < LEASE * 4 / 3 + 1
        assert nodes[0].result()["outcome"] == "node_lost"
        took = ended_after(nodes[0], killed, "round_ended")
        # Etcd looks at leases once in a while, and this machine may be busy.
        assert took < LEASE + 2
        print(f"{module}, {'whole' if whole else 'front'}: {said[1]}; noticed after {took:.2f} s")
        until(lambda: all(gone(rank) for rank in left), "the end of the killed launcher's ranks")
        job.check_one_world()


@each("which", [0, 1])
def test_the_others_go_on_without_a_killed_launcher(
    tmp_path: Path, made: MultiHost, etcd: Etcd, which: int
) -> None:
    with Job(tmp_path, made.on, made.at(etcd), "1:2") as job:
        nodes = both(job, "--elastic_level=1")
        other = nodes[1 - which]
        killed = nodes[which].kill()
        other.await_round(1, 2)
        until(lambda: list(tmp_path.glob(f"life.{other.label}.1.*")), "the survivor's rank")
        # Others are waited for, `--elastic_timeout` long.
        assert lived(job, 2)[0] - killed < LEASE + 1 + 2 + 1
        job.finish()
        job.end_successfully(other)
        assert job.check_one_world() == {1: 2, 2: 1}
        below = f"/rlaunch/{name_of(job)}/"
        until(lambda: not etcd.keys(below), f"the end of {below}", 2 * LEASE)


@each("module", [PADDLE, TORCH])
@pytest.mark.parametrize("killed", ["front", "supervisor"])
def test_half_a_launcher_ends_its_node_at_etcd_at_once(
    tmp_path: Path, made: MultiHost, etcd: Etcd, module: str, killed: str
) -> None:
    with Job(tmp_path, made.on, made.at(etcd), "1:2") as job:
        script = job.script(RUN)
        elastic = "--elastic_level=1" if module == PADDLE else "--max-restarts=3"
        zero, one = job.start(*joining(module, 30, 60), elastic, script, module=module)
        await_ranks(job, [zero, one])
        left = one.ranks()
        (one.process if killed == "front" else supervisor_of(one.process)).kill()
        # Its lease lapses no sooner than 40 s after the last renewal.
        zero.await_round(1, 2, limit=30)
        assert all(gone(rank) for rank in left)
        assert re.search(r"node [01] \(.*10\.77\.0\.2\) is lost: its launcher has gone", zero.stderr())
        job.finish()
        job.end_successfully(zero)
        assert job.check_one_world() == {1: 2, 2: 1}
        # The other half of the lost launcher may still be leaving; the job's lease would last for minutes.
        until(lambda: not etcd.keys(f"/rlaunch/{name_of(job)}/"), "the end of the job's keys", 20)


# In a host's namespace: no way to that address any more, or a way again.
ROUTE = """
import sys
from pyroute2 import IPRoute
with IPRoute() as network:
    network.route(sys.argv[1], type="blackhole", dst=sys.argv[2] + "/32")
"""


def test_a_node_whose_job_ended_without_it_ends_by_name(tmp_path: Path, made: MultiHost, etcd: Etcd) -> None:
    def route(word: str) -> None:
        with made.on[1].run([sys.executable, "-c", ROUTE, word, made.server.ip]) as process:
            assert process.wait() == 0

    with Job(tmp_path, made.on, made.at(etcd), "1:2") as job:
        # It finds the other node where it does not find etcd, which it takes to be down.
        zero, one = both(job, "--elastic_level=1", body='live_until(f"finish{node}")\n')
        route("add")
        try:
            zero.await_round(1, 2)
            (tmp_path / "finish0").touch()
            job.end_successfully(zero)
            assert etcd.keys(f"/rlaunch/{name_of(job)}/") == []
        finally:
            route("del")
        end = one.end()
        assert end.status == STORE_LOST, end.stderr
        assert "it ended without this node" in end.error_lines()[-1]
        assert rounds_of(one) == [1]
        assert not one.ranks()
        assert etcd.keys(f"/rlaunch/{name_of(job)}/") == []
