"""``--preload``: a preload server that hangs in a fork does not keep the launcher from anything else."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from launching import await_line, gone, marked, until
from preload_jobs import PADDLE, TORCH, Job, lines_of

START_FAILED = 71

# The fork of one local rank hangs, once in a job, until there is a file `release`.
HANGING = """
import counted, itertools, os, time

server, forks = os.getpid(), itertools.count()

def hang():
    # The server's first fork is the trial after its imports.
    if os.getpid() == server and next(forks) == 1 + {rank} and not os.path.exists("hangs"):
        open("hangs", "w").close()
        while not os.path.exists("release"):
            time.sleep(0.005)

os.register_at_fork(before=hang)
"""


@pytest.fixture(params=[PADDLE, TORCH])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    job = Job(tmp_path, request.param)
    job.module("hanging", HANGING.format(rank=1))
    return job


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stop_does_not_wait_for_the_fork(job: Job, mark: str, rank: int) -> None:
    job.module("hanging", HANGING.format(rank=rank))
    job.script("sleep()")
    with job.start(*job.options("hanging"), "train.py", env=job.environment(MARK=mark)) as launcher:
        until((job.folder / "hangs").exists, "the fork")
        server = job.zygote()
        launcher.send_signal(signal.SIGTERM)
        ended = Job.wait(launcher)
    assert ended.status == 128 + signal.SIGTERM, ended.stderr
    # What the launcher says at its own limit.
    assert "does not answer" not in ended.stderr
    assert gone(server)
    assert marked(mark) == []
    assert [event["rank"] for event in job.events("rank_started")] == [*range(rank)]
    assert [event["rank"] for event in job.events("rank_ended")] == [*range(rank)]
    assert job.result()["ranks"][rank]["exit"] is None


def test_a_rank_that_is_forked_after_the_stop_is_stopped_too(job: Job, mark: str) -> None:
    """The supervisor is suspended meanwhile, so that the server's time is of no importance."""
    job.script("""
        def stop(*_):
            if rank == 0:
                os.kill(os.getppid(), signal.SIGSTOP)
                open("release", "w").close()
                try:
                    await_file("ready.1")
                finally:
                    os.kill(os.getppid(), signal.SIGCONT)
            tell("stopped")
            sys.exit(0)
        signal.signal(signal.SIGTERM, stop)
        tell("ready", os.getpid())
        sleep()
    """)
    with job.start(*job.options("hanging"), "train.py", env=job.environment(MARK=mark)) as launcher:
        job.ready(1)
        until((job.folder / "hangs").exists, "the fork")
        launcher.send_signal(signal.SIGTERM)
        ended = Job.wait(launcher)
    assert ended.status == 128 + signal.SIGTERM, ended.stderr
    assert {"stopped.0", "stopped.1"} <= job.names()
    assert marked(mark) == []
    assert [event["rank"] for event in job.events("rank_started")] == [0, 1]
    assert len(job.events("rank_ended")) == 2
    assert "swept" not in ended.stderr


def test_other_ranks_are_heard_and_get_signals_while_a_fork_hangs(tmp_path: Path) -> None:
    job = Job(tmp_path, PADDLE)
    job.module("hanging", HANGING.format(rank=1))
    job.script("""
        signal.signal(signal.SIGUSR1, lambda *_: print("heard", flush=True))
        tell("ready", os.getpid())
        await_file("ready.1")
    """)
    with job.start("--nproc_per_node=2", "--preload=hanging", "train.py") as launcher:
        job.ready(1)
        until((job.folder / "hangs").exists, "the fork")
        launcher.send_signal(signal.SIGUSR1)
        await_line(launcher.stdout, b"heard")
        (job.folder / "release").touch()
        ended = Job.wait(launcher)
    assert ended.status == 0, ended.stderr


def test_a_rank_that_fails_while_a_fork_hangs_is_restarted_with_another_server(job: Job, mark: str) -> None:
    job.script("""
        import counted
        if attempt == 0:
            await_file("hangs")
            sys.exit(3)
    """)
    options = job.options("hanging", restarts=1)
    ended = job.run(*options, "train.py", env=job.environment(MARK=mark))
    assert ended.status == 0, ended.stderr
    assert (job.imports(), marked(mark)) == (2, [])
    started = [(event["attempt"], event["rank"]) for event in job.events("rank_started")]
    assert started == [(0, 0), (1, 0), (1, 1)]


@pytest.mark.parametrize("auto", ["", ",auto"], ids=["asked for", "auto"])
def test_a_server_that_does_not_answer_is_given_up(tmp_path: Path, mark: str, auto: str) -> None:
    job = Job(tmp_path, PADDLE)
    job.module("hanging", HANGING.format(rank=1))
    job.script("await_file('ready.1') if rank == 0 else tell('ready')")
    options = job.options(f"hanging{auto}")
    ended = job.run(*options, "train.py", env=job.environment(MARK=mark))
    assert marked(mark) == []
    if auto:
        assert ended.status == 0, ended.stderr
        (line,) = (line for line in lines_of(ended) if line.startswith("no preload server: "))
    else:
        assert ended.status == START_FAILED, ended.stderr
        (line,) = ended.error_lines()
        assert "cannot start rank 1 from the preload server: the preload server (pid " in line
        assert "; with --preload=hanging,auto every rank imports for itself then" in line
    assert ") does not answer" in line
