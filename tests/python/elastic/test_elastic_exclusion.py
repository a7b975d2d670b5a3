"""Nodes that harm an elastic job: one that cannot begin, one whose ranks fail again and again, or hang."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import each
from elastic_jobs import PADDLE, STORE_LOST, TORCH, Backend, Job
from etcd import Etcd
from hosts import Host, hosts
from launching import until
from multi_host import MultiHost, multi_host

UNUSABLE = 66
ELASTIC = {
    PADDLE: ["--elastic_level=1", "--elastic_timeout=2", "--restart_delay=0"],
    TORCH: ["--max-restarts=3", "--rdzv-conf=last_call_timeout=1"],
}
NO_PYTHON = {PADDLE: "--no_python", TORCH: "--no-python"}
# The ranks of node 1 fail as soon as a round has begun.
SCRIPT = """
if node == "1":
    sys.exit(7)
live_until("finish")
"""
# Each rank waits for the others before its first step.
WAITS = """
import torch.distributed as dist
dist.init_process_group("gloo")
live_until("finish")
"""


@pytest.fixture(name="two", scope="module")
def two_fixture() -> Iterator[list[Host]]:
    with hosts(2) as made:
        yield made


@pytest.fixture(scope="module")
def made() -> Iterator[MultiHost]:
    with multi_host(2) as made:
        yield made


def program_of(folder: Path, interpreter: Path | str, name: str = "bad.sh") -> Path:
    program = folder / name
    program.write_text(f"#!{interpreter}\n" if interpreter else "no program")
    program.chmod(0o755)
    return program


@each("module", [PADDLE, TORCH])
def test_a_newcomer_without_its_interpreter_stops_no_round(
    tmp_path: Path, two: list[Host], backend: Backend, module: str
) -> None:
    with Job(tmp_path, two, backend, "1:2") as job:
        program = program_of(tmp_path, "/no/such/interpreter")
        own = job.node(0, *ELASTIC[module], job.script(SCRIPT), module=module)
        own.await_round(1, 1)
        ended = job.node(1, *ELASTIC[module], NO_PYTHON[module], str(program), module=module).end()
        assert ended.status == UNUSABLE, ended.stderr
        assert "interpreter /no/such/interpreter: No such file" in ended.error_lines()[-1]
        job.finish()
        job.end_successfully(own)
        assert job.check_one_world() == {1: 1}


@each("module", [PADDLE, TORCH])
def test_a_newcomer_that_cannot_begin_is_excluded(
    tmp_path: Path, two: list[Host], backend: Backend, module: str
) -> None:
    with Job(tmp_path, two, backend, "1:2") as job:
        # The kernel does not run it, though it is there and can be executed.
        program = program_of(tmp_path, program_of(tmp_path, "", "interpreter"))
        own = job.node(0, *ELASTIC[module], job.script(SCRIPT), module=module)
        own.await_round(1, 1)
        newcomer = job.node(1, *ELASTIC[module], NO_PYTHON[module], str(program), module=module)
        ended = newcomer.end()
        assert ended.status not in (0, 1), ended.stderr
        assert "interpreter" in ended.stderr or "bad.sh" in ended.stderr, ended.stderr
        until(lambda: "is excluded from the job: it cannot begin: " in own.stderr(), "the warning")
        own.await_round(1, 3)
        job.finish()
        job.end_successfully(own)
        worlds = job.check_one_world()
        # The rank of the first node may have come that far in the round with the newcomer.
        assert worlds.pop(2, 2) == 2
        assert worlds == {1: 1, 3: 1}


@each("module", [PADDLE, TORCH])
def test_a_newcomer_whose_ranks_fail_is_excluded_and_uses_up_no_restart(
    tmp_path: Path, two: list[Host], backend: Backend, module: str
) -> None:
    with Job(tmp_path, two, backend, "1:2") as job:
        script = job.script(SCRIPT)
        own = job.node(0, *ELASTIC[module], script, module=module)
        own.await_round(1, 1)
        newcomer = job.node(1, *ELASTIC[module], script, module=module)
        ended = newcomer.end()
        why = "it is excluded from the job: its ranks failed 3 times in a row, last rank 1: exit code 7"
        assert why in ended.stderr, ended.stderr
        own.await_round(1, 5)
        job.finish()
        job.end_successfully(own)
        assert "is excluded from the job: its ranks failed 3 times in a row" in own.stderr()
        assert "restart(s) after failures so far" not in own.stderr().rpartition("excluded")[2]


def check_hanging(job: Job, module: str, *preload: str) -> None:
    """A newcomer whose ranks hang joins a job of one node, which goes on without it.

    The ranks of that node import torch in each of three rounds, unless it is preloaded.
    """
    options = [*ELASTIC[module], *(["--frameworks=torch"] if module == PADDLE else [])]
    short = {"module": module, "RLAUNCH_HANG_TIMEOUT": "1"}
    own = job.node(0, *options, *preload, job.script(WAITS), **short)
    job.await_files("life.0.0.0")
    hangs = job.script("time.sleep(3600)", "hangs.py")
    newcomer = job.node(1, *options, hangs, **short)
    ended = newcomer.end()
    assert ended.status == STORE_LOST, ended.stderr
    why = f"its ranks hang at their start: rank 1 is in <module> ({job.folder}/hangs.py:"
    why = f"is excluded from the job: {why}"
    assert f"it {why}" in ended.error_lines()[-1]
    assert f"it {why}" in newcomer.result()["job_end"]
    own.await_round(1, 3)
    job.finish()
    job.end_successfully(own)
    assert why in own.stderr()
    assert "restart(s) after failures so far" not in own.stderr()
    stopped = own.events("round_ended")[1]["why"]
    assert stopped.startswith("the ranks of node 1 (")
    assert ") hang at their start: rank 1 is in <module> (" in stopped
    assert job.check_one_world() == {1: 1, 2: 2, 3: 1}


@each("module", [PADDLE, TORCH])
def test_a_newcomer_whose_ranks_hang_at_their_start_is_excluded(
    tmp_path: Path, two: list[Host], backend: Backend, module: str
) -> None:
    with Job(tmp_path, two, backend, "1:2") as job:
        check_hanging(job, module, "--preload=torch")


def test_a_newcomer_whose_ranks_hang_is_excluded_at_etcd(tmp_path: Path, made: MultiHost, etcd: Etcd) -> None:
    with Job(tmp_path, made.on, made.at(etcd), "1:2") as job:
        check_hanging(job, TORCH)
