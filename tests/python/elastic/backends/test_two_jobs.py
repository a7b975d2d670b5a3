"""Two jobs that meet at one endpoint: the second one is refused, and not successful without a rank."""

from __future__ import annotations

from pathlib import Path

from effort import each
from elastic_jobs import NOT_MET, PADDLE, TORCH, Backend, Job
from launching import until
from multi_host import AtEtcd, MultiHost

DEFAULT_NAME = {PADDLE: "default", TORCH: "none"}
RUNS = """
open(f"runs.{node}", "w").close()
live_until("finish")
"""


def words(module: str, *, restarts: int = 0, lease: int = 5, join: int = 60) -> list[str]:
    """Options of a job of a fixed size, the same for all its nodes."""
    if module == TORCH:
        conf = f"join_timeout={join},keep_alive_interval=1,keep_alive_max_attempt={lease}"
        return [f"--max-restarts={restarts}", f"--rdzv-conf={conf}"]
    level = ["--elastic_level=1", f"--max_restart={restarts}"] if restarts else []
    return [*level, f"--join_timeout={join}", f"--heartbeat_timeout={lease}"]


def name_of(job: Job) -> str:
    return job.backend.name if isinstance(job.backend, AtEtcd) else "job"


def unnamed(job: Job, module: str, *args: str) -> list[str]:
    """The command of a node whose job has no name of its own."""
    command = job.command(module, *args)
    return [word for word in command if not word.startswith(("--rdzv-id", "--job_id"))]


@each("module", [PADDLE, TORCH])
def test_a_complete_job_of_a_fixed_size_refuses_another(
    tmp_path: Path, made: MultiHost, backend: Backend, module: str
) -> None:
    with Job(tmp_path, made.on, backend) as job:
        args = [*words(module), job.script(RUNS)]
        first = job.start(*args, count=2, module=module)
        job.await_files("runs.0", "runs.1")
        for on in range(2):
            other = job.node(on, *args, module=module)
            ended = other.end()
            assert ended.status == NOT_MET, ended.stderr
            assert "the job has all of its 2 nodes" in ended.stderr
            assert f"job {name_of(job)}, " in ended.stderr
            assert not list(tmp_path.glob(f"life.{other.label}.*"))
        job.finish()
        job.end_successfully(*first)


@each("module", [PADDLE, TORCH])
def test_no_launcher_of_a_fixed_job_ends_with_0_without_a_rank(
    tmp_path: Path, made: MultiHost, backend: Backend, module: str
) -> None:
    """It waits to replace a node that the job may lose. The job loses none, and may be another one."""
    with Job(tmp_path, made.on, backend) as job:
        args = [*words(module, restarts=3), job.script(RUNS)]
        first = job.start(*args, count=2, module=module)
        job.await_files("runs.0", "runs.1")
        other = job.node(0, *args, module=module)
        other.await_message("this node waits to replace a lost one")
        job.finish()
        job.end_successfully(*first)
        ended = other.end()
        assert ended.status == NOT_MET, ended.stderr
        assert other.result()["outcome"] == "refused", other.result()
        assert "which has run no rank" in ended.stderr


@each("module", [PADDLE, TORCH])
def test_scripts_of_two_unnamed_jobs_share_no_round(
    tmp_path: Path, made: MultiHost, backend: Backend, module: str
) -> None:
    with Job(tmp_path, made.on, backend) as job:
        options = words(module, restarts=3)
        zero = job.run(0, unnamed(job, module, *options, job.script(RUNS), "--node=0"))
        zero.await_message("1 of 2 nodes are here|waiting for other nodes")
        other = [*options, job.script(RUNS, "eval.py"), "--node=1"]
        ended = job.run(1, unnamed(job, module, *other)).end()
        assert ended.status == NOT_MET, ended.stderr
        assert "the job runs train.py" in ended.stderr
        assert f"job {DEFAULT_NAME[module]}, " in ended.stderr
        # In another folder, as on another machine, and with arguments of its node.
        (tmp_path / "same").mkdir()
        fits = [*options, job.script(RUNS, "same/train.py"), "--node=1"]
        job.run(1, unnamed(job, module, *fits))
        until(lambda: list(tmp_path.glob("runs.*")) and zero.events("round_started"), "the round")
        job.finish()
        job.end_successfully(zero, job.nodes[-1])
