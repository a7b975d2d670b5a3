"""Servers and trainers of several nodes that find each other: talks, failures, stops, refusals."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_jobs import FAILED_ELSEWHERE, NOT_MET, STOPPED_ELSEWHERE, AtMaster, Backend, Job, Node
from etcd import Etcd
from launching import Place, until
from multi_host import MultiHost, multi_host
from serving import TALK
from serving import script as script_of_servers
from test_launch_ps import READER


@pytest.fixture(scope="module")
def network() -> Iterator[MultiHost]:
    with multi_host(3) as made:
        yield made


@pytest.fixture(params=["master", "etcd"])
def backend(
    request: pytest.FixtureRequest, network: MultiHost, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Backend]:
    if request.param == "master":
        yield AtMaster
        return
    with network.etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        assert isinstance(etcd, Etcd)
        yield network.at(etcd)


def script(job: Job, body: str, framework: str | None = None) -> str:
    return script_of_servers(Place(job.folder), body, framework=framework)


def start(job: Job, *args: str, counts: list[tuple[int, int]], numbered: bool = False) -> list[Node]:
    """A launcher on each host, with so many servers and trainers."""
    words = [[f"--server_num={servers}", f"--trainer_num={trainers}"] for servers, trainers in counts]
    ranks = [[f"--rank={number}"] if numbered else [] for number in range(len(counts))]
    return [job.node(on, *words[on], *ranks[on], *args) for on in range(len(counts))]


@pytest.mark.parametrize("numbered", [False, True])
def test_servers_and_trainers_of_three_nodes_talk(
    tmp_path: Path, network: MultiHost, backend: Backend, numbered: bool
) -> None:
    with Job(tmp_path, network.on, backend, "3") as job:
        name = script(job, TALK)
        nodes = start(job, name, counts=[(1, 2), (2, 1), (1, 1)], numbered=numbered)
        job.end_successfully()
        servers = [f"PSERVER.{number}" for number in range(4)]
        trainers = [f"TRAINER.{number}" for number in range(4)]
        assert {path.name for path in tmp_path.glob("said.*")} == {
            f"said.{who}" for who in (*servers, *trainers)
        }
        heard = sorted((tmp_path / "log.1/serverlog.1").read_text().splitlines())
        assert len(heard) == 8
        assert set(trainers) < set(heard)
        numbers = [
            [(rank["role"], rank["rank"]) for rank in node.result()["ranks"] if rank["role"] == "server"]
            for node in nodes
        ]
        assert sorted(number for node in numbers for _, number in node) == [0, 1, 2, 3]
        if numbered:
            assert numbers == [[("server", 0)], [("server", 1), ("server", 2)], [("server", 3)]]


def test_paddle_s_role_maker_reads_the_variables_on_two_nodes(tmp_path: Path, network: MultiHost) -> None:
    with Job(tmp_path, network.on[:2], AtMaster) as job:
        start(
            job, "--with_gloo=0", script(job, READER, framework="paddle"), counts=[(1, 1)] * 2, numbered=True
        )
        job.end_successfully()
        for number in range(2):
            for role, word in (("PSERVER", "server"), ("TRAINER", "worker")):
                seen = str((word, True, number, 2, 2))
                assert (tmp_path / f"seen.{role}.{number}").read_text() == seen


# All have begun; then one ends so.
ENDS = """
tell("ready")
if who == "{who}":
    for name in ("PSERVER.0", "PSERVER.1", "TRAINER.0", "TRAINER.1"):
        await_file(f"ready.{{name}}")
    {how}
sleep()
"""


def test_a_server_that_fails_ends_the_job_on_all_nodes(
    tmp_path: Path, network: MultiHost, backend: Backend
) -> None:
    with Job(tmp_path, network.on[:2], backend) as job:
        name = script(job, ENDS.format(who="PSERVER.1", how='raise ValueError("the table is full")'))
        first, second = start(job, name, counts=[(1, 1)] * 2, numbered=True)
        assert (first.end().status, second.end().status) == (FAILED_ELSEWHERE, 1)
        assert "server 1 on node 1 (" in first.stderr()
        for node in (first, second):
            assert "ValueError: the table is full" in node.stderr()
            culprit = node.result()["job_culprit"]
            assert (culprit["role"], culprit["rank"], culprit["node"]) == ("server", 1, 1)
            assert not node.ranks()


def test_a_failed_trainer_restarts_the_processes_of_all_nodes(tmp_path: Path, network: MultiHost) -> None:
    body = """
    key = os.environ["RLAUNCH_RANK_KEY"].split("/")[1]
    tell(f"ready.{key}")
    if key == "0" and who == "TRAINER.1":
        for name in ("PSERVER.0", "PSERVER.1", "TRAINER.0"):
            await_file(f"ready.0.{name}")
        sys.exit(5)
    if key == "0":
        sleep()
    """
    with Job(tmp_path, network.on[:2], AtMaster) as job:
        args = ["--max_restart=1", "--restart_delay=0", script(job, body)]
        start(job, *args, counts=[(1, 1)] * 2, numbered=True)
        job.end_successfully()
        again = {path.name for path in tmp_path.glob("ready.1.*")}
        assert again == {f"ready.1.{who}.{number}" for who in ("PSERVER", "TRAINER") for number in range(2)}


def test_a_stopped_node_stops_all(tmp_path: Path, network: MultiHost, backend: Backend) -> None:
    with Job(tmp_path, network.on[:2], backend) as job:
        nodes = start(job, script(job, 'tell("ready"); sleep()'), counts=[(1, 1)] * 2, numbered=True)
        job.await_files(*(f"ready.{who}.{number}" for who in ("PSERVER", "TRAINER") for number in range(2)))
        nodes[1].process.send_signal(signal.SIGTERM)
        assert [node.end().status for node in nodes] == [STOPPED_ELSEWHERE, 128 + signal.SIGTERM]
        assert not [process for node in nodes for process in node.ranks()]


def test_a_node_waits_for_the_others_for_a_bounded_time(tmp_path: Path, network: MultiHost) -> None:
    with Job(tmp_path, network.on[:2], AtMaster) as job:
        (node,) = start(job, "--join_timeout=3", script(job, "tell('began')"), counts=[(1, 1)])
        node.await_message(r"1 of 2 nodes are here: ")
        ended = node.end()
        assert ended.status == NOT_MET, ended.stderr
        assert not list(tmp_path.glob("began.*"))


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (["--run_mode=ps", "--rank=0"], r"--rank 0: \S+ has that number already"),
        (
            ["--nproc_per_node=1", "--rank=1"],
            "the front end: it was started with paddle, the job with paddle, parameter servers; start all",
        ),
    ],
)
def test_a_node_that_does_not_fit_is_refused(
    tmp_path: Path, network: MultiHost, own: list[str], why: str
) -> None:
    with Job(tmp_path, network.on, AtMaster) as job:
        name = script(job, TALK)
        first = job.node(0, "--run_mode=ps", "--rank=0", name)
        first.await_message(r"1 of 2 nodes are here: ")
        refused = job.node(1, *own, name)
        ended = refused.end()
        assert ended.status == NOT_MET, ended.stderr
        assert re.search(why, ended.stderr), ended.stderr
        # The job goes on with one that fits.
        job.node(2, "--run_mode=ps", "--rank=1", name)
        job.end_successfully(first, job.nodes[2])


def test_a_command_for_the_other_nodes_is_printed_with_the_numbers(
    tmp_path: Path, network: MultiHost
) -> None:
    class Nowhere:
        def paddle(self) -> list[str]:
            return []

        torch = paddle

        def close(self) -> None:
            pass

    with Job(tmp_path, network.on[:2], lambda _: Nowhere()) as job:
        name = script(job, TALK)
        job.node(0, "--server_num=1", "--trainer_num=2", name)

        def printed() -> re.Match[str] | None:
            text = (tmp_path / "out.0").read_text()
            return re.search(r"RLAUNCH_JOB_SECRET=(\S+) python -m rlaunch (--master .*)\n", text)

        found: re.Match[str] = until(printed, "the command")
        *words, last = found[2].split()
        assert {"--server_num=1", "--trainer_num=2"} < set(words)
        command = [sys.executable, "-m", "rlaunch", *words, "--log_dir=log.1", last]
        job.run(1, command, RLAUNCH_JOB_SECRET=found[1])
        job.end_successfully()


def test_numbers_of_nodes_that_change_are_refused(place: Place) -> None:
    ended = place.run("--server_num=1", "--nnodes=1:2", "--master=127.0.0.1:1", "train.py")
    assert ended.status == 2
    assert "--nnodes 1:2: a job with parameter servers has a fixed number of nodes; give 2" in ended.stderr


def test_a_plan_says_that_nodes_find_each_other(place: Place) -> None:
    place.script("")
    args = ["--server_num=1", "--trainer_num=2", "--nnodes=2", "--master=127.0.0.1:9", "--host=127.0.0.1"]
    ended = place.run("--dry_run=json", *args, "train.py")
    assert ended.status == 0, ended.stderr
    plan = json.loads(ended.stdout)
    assert plan["meeting"].startswith(
        "this node's 1 server(s), 2 rank(s) of a job of 2 nodes that rendezvous at 127.0.0.1:9"
    )
    assert [rank["role"] for rank in plan["ranks"]] == ["server", "rank", "rank"]
