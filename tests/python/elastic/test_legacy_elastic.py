"""Elastic jobs of the legacy launcher, with a real etcd as rendezvous backend."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from etcd import Etcd
from launching import await_gone, until
from legacy_nodes import Nodes, numbers


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def nodes(tmp_path: Path, etcd: Etcd) -> Iterator[Nodes]:
    here = Nodes(tmp_path, etcd)
    try:
        yield here
    finally:
        here.clean()
        for job in {node.job for node in here.all}:
            etcd.control("del", "--prefix", f"/rlaunch/{job}/")


def test_two_nodes_run_and_complete(nodes: Nodes, etcd: Etcd) -> None:
    hook = 'echo "$PADDLE_TRAINER_ID of $PADDLE_TRAINERS"'
    one, two = nodes.begin(range(1, 3), "--np", "2", "--nproc_per_node", "1", "--elastic_pre_hook", hook)
    variables = [node.round(0) for node in (one, two)]
    assert [numbers(each) for each in variables] == [
        ("0", "127.0.0.1,127.0.0.2"),
        ("1", "127.0.0.1,127.0.0.2"),
    ]
    listed = variables[0]["PADDLE_TRAINER_ENDPOINTS"]
    assert [endpoint.split(":")[0] for endpoint in listed.split(",")] == ["127.0.0.1", "127.0.0.2"]
    assert {
        each[name]
        for each in variables
        for name in ("PADDLE_TRAINER_ENDPOINTS", "DISTRIBUTED_TRAINER_ENDPOINTS")
    } == {listed}
    assert [each["PADDLE_CURRENT_ENDPOINT"] for each in variables] == listed.split(",")
    assert etcd.keys("/rlaunch/job/")
    for node in (one, two):
        node.leave(0)
    for number, node in enumerate((one, two)):
        ended = node.ended()
        assert ended.status == 0, ended.stderr
        hosts = ", ".join(f"'{endpoint}'" for endpoint in listed.split(","))
        assert f"ready with hosts [{hosts}]" in ended.stderr
        assert "execute pre_hook..." in ended.stderr
        assert f"pre_hook exec result: {number} of 127.0.0.1,127.0.0.2\n" in ended.stderr
        assert node.text("log/endpoints.log") == "PADDLE_TRAINER_ENDPOINTS: \n" + listed.replace(",", "\n")
    assert not etcd.keys("/rlaunch/job/")


def test_a_hook_that_complains_stops_nothing(nodes: Nodes) -> None:
    (node,) = nodes.begin(range(1, 2), "--np", "1", "--elastic_pre_hook", "echo no such luck >&2")
    node.leave(0)
    ended = node.ended()
    assert ended.status == 0
    assert "pre_hook exec failed: no such luck" in ended.stderr


def test_a_stop_ends_a_hook_that_hangs(nodes: Nodes) -> None:
    hook = "echo $$ > pid.new; mv pid.new pid; sleep 600; true"
    (node,) = nodes.begin(range(1, 2), "--np", "1", "--elastic_pre_hook", hook)
    until((node.folder / "pid").exists, "the hook")
    processes = [psutil.Process(int(node.text("pid")))]
    processes += until(processes[0].children, "its sleep")
    node.stop()
    assert node.ended().status == 143
    await_gone(*processes)
    assert not node.rounds()


def test_background_processes_of_a_hook_live_as_long_as_the_job(nodes: Nodes) -> None:
    hook = "sleep 600 & echo $! > pid; echo done"
    (node,) = nodes.begin(range(1, 2), "--np", "1", "--elastic_pre_hook", hook)
    node.round(0)
    process = psutil.Process(int(node.text("pid")))
    assert process.is_running()
    node.leave(0)
    assert node.ended().status == 0
    assert "pre_hook exec result: done\n" in node.stderr()
    await_gone(process)


def test_102_launches_all_again_as_often_as_it_comes(nodes: Nodes) -> None:
    one, two = nodes.begin(range(1, 3), "--np", "2")
    for number in range(4):
        before = [node.round(number) for node in (one, two)]
        assert [rank["PADDLE_TRAINER_ID"] for rank in before] == ["0", "1"]
        two.leave(102, number)
    for node in (one, two):
        node.round(4)
        node.leave(0)
    for node in (one, two):
        ended = node.ended()
        assert ended.status == 0, ended.stderr
        assert len(node.rounds()) == 5
        assert "ABORT" not in ended.stderr
    asks = "requested a restart of all ranks by exit code 102"
    assert two.stderr().count(f"{asks}; restarting all ranks of all nodes\n") == 4
    assert one.stderr().count(asks) == 4


def test_102_of_fewer_than_the_most_nodes_waits_for_no_more(nodes: Nodes) -> None:
    (node,) = nodes.begin(range(1, 2), "--np", "1:9", "--ips", "127.0.0.1", PADDLE_ELASTIC_TIMEOUT="600")
    node.round(0)
    node.leave(102, 0)
    node.round(1)
    node.leave(0)
    assert node.ended().status == 0


def test_a_failed_node_of_fault_tolerance_is_started_again_from_outside(nodes: Nodes) -> None:
    one, two = (nodes.node(number) for number in (1, 2))
    for number, node in enumerate((one, two)):
        # Not in the order of addresses.
        node.begin("--np", "2", PADDLE_TRAINER_ID=str(1 - number))
    assert numbers(one.round(0)) == ("1", "127.0.0.2,127.0.0.1")
    two.round(0)
    two.leave(7, 0)
    ended = two.ended()
    assert ended.status == 101
    assert "ABORT!!! ABORT!!! ABORT!!!" in ended.stderr
    assert "ERROR rank 0 error with exit code 7, check log for detail." in ended.stderr
    assert one.launcher is not None
    assert one.launcher.poll() is None
    until(lambda: "not ready for np 2" in one.stderr(), "the other node waits")
    replacement = nodes.node(3)
    replacement.begin("--np", "2", PADDLE_TRAINER_ID="0")
    assert numbers(one.round(1)) == ("1", "127.0.0.3,127.0.0.1")
    assert numbers(replacement.round(0)) == ("0", "127.0.0.3,127.0.0.1")
    for node in (one, replacement):
        node.leave(0)
    assert [node.ended().status for node in (one, replacement)] == [0, 0]


def test_a_failed_node_that_is_alone(nodes: Nodes, etcd: Etcd) -> None:
    (node,) = nodes.begin(range(1, 2), "--np", "1")
    node.leave(5)
    assert node.ended().status == 101
    assert len(node.rounds()) == 1
    assert not etcd.keys("/rlaunch/job/")


def test_a_failed_node_of_an_elastic_job_is_left_behind(nodes: Nodes, etcd: Etcd) -> None:
    one, two = nodes.begin(range(1, 3), "--np", "1:2", PADDLE_ELASTIC_TIMEOUT="2")
    for node in (one, two):
        assert node.round(0)["PADDLE_TRAINERS_NUM"] == "2"
    one.leave(7, 0)
    assert one.ended().status == 3
    assert numbers(two.round(1)) == ("0", "127.0.0.2")
    two.leave(0)
    assert two.ended().status == 0
    assert not etcd.keys("/rlaunch/job/")


def test_nodes_come_and_go_and_the_others_keep_their_numbers(nodes: Nodes) -> None:
    job = nodes.begin(range(1, 5), "--np", "2:4", PADDLE_ELASTIC_TIMEOUT="2")
    hosts = [node.host for node in job]
    for number, node in enumerate(job):
        assert numbers(node.round(0)) == (str(number), ",".join(hosts))
    job[0].stop()
    assert job[0].ended().status == 143
    fewer = "127.0.0.4,127.0.0.2,127.0.0.3"
    assert [numbers(node.round(1)) for node in job[1:]] == [("1", fewer), ("2", fewer), ("0", fewer)]
    job[0].begin("--np", "2:4", PADDLE_ELASTIC_TIMEOUT="2")
    all_again = f"{fewer},127.0.0.1"
    assert numbers(job[0].round(1)) == ("3", all_again)
    assert [numbers(node.round(2))[0] for node in job[1:]] == ["1", "2", "0"]
    for node in job:
        node.leave(0)
    assert [node.ended().status for node in job] == [0] * 4


def test_a_node_that_dies_is_missed_when_its_lease_has_run_out(nodes: Nodes) -> None:
    one, two = nodes.begin(range(1, 3), "--np", "1:2", PADDLE_ELASTIC_TIMEOUT="1", PADDLE_ELASTIC_TTL="2")
    for node in (one, two):
        node.round(0)
    one.stop(signal.SIGKILL)
    began = time.monotonic()
    assert numbers(two.round(1)) == ("0", "127.0.0.2")
    assert time.monotonic() - began < 20
    two.leave(0)
    assert two.ended().status == 0


def test_a_list_sets_the_order_and_the_minimum_of_nodes(nodes: Nodes) -> None:
    ips = "127.0.0.2,127.0.0.1"
    one, two = nodes.begin(range(1, 3), "--np", "1:9", "--ips", ips, PADDLE_ELASTIC_TIMEOUT="600")
    assert [numbers(node.round(0)) for node in (one, two)] == [("1", ips), ("0", ips)]
    for node in (one, two):
        node.leave(0)
    assert [node.ended().status for node in (one, two)] == [0, 0]


def test_a_job_whose_name_begins_like_another_s_is_not_touched_by_it(nodes: Nodes, etcd: Etcd) -> None:
    short = nodes.begin(range(1, 3), "--np", "2", job="ex7")
    longer = nodes.begin(range(3, 5), "--np", "2", job="ex7e")
    for node in (*short, *longer):
        node.round(0)
    for node in short:
        node.leave(0)
    assert [node.ended().status for node in short] == [0, 0]
    assert not etcd.keys("/rlaunch/ex7/")
    assert etcd.keys("/rlaunch/ex7e/")
    for node in longer:
        node.leave(0)
    for node in longer:
        assert node.ended().status == 0
        assert len(node.rounds()) == 1
    assert not etcd.keys("/rlaunch/ex7e/")


def test_a_stop_while_nodes_are_waited_for(nodes: Nodes, etcd: Etcd) -> None:
    (node,) = nodes.begin(range(1, 2), "--np", "2")
    until(lambda: "not ready for np 2" in node.stderr(), "the wait")
    node.stop(signal.SIGINT)
    assert node.ended().status == 130
    assert not etcd.keys("/rlaunch/job/")


def test_too_few_nodes_have_an_end(nodes: Nodes) -> None:
    (node,) = nodes.begin(range(1, 2), "--np", "2", "--join_timeout", "1")
    assert node.ended().status == 73
    assert "1 of 2 nodes are here" in node.stderr()
