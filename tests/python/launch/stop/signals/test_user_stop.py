"""`rlaunch stop`, a stop between two rounds, and Ctrl-Z beside a stop."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from pathlib import Path

import psutil
import pytest
from launching import LIMIT, Place, await_line, free_ports, until
from saving import FRONT_ENDS, Job


@pytest.fixture(params=FRONT_ENDS)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    return Job(tmp_path, request.param)


# --- rlaunch stop. ----------------------------------------------------------------------------------------


def test_rlaunch_stop_names_itself_and_a_signal_beside_it_changes_nothing(job: Job) -> None:
    with job.start() as launcher:
        assert job.ask("stop", "--no-wait")[0] == 0
        await_line(launcher.stderr, b"`rlaunch stop` stops this job")
        until(lambda: job.requests() == ["first"], "the stop")
        launcher.send_signal(signal.SIGTERM)
        assert job.ask("stop", "--no-wait")[0] == 0
        until(lambda: len(job.events("signal")) == 2, "the second call")
        result = job.end()
    assert (result["exit_status"], result["outcome"], job.has_saved()) == (143, "stopped", True)
    assert {event["origin"] for event in job.events("signal")} == {"user"}
    assert job.events("forced") == []


@pytest.mark.parametrize("grace", [None, "0"])
def test_rlaunch_stop_ends_a_job_that_is_suspended(job: Job, grace: str | None) -> None:
    with job.start(preexec_fn=os.setpgrp) as launcher:
        launcher.send_signal(signal.SIGTSTP)
        until(lambda: job.launcher.status() == psutil.STATUS_STOPPED, "the suspension")
        until(lambda: json.loads(job.ask("status", "--json")[1])["suspended"], "that of the ranks")
        if grace is None:
            (job.folder / "go").touch()
        options = [] if grace is None else [f"--grace_period={grace}"]
        assert job.ask("stop", *options)[0] == 0
        assert launcher.wait(LIMIT) == 143
    assert job.has_saved() == (grace is None)


def test_a_stop_while_the_console_is_drained_is_kept(place: Place) -> None:
    """Between two rounds of an elastic job, whose reader is slow."""
    place.script("""
        print("x" * 300_000, flush=True)
        sys.exit(3)
    """)
    nodes = [
        "--nnodes=1:2",
        "--elastic_level=1",
        "--elastic_timeout=1",
        f"--master=127.0.0.1:{free_ports(1)}",
    ]
    with place.start(*nodes, "--host=127.0.0.1", "--max_restart=9", "train.py") as launcher:
        path = place.folder / "log/rlaunch/events.jsonl"
        until(lambda: path.exists() and '"rank_ended"' in path.read_text(), "the failure")
        launcher.send_signal(signal.SIGTERM)
        ended = Place.wait(launcher)
    assert ended.status == 143, ended.stderr
    assert [event["request"] for event in place.events() if event["event"] == "signal"] == ["first"]


# --- Ctrl-Z. ----------------------------------------------------------------------------------------------


def test_a_suspension_that_is_taken_back_never_lasts(job: Job) -> None:
    libc = ctypes.CDLL(None)
    with job.start(preexec_fn=os.setpgrp) as launcher:
        for attempt in range(150):
            launcher.send_signal(signal.SIGTSTP)
            libc.usleep(attempt * 13)  # 0 to 2 ms: the distance is what is varied.
            launcher.send_signal(signal.SIGCONT)
            until(lambda: job.launcher.status() != psutil.STATUS_STOPPED, f"the end of suspension {attempt}")
        until(lambda: not json.loads(job.ask("status", "--json")[1])["suspended"], "running ranks")
        launcher.send_signal(signal.SIGTERM)
        until(lambda: "first" in job.requests(), "the stop")
        result = job.end()
    assert (result["exit_status"], job.has_saved()) == (143, True)
