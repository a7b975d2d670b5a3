"""A rank that fails in a job of several nodes: the messages, the nodes that stop, and restarts."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import each
from elastic_jobs import FAILED_ELSEWHERE, NODE_LOST, PADDLE, TORCH, Backend, Job, Node
from hosts import Host, hosts
from launching import LIMIT, environment, until, validate

# Rank 1 fails as often as its argument says, once all have begun; the others run on until they may end.
FAIL = """
fails = json.loads(os.environ.get("FAILS", "[]"))
tell(f"began.{node}.{attempt}", world)
if rank == 1 and attempt < len(fails):
    others = [other for other in os.environ["OTHERS"].split(",") if other]
    for other in others:
        await_file(f"began.{other}.{attempt}.0")
    raise ValueError(fails[attempt])
live_until("finish")
"""


@pytest.fixture(scope="module")
def two() -> Iterator[list[Host]]:
    with hosts(2) as made:
        yield made


def check_one_name(nodes: list[Node], status: int, words: str) -> None:
    """Rank 1's node has ended with this status, the other with a victim's. Both name that rank alone."""
    for node, expected in zip(nodes, (FAILED_ELSEWHERE, status), strict=True):
        ended = node.end()
        assert ended.status == expected, ended.stderr
        assert re.search(r"\brank *:? 1\b", ended.stderr), ended.stderr
        assert not re.search(r"(?<!local )\brank *:? 0\b", ended.stderr), ended.stderr
        assert words in ended.stderr
        assert node.result()["outcome"] == "failed"
        assert not node.ranks()


@each("module", [PADDLE, TORCH])
def test_a_failure_stops_all_nodes_with_one_culprit(
    tmp_path: Path, two: list[Host], backend: Backend, module: str
) -> None:
    with Job(tmp_path, two, backend) as job:
        script = job.script(FAIL)
        nodes = job.start(script, module=module, FAILS='["the sea is out"]', OTHERS="0")
        check_one_name(nodes, 1, "ValueError: the sea is out")
        assert "rank 1 on node 1 (" in nodes[0].stderr()
        assert job.check_one_world() == {1: 2}


@each("module", [PADDLE, TORCH])
def test_every_nodes_result_has_the_culprit(
    tmp_path: Path, two: list[Host], backend: Backend, module: str
) -> None:
    with Job(tmp_path, two, backend) as job:
        script = job.script(FAIL)
        nodes = job.start(script, module=module, FAILS='["the sea\\nis out"]', OTHERS="0")
        ended = [node.end().status for node in nodes]
        zero, one = (node.result() for node in nodes)
        assert [result["exit_status"] for result in (zero, one)] == ended == [FAILED_ELSEWHERE, 1]
        validate(zero, "result")
        assert (zero["culprit"], one["culprit"]) == (None, 1)
        log = one["ranks"][0]["log"] if module == PADDLE else one["job_culprit"]["log"]
        for result in (zero, one):
            assert result["job_culprit"] == {
                "node": 1,
                "host": one["host"],
                "role": "rank",
                "rank": 1,
                "exit": {"code": 1},
                "exception": "ValueError",
                "text": "the sea is out",
                "log": log,
            }


# One command starts the launchers of both nodes, and has one exit status: the highest.
STEP = {"SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}


@each("module", [PADDLE, TORCH])
def test_under_srun_all_launchers_have_the_status_of_the_failure(
    tmp_path: Path, two: list[Host], backend: Backend, module: str
) -> None:
    with Job(tmp_path, two, backend) as job:
        script = job.script(FAIL)
        for number in range(2):
            step = {**STEP, "SLURM_NODEID": str(number), "SLURM_STEP_NODELIST": "n[1-2]"}
            job.node(number, script, module=module, FAILS='["the sea is out"]', OTHERS="0", **step)
        assert [node.end().status for node in job.nodes] == [1, 1]


def test_a_launcher_that_cannot_begin_is_the_culprit_of_all(
    tmp_path: Path, two: list[Host], backend: Backend
) -> None:
    with Job(tmp_path, two, backend) as job:
        (tmp_path / "text").write_text("no program")
        (tmp_path / "text").chmod(0o755)
        zero, one = job.node(0, job.script(FAIL)), job.node(1, "--no_python", str(tmp_path / "text"))
        assert (zero.end().status, one.end().status) == (FAILED_ELSEWHERE, 71), one.stderr()
        culprit = zero.result()["job_culprit"]
        assert (culprit["node"], culprit["rank"], culprit["exit"]) == (1, 1, None)
        assert "text" in culprit["text"]


def test_too_few_nodes_after_ranks_have_run_have_another_status_than_before(
    tmp_path: Path, two: list[Host], backend: Backend
) -> None:
    with Job(tmp_path, two, backend) as job:
        options = ["--elastic_level=0", "--join_timeout=3", job.script(FAIL)]
        zero, one = job.start(*options, FAILS='["no 1"]', OTHERS="0")
        assert one.end().status == 1
        assert zero.end().status == NODE_LOST, zero.stderr()
        assert zero.result()["outcome"] == "too_few_nodes"


@each("module", [PADDLE, TORCH])
def test_what_another_nodes_rank_says_moves_no_cursor_and_begins_no_line(
    tmp_path: Path, two: list[Host], backend: Backend, module: str
) -> None:
    with Job(tmp_path, two, backend) as job:
        script = job.script(FAIL)
        hostile = "out\x1b[2J\r::error::forged\x9b31m\u202egnol"
        zero, one = job.start(script, module=module, FAILS=json.dumps([hostile]), OTHERS="0")
        one.end()
        shown = zero.end().stderr
        assert "ValueError: out\\u{1b}[2J\\r::error::forged\\u{9b}31m\\u{202e}gnol" in shown, shown
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown), shown


@pytest.mark.parametrize(
    ("module", "options"),
    [(PADDLE, ["--elastic_level=1", "--restart_delay=0"]), (TORCH, ["--max-restarts=3"])],
)
def test_all_begin_again_together(
    tmp_path: Path, two: list[Host], backend: Backend, module: str, options: list[str]
) -> None:
    with Job(tmp_path, two, backend) as job:
        script = job.script(FAIL)
        nodes = job.start(*options, script, module=module, FAILS='["no 1", "no 2", "no 3"]', OTHERS="0")
        for node in nodes:
            node.await_round(2, 4)
        job.finish()
        job.end_successfully()
        assert job.check_one_world() == {1: 2, 2: 2, 3: 2, 4: 2}
        for node, number in itertools.product(nodes, (1, 2, 3)):
            assert re.search(rf"rank 1 on node 1 .*: ValueError: no {number};.*start", node.stderr()), (
                node.stderr()
            )


@pytest.mark.parametrize(
    ("module", "options"),
    [
        (PADDLE, ["--elastic_level=1", "--max_restart=1"]),
        (PADDLE, ["--max_restart=1"]),
        (TORCH, ["--max-restarts=1"]),
    ],
)
def test_used_up_restarts_are_reported(
    tmp_path: Path, two: list[Host], backend: Backend, module: str, options: list[str]
) -> None:
    with Job(tmp_path, two, backend) as job:
        script = job.script(FAIL)
        nodes = job.start(*options, script, module=module, FAILS='["no 1", "no 2"]', OTHERS="0")
        check_one_name(nodes, 1, "ValueError: no 2")
        for node in nodes:
            assert re.search(r"(no restart|not started again): 1 of 1 restarts used", node.stderr()), (
                node.stderr()
            )
        assert job.check_one_world() == {1: 2, 2: 2}


# Rank 2 has printed its error and is still exiting when rank 3, which lost its connection to it, exits.
BEHIND_VICTIM = """
import traceback
if rank == 2:
    try:
        raise ValueError("loss is nan")
    except ValueError:
        traceback.print_exc()
    tell("printed")
if rank == 3:
    await_file("printed.2")
    raise RuntimeError("[gloo/transport/tcp/pair.cc:545] Connection closed by peer [127.0.0.1]:1")
live_until("finish")
"""


@pytest.mark.parametrize(
    ("module", "options"), [(PADDLE, ["--nproc_per_node=2"]), (TORCH, ["--nproc-per-node=2"])]
)
def test_all_nodes_name_the_failure_behind_a_victim(
    tmp_path: Path, two: list[Host], backend: Backend, module: str, options: list[str]
) -> None:
    with Job(tmp_path, two, backend) as job:
        nodes = job.start(*options, job.script(BEHIND_VICTIM), module=module)
        said = [node.end().stderr for node in nodes]
        assert all("ValueError: loss is nan" in text for text in said), said
        # The node of these ranks has the failure report instead.
        (other,) = [text for text in said if "on node 1" in text]
        named = re.search(r"rank 2 on node 1 \(.*\) failed first, with an error: ValueError", other)
        assert named, other
        assert "rank 3 on node 1" not in other
        assert sorted(node.process.returncode for node in nodes) == [1, FAILED_ELSEWHERE]
        for node in nodes:
            culprit = node.result()["job_culprit"]
            assert (culprit["rank"], culprit["exit"]) == (2, None)
            assert (culprit["exception"], culprit["text"]) == ("ValueError", "loss is nan")


def test_other_nodes_hold_until_a_replacement_comes(
    tmp_path: Path, two: list[Host], backend: Backend
) -> None:
    with Job(tmp_path, two, backend) as job:
        options = ["--elastic_level=0", job.script(FAIL)]
        # Other nodes escape the tab, and this one recognizes its failure all the same.
        zero, one = job.start(*options, FAILS='["no\\t1"]', OTHERS="0")
        ended = one.end()
        assert ended.status == 1
        assert "ValueError: no\t1" in ended.stderr
        zero.await_message(r"rank 1 on node 1 .* ValueError: no\\t1")
        until(lambda: not zero.ranks(), "the end of the ranks that hold")
        again = job.node(1, *options)
        for node in (zero, again):
            node.await_round(2, 2)
        job.finish()
        job.end_successfully(zero, again)
        assert job.check_one_world() == {1: 2, 2: 2}


def test_nodes_that_come_and_go_use_up_no_restart(tmp_path: Path, two: list[Host], backend: Backend) -> None:
    with Job(tmp_path, two, backend, "1:2") as job:
        options = ["--elastic_level=1", "--max_restart=1", "--elastic_timeout=2", job.script(FAIL)]
        zero, one = job.start(*options, FAILS="[]", OTHERS="0")
        job.await_files("began.0.0.0", "began.1.0.1")
        one.kill()
        zero.await_round(1, 2)
        until(lambda: list(tmp_path.glob("life.0.1.*")), "the survivor's rank")
        # It has a restart left: its node's second attempt fails, and is made good.
        again = job.node(1, *options, FAILS='["no 1"]', OTHERS="")
        zero.await_message("ValueError: no 1")
        zero.await_round(2, 4)
        again.await_round(2)
        job.finish()
        job.end_successfully(zero, again)
        assert job.check_one_world() == {1: 2, 2: 1, 3: 2, 4: 2}


@pytest.mark.parametrize(
    ("module", "options"), [(PADDLE, ["--max_restart=0"]), (TORCH, ["--max-restarts=0"])]
)
def test_a_user_has_all_ranks_of_all_nodes_restarted(
    tmp_path: Path, two: list[Host], backend: Backend, module: str, options: list[str]
) -> None:
    with Job(tmp_path, two, backend) as job:
        run = str(tmp_path / "run")
        nodes = job.start(*options, job.script(FAIL), module=module, RLAUNCH_RUNTIME_DIR=run)
        job.await_files("began.0.0.0", "began.1.0.1")
        # Also by the node that does not decide.
        for number, node in enumerate(nodes, 2):
            command = [sys.executable, "-m", "rlaunch.control", "restart", str(node.process.pid)]
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                env=environment(RLAUNCH_RUNTIME_DIR=run),
                timeout=LIMIT,
            )
            assert done.returncode == 0, (done.stderr, job.nodes[0].stderr(), job.nodes[1].stderr())
            assert f": round {number}, attempt {number - 1} runs\n" in done.stdout
            for other in nodes:
                other.await_round(2, number)
                said = (
                    rf"a user on node {node.label} .* requested a restart of all ranks by `rlaunch restart`"
                )
                other.await_message(said)
        job.finish()
        job.end_successfully()
        assert job.check_one_world() == {1: 2, 2: 2, 3: 2}
        assert [node.result()["requested_restarts"] for node in nodes] == [1, 1]
        assert [len(node.events("restart_requested")) for node in nodes] == [1, 1]
