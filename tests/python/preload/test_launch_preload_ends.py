"""``--preload``: restarts, leftovers, and killed processes."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
from launching import await_gone, await_none_marked, free_ports, gone, marked, supervisor_of, until, validate
from preload_jobs import PADDLE, TORCH, Job, lines_of
from torch_launching import ESCAPED

START_FAILED = 71


@pytest.fixture(params=[PADDLE, TORCH])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    return Job(tmp_path, request.param)


def test_restarts_reuse_the_zygote(job: Job, mark: str) -> None:
    job.script("""
        import counted
        tell(f"ready.{attempt}", os.getpid())
        await_file(f"ready.{attempt}.{1 - rank}")
        if attempt < 2 and rank == 1:
            sys.exit(5)
        if attempt < 2:
            sleep()
    """)
    ended = job.run(*job.options("counted", restarts=2), "train.py", env=job.environment(MARK=mark))
    assert ended.status == 0, ended.stderr
    assert (job.imports(), marked(mark)) == (1, [])
    (ready,) = job.events("zygote_ready")
    validate(ready, "events")
    assert ready["modules"] == ["counted"]
    assert len(job.events("rank_started")) == 6
    assert "swept" not in ended.stderr
    assert job.result()["restarts"] == 2


def test_the_failure_report_is_that_of_a_started_rank(job: Job, mark: str) -> None:
    job.script("""
        tell("ready", os.getpid())
        if rank == 1:
            await_file("ready.0")
            raise ValueError("no such shape")
        sleep()
    """)
    results = []
    for zygote in (None, "counted"):
        ended = job.run(*job.options(zygote), "train.py", env=job.environment(MARK=mark))
        assert (ended.status, marked(mark)) == (1, [])
        assert "no such shape" in ended.stderr
        result = job.result()
        results.append([(rank["rank"], rank["exit"], rank["told"]) for rank in result["ranks"]])
        if job.frontend == TORCH:
            job.run_folder().rename(job.folder / f"run.{len(results)}")
        for path in job.folder.glob("ready.*"):
            path.unlink()
    assert results[0] == results[1]


@pytest.mark.parametrize("whom", ["front", "supervisor"])
def test_nothing_is_left_when_a_launcher_is_killed(job: Job, mark: str, whom: str) -> None:
    job.script("tell('ready', os.getpid())\nsleep()")
    with job.start(*job.options("counted"), "train.py", env=job.environment(MARK=mark)) as launcher:
        ranks = job.ready(2)
        supervisor, zygote = supervisor_of(launcher), job.zygote()
        assert [rank.ppid() for rank in ranks] == [supervisor.pid] * 2
        (supervisor if whom == "supervisor" else psutil.Process(launcher.pid)).kill()
        launcher.wait(30)
        await_gone(supervisor, zygote, *ranks)
    await_none_marked(mark)


def test_the_zygote_dies_with_the_launcher_while_it_imports(job: Job, mark: str) -> None:
    job.module("endless", "import os, time\nopen('importing', 'w').close()\nwhile True: time.sleep(600)")
    job.script("")
    with job.start(*job.options("endless"), "train.py", env=job.environment(MARK=mark)) as launcher:
        until((job.folder / "importing").exists, "the import")
        supervisor, zygote = supervisor_of(launcher), job.zygote()
        supervisor.kill()
        launcher.kill()
        await_gone(supervisor, zygote)
    assert marked(mark) == []


def test_ranks_outlive_a_lost_zygote_and_the_next_attempt_has_another(job: Job, mark: str) -> None:
    job.script("""
        import counted
        tell(f"ready.{attempt}", os.getpid())
        await_file(f"end.{attempt}")
        sys.exit(0 if attempt else 3)
    """)
    options = job.options("counted", restarts=1)
    with job.start(*options, "train.py", env=job.environment(MARK=mark)) as launcher:
        first = job.ready(2, "ready.0")
        zygote = job.zygote()
        zygote.kill()
        await_gone(zygote)
        assert not any(gone(rank) for rank in first)
        (job.folder / "end.0").touch()
        job.ready(2, "ready.1")
        assert job.zygote() != zygote
        (job.folder / "end.1").touch()
        ended = Job.wait(launcher)
    assert (ended.status, job.imports(), marked(mark)) == (0, 2, []), ended.stderr
    assert len({event["pid"] for event in job.events("zygote_ready")}) == 2


def test_a_suspended_zygote_is_continued_for_the_next_attempt(job: Job, mark: str) -> None:
    job.script("""
        import counted
        tell(f"ready.{attempt}", os.getpid())
        await_file("end")
        sys.exit(0 if attempt else 3)
    """)
    options = job.options("counted", restarts=1)
    with job.start(*options, "train.py", env=job.environment(MARK=mark)) as launcher:
        job.ready(2, "ready.0")
        job.zygote().send_signal(signal.SIGSTOP)
        (job.folder / "end").touch()
        ended = Job.wait(launcher)
    assert (ended.status, job.imports(), marked(mark)) == (0, 1, []), ended.stderr


@pytest.mark.parametrize("auto", ["", ",auto"], ids=["asked for", "auto"])
def test_a_zygote_that_cannot_be_restarted_is_reported(job: Job, auto: str) -> None:
    """Another is tried, once, and does not get through its imports."""
    job.module(
        "once",
        "import os\nos.open('twice' if os.path.exists('once') else 'once', os.O_CREAT)\n"
        "if os.path.exists('twice'): os.kill(os.getpid(), 9)",
    )
    job.script("""
        tell(f"ready.{attempt}", os.getpid())
        await_file("end")
        sys.exit(0 if attempt else 3)
    """)
    with job.start(*job.options(f"once{auto}", restarts=1), "train.py") as launcher:
        job.ready(2, "ready.0")
        zygote = job.zygote()
        zygote.kill()
        await_gone(zygote)
        (job.folder / "end").touch()
        ended = Job.wait(launcher)
    why = "importing once ended the process"
    if auto:
        assert ended.status == 0, ended.stderr
        (line,) = (line for line in lines_of(ended) if line.startswith("no preload server: "))
    else:
        assert ended.status == START_FAILED, ended.stderr
        (line,) = ended.error_lines()
        assert "cannot start rank 0 from the preload server: " in line
    assert why in line
    assert "SIGKILL" in line


def test_a_killed_rank_is_reported_like_a_started_one(job: Job) -> None:
    job.script("tell('ready', os.getpid())\nsleep()")
    with job.start(*job.options("counted"), "train.py") as launcher:
        job.ready(2)[1].kill()
        ended = Job.wait(launcher)
    assert ended.status == 128 + signal.SIGKILL
    ranks = job.result()["ranks"]
    assert ranks[1]["exit"]["signal"]["name"] == "SIGKILL"
    assert ranks[0]["told"]


def test_a_stop_reaches_the_ranks_and_they_have_their_grace(job: Job) -> None:
    job.script("""
        def end(*_):
            tell("ended")
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        tell("ready", os.getpid())
        sleep()
    """)
    with job.start(*job.options("counted"), "train.py") as launcher:
        job.ready(2)
        launcher.send_signal(signal.SIGTERM)
        ended = Job.wait(launcher)
    assert ended.status == 128 + signal.SIGTERM
    assert {"ended.0", "ended.1"} <= job.names()


def test_processes_that_a_rank_forks_and_leaves_are_known_as_its_own(job: Job, mark: str) -> None:
    """It has a session of its own, and its environment shows what the zygote was started with."""
    job.script(
        ESCAPED + "escape(f'escaped.{attempt}')\ntell('ready', os.getpid())\nawait_file(f'end.{rank}')"
    )
    with job.start(*job.options("counted"), "train.py", env=job.environment(MARK=mark)) as launcher:
        first, second = job.ready(2)
        of_first, of_second = (psutil.Process(int(job.text(f"escaped.0.{rank}"))) for rank in range(2))
        (job.folder / "end.0").touch()
        await_gone(first, of_first)
        assert not gone(second)
        assert not gone(of_second)
        (job.folder / "end.1").touch()
        ended = Job.wait(launcher)
    assert (ended.status, marked(mark)) == (0, [])
    said = [line for line in lines_of(ended) if line.startswith("swept")]
    assert said == [f"swept 1 leftover process of rank {rank} (python)" for rank in range(2)]
    assert [event["swept"] for event in job.events("rank_ended")] == [1, 1]


def test_servers_and_workers_of_one_script_share_a_zygote(tmp_path: Path) -> None:
    job = Job(tmp_path, PADDLE)
    (tmp_path / "role.py").write_text(
        "import os, counted\nopen('role.' + os.environ['TRAINING_ROLE'], 'w').write(str(os.getppid()))"
    )
    ended = job.run("--run_mode=ps", "--server_num=1", "--trainer_num=2", "--preload=counted", "role.py")
    assert (ended.status, job.imports()) == (0, 1), ended.stderr
    assert job.text("role.PSERVER") == job.text("role.TRAINER")


def test_rounds_reuse_the_zygote(job: Job, mark: str) -> None:
    port = free_ports(1)
    meet = (
        ["--nnodes=1:2", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-backend=c10d", "--rdzv-id=job",
         "--rdzv-conf=join_timeout=20,last_call_timeout=1"]
        if job.frontend == TORCH
        else ["--nnodes=1:2", f"--master=127.0.0.1:{port}", "--elastic_timeout=0", "--elastic_level=1"]
    )  # fmt: skip
    job.script("""
        import counted
        tell(f"ready.{attempt}", os.getpid())
        await_file(f"ready.{attempt}.{1 - rank}")
        sys.exit(3 if attempt == 0 and rank == 0 else 0)
    """)
    options = job.options("counted", restarts=1 if job.frontend == TORCH else 0)
    ended = job.run(*options, *meet, "train.py", env=job.environment(MARK=mark))
    assert ended.status == 0, ended.stderr
    assert (job.imports(), marked(mark)) == (1, [])
    assert len(job.events("round_started")) == 2
    assert len(job.events("zygote_ready")) == 1
    assert "swept" not in ended.stderr
