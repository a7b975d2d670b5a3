"""Stops by real senders, of launchers that were started with blocked or ignored signals."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import sys
from pathlib import Path

import psutil
import pytest
from launching import await_gone, await_line, environment, gone, signals_in, until
from saving import FRONT_ENDS, Job


@pytest.fixture(params=FRONT_ENDS)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    return Job(tmp_path, request.param)


# --- Senders. ---------------------------------------------------------------------------------------------


def test_uv_run_in_a_group_that_is_signalled(job: Job) -> None:
    """As supervisord does with `stopasgroup`: uv passes on what its child has received already."""
    uv = str(Path(sys.executable).with_name("uv"))
    words = ["run", "--no-project", "--offline", "--python", sys.executable]
    with job.start(uv, *words, start_new_session=True) as command:
        os.killpg(command.pid, signal.SIGTERM)
        until(lambda: "first" in job.requests(), "the stop")
        result = job.end()
    assert (result["exit_status"], job.has_saved(), job.events("forced")) == (143, True, [])


def test_an_entry_point_that_passes_a_signal_on(job: Job) -> None:
    entry = 'trap "kill -TERM \\$child" TERM; "$@" & child=$!; wait $child; wait $child'
    with job.start("bash", "-c", entry, "bash", start_new_session=True) as command:
        os.killpg(command.pid, signal.SIGTERM)
        until(lambda: "first" in job.requests(), "the stop")
        result = job.end()
    assert (result["exit_status"], job.has_saved(), job.events("forced")) == (143, True, [])


def test_timeout_signals_its_child_and_then_its_group(job: Job) -> None:
    timeout = shutil.which("timeout")
    assert timeout is not None
    with job.start(timeout, "1000") as command:
        command.send_signal(signal.SIGTERM)  # As its own timer does.
        until(lambda: "first" in job.requests(), "the stop")
        result = job.end()
    assert (result["exit_status"], job.has_saved(), job.events("forced")) == (143, True, [])


def test_a_schedulers_stop_of_a_job_that_it_continues(job: Job) -> None:
    with job.start():
        for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGTERM):
            job.launcher.send_signal(number)
        until(lambda: "first" in job.requests(), "the stop")
        result = job.end()
    assert (result["exit_status"], job.has_saved(), job.events("forced")) == (143, True, [])


# --- Blocked and ignored signals. -------------------------------------------------------------------------


def block_all() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def test_signals_that_were_blocked_at_the_start(job: Job) -> None:
    """As Ray does it. A blocked SIGCHLD once hid requests from the event loop."""
    with job.start(preexec_fn=block_all):
        ranks = [psutil.Process(int((job.folder / f"ready.{rank}").read_text())) for rank in range(2)]
        assert [signals_in(rank.pid, "SigBlk") for rank in ranks] == [set(), set()]
        assert job.ask("restart")[0] == 0
        await_gone(*ranks)
        for rank in range(2):
            until(
                lambda rank=rank: (job.folder / f"ready.{rank}").read_text() != str(ranks[rank].pid),
                "a restart",
            )
        job.launcher.send_signal(signal.SIGTERM)
        until(lambda: "first" in job.requests(), "the stop")
        result = job.end()
    assert (result["exit_status"], job.has_saved()) == (143, True)


@pytest.mark.parametrize("nohup", [False, True])
def test_ctrl_c_in_a_script_that_waits_for_two_launchers(tmp_path: Path, nohup: bool) -> None:
    jobs = []
    for name, front_end in zip("ab", FRONT_ENDS, strict=True):
        (tmp_path / name).mkdir()
        jobs.append(Job(tmp_path / name, front_end))
    lines = [f"(cd {job.folder} && exec {' '.join(job.words)}) &" for job in jobs]
    script = "\n".join(["trap '' HUP" * nohup, *lines, "echo $! > pid", "wait"])
    (tmp_path / "jobs.sh").write_text(script)
    child, keyboard = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execve("/bin/sh", ["sh", "jobs.sh"], environment(TMPDIR=str(tmp_path)))
    try:
        ready = [job.folder / f"ready.{rank}" for job in jobs for rank in range(2)]
        for path in ready:
            until(path.exists, path.name)
        launchers = psutil.Process(child).children()
        assert len(launchers) == 2
        os.write(keyboard, b"\x03")
        if nohup:
            until(lambda: not psutil.pid_exists(child) or gone(psutil.Process(child)), "the script's end")
            assert all(job.events("signal") == [] for job in jobs)
            for launcher in launchers:
                launcher.send_signal(signal.SIGTERM)
        for job in jobs:
            # The script ends by Ctrl-C, and the kernel sends SIGHUP to the rest of its session then.
            until(lambda job=job: "first" in job.requests(), "Ctrl-C")
            (job.folder / "go").touch()
        await_gone(*launchers)
    finally:
        os.close(keyboard)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert [job.has_saved() for job in jobs] == [True, True]
    results = [json.loads(job.read("result.json")) for job in jobs]
    # A launcher that gets no processor meanwhile finds SIGHUP beside SIGINT.
    wanted = {143} if nohup else {128 + signal.SIGINT, 128 + signal.SIGHUP}
    assert {result["exit_status"] for result in results} <= wanted


def test_an_ignored_sigterm_is_said_at_the_start(job: Job) -> None:
    with job.start(preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN) and None) as launcher:
        assert b"rlaunch stop" in await_line(launcher.stderr, b"SIGTERM is ignored")
        launcher.send_signal(signal.SIGTERM)
        assert job.ask("stop", "--no-wait")[0] == 0
        until(lambda: job.requests() == ["first"], "the stop")
        result = job.end()
    assert (result["exit_status"], job.has_saved()) == (143, True)
    assert [event["origin"] for event in job.events("signal")] == ["user"]
