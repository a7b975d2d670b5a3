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
    # The stop has cancelled the start, which has not failed.
    assert job.events("rank_not_started") == []
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


# Servers forked a rank, which runs, and do not reply.
MUTE = """
import signal
from rlaunch._preload import server

server._Zygote._reply = lambda *_: signal.pause()
"""


def test_a_rank_that_was_forked_without_a_reply_dies_through_its_lifeline(tmp_path: Path, mark: str) -> None:
    job = Job(tmp_path, PADDLE)
    job.module("mute", MUTE)
    job.script("""
        import pathlib
        if "mute" in sys.modules:
            tell("forked", os.getpid())
            sleep()
        forked = pathlib.Path(f"/proc/{open('forked.0').read()}/stat")
        def is_gone():
            try:
                return forked.read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                return True
        until(is_gone, "the end of the other process")
        tell("alone")
    """)
    options = job.options("mute,auto", ranks=1)
    with job.start(*options, "train.py", env=job.environment(MARK=mark)) as launcher:
        until((job.folder / "forked.0").exists, "the forked rank")
        job.zygote().kill()
        ended = Job.wait(launcher)
    assert ended.status == 0, ended.stderr
    assert "was killed by SIGKILL" in ended.stderr
    assert ("alone.0" in job.names(), marked(mark)) == (True, [])
    assert len(job.events("rank_started")) == 1


# Has a process traced that then cannot be reaped, because the tracer never waits for it.
TRACING = """
import ctypes, os, signal, time

PR_SET_PTRACER, PR_SET_PTRACER_ANY, PTRACE_SEIZE = 0x59616D61, -1, 0x4206
libc = ctypes.CDLL(None, use_errno=True)

def allow_tracing():
    # Without Yama the kernel has no such call, and needs none.
    libc.prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)

def trace(pid):
    zero = ctypes.c_void_p(0)
    assert not libc.ptrace(ctypes.c_long(PTRACE_SEIZE), ctypes.c_long(pid), zero, zero), ctypes.get_errno()
"""


def test_a_server_that_ends_while_it_is_traced_does_not_keep_the_launcher_busy(tmp_path: Path) -> None:
    job = Job(tmp_path, PADDLE)
    job.module("tracing", TRACING)
    job.module("traced", "import os, tracing; tracing.allow_tracing(); server = os.getpid()")
    job.script("""
        import psutil, traced, tracing
        tracing.trace(traced.server)
        os.kill(traced.server, signal.SIGKILL)
        server, supervisor = psutil.Process(traced.server), psutil.Process(os.getppid())
        until(lambda: server.status() == psutil.STATUS_ZOMBIE, "the end of the server")
        spent = lambda: sum(supervisor.cpu_times()[:2])
        own, other = time.process_time(), spent()
        while time.process_time() < own + 0.5:
            pass
        tell("spent", spent() - other)
    """)
    ended = job.run(*job.options("traced", ranks=1), "train.py")
    assert ended.status == 0, ended.stderr
    # The supervisor could have used as much as the rank, 0.5 s.
    assert float(job.text("spent.0")) < 0.25


def test_a_server_that_an_import_ends_while_it_is_traced_is_not_waited_for(tmp_path: Path, mark: str) -> None:
    job = Job(tmp_path, PADDLE)
    job.module("tracing", TRACING)
    job.module(
        "ending",
        """
        import os, signal, tracing, time
        tracing.allow_tracing()
        server = os.getpid()
        if os.fork() == 0:
            os.setsid()
            tracing.trace(server)
            os.kill(server, signal.SIGKILL)
            while True:
                time.sleep(600)
        signal.pause()
        """,
    )
    job.script("")
    ended = job.run(*job.options("ending", ranks=1), "train.py", env=job.environment(MARK=mark))
    assert ended.status == START_FAILED, ended.stderr
    assert "importing ending ended the process (pid " in ended.stderr
    assert marked(mark) == []
