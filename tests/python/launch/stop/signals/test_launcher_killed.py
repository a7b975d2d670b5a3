"""Launchers that are killed while a signal stops their job: the ranks keep their time; nothing is left."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import signal
import termios
from pathlib import Path

import psutil
import pytest
from launching import LIMIT, await_gone, await_none_marked, until
from saving import FRONT_ENDS, Job


@pytest.fixture(params=FRONT_ENDS)
def job(request: pytest.FixtureRequest, tmp_path: Path, mark: str) -> Job:
    job = Job(tmp_path, request.param)
    job.variables["MARK"] = mark
    return job


def end(job: Job, supervisor: psutil.Process) -> None:
    """Lets the ranks save, and waits for the supervisor."""
    until(lambda: job.events("front_lost"), "the loss of the launcher process")
    (job.folder / "go").touch()
    await_gone(supervisor)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_ranks_save_when_the_launcher_is_signalled_and_then_killed(
    job: Job, mark: str, number: signal.Signals
) -> None:
    """As by the stop button of a notebook."""
    with job.start() as launcher:
        supervisor = job.ranks()[0].parent()
        assert supervisor is not None
        job.launcher.send_signal(number)
        for rank in range(2):
            until((job.folder / f"got.{rank}").exists, f"the signal to rank {rank}")
        job.launcher.kill()
        launcher.wait(LIMIT)
        end(job, supervisor)
    await_none_marked(mark)
    result = json.loads(job.read("result.json"))
    assert (result["outcome"], result["exit_status"], job.has_saved()) == ("stopped", 128 + number, True)
    assert job.events("forced") == []


def unread(process: psutil.Process) -> int:
    """Bytes in the pipes of a process."""
    total = 0
    for path in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith("pipe:"):
                pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                count = array.array("i", [0])
                fcntl.ioctl(pipe, termios.FIONREAD, count)
                os.close(pipe)
                total += count[0]
    return total


def test_a_signal_that_was_passed_on_counts_before_the_loss_of_the_launcher(job: Job, mark: str) -> None:
    """The supervisor sees both in one turn."""
    with job.start() as launcher:
        supervisor = job.ranks()[0].parent()
        assert supervisor is not None
        supervisor.suspend()
        until(lambda: supervisor.status() == psutil.STATUS_STOPPED, "the stop of the supervisor")
        before = unread(supervisor)
        job.launcher.send_signal(signal.SIGINT)
        until(lambda: unread(supervisor) > before, "the signal")
        job.launcher.kill()
        launcher.wait(LIMIT)
        supervisor.resume()
        end(job, supervisor)
    await_none_marked(mark)
    assert (json.loads(job.read("result.json"))["exit_status"], job.has_saved()) == (130, True)


def test_without_a_stop_the_loss_of_the_launcher_kills(job: Job, mark: str) -> None:
    with job.start() as launcher:
        job.launcher.kill()
        launcher.wait(LIMIT)
        await_none_marked(mark)
    assert (json.loads(job.read("result.json"))["outcome"], job.has_saved()) == ("front_lost", False)


def test_the_launcher_ends_ranks_whose_supervisor_is_killed_during_a_stop(job: Job, mark: str) -> None:
    with job.start() as launcher:
        supervisor = job.ranks()[0].parent()
        assert supervisor is not None
        job.launcher.send_signal(signal.SIGINT)
        for rank in range(2):
            until((job.folder / f"got.{rank}").exists, f"the signal to rank {rank}")
        supervisor.kill()
        assert launcher.wait(LIMIT) == 72
        await_none_marked(mark)
    assert not job.has_saved()
