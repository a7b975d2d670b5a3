"""What counts as a second request to stop: pairs of signals."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from launching import insist, until
from saving import FRONT_ENDS, STOPS, Job


@pytest.fixture(params=FRONT_ENDS)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    return Job(tmp_path, request.param)


# A busy machine adds to the distance. So the same signal comes long before the 1.5 s are over; unit tests are
# nearer.
PAIRS = [
    pytest.param(first, second, distance, id=f"{first.name}-{second.name}-{distance}")
    for first in (signal.SIGTERM, signal.SIGINT)
    for second in STOPS
    for distance in ((0, 0.02, 0.2) if first == second else (0, 0.02, 0.5, 1.0))
]


@pytest.mark.parametrize(("first", "second", "distance"), PAIRS)
def test_two_signals_of_a_platform_are_one_request(
    job: Job, first: int, second: int, distance: float
) -> None:
    with job.start():
        job.launcher.send_signal(first)
        until(lambda: job.requests() == ["first"], "the first")
        time.sleep(distance)  # The distance is what is varied.
        job.launcher.send_signal(second)
        if first != second:
            until(lambda: job.requests() == ["first", "other"], "the second")
        result = job.end()
    assert (result["exit_status"], job.has_saved()) == (128 + first, True)
    assert job.events("forced") == []


def test_a_notice_that_stops_the_ranks_and_the_platforms_signal_after_it_are_one_stop(job: Job) -> None:
    """As ``preStop: rlaunch preempt``, after which the kubelet sends SIGTERM."""
    with job.start():
        assert job.ask("preempt", "--no-wait")[0] == 0
        until(
            lambda: all((job.folder / f"got.{rank}").exists() for rank in range(2)), "the launcher's own stop"
        )
        job.launcher.send_signal(signal.SIGTERM)
        until(lambda: job.requests() == ["first"], "the platform's")
        job.launcher.send_signal(signal.SIGTERM)
        job.launcher.send_signal(signal.SIGINT)
        until(lambda: "other" in job.requests(), "the signals")
        result = job.end()
    assert (result["exit_status"], job.has_saved()) == (143, True)
    assert job.events("forced") == []


def test_a_users_stop_and_a_platform_that_sends_twice_are_one_request(job: Job) -> None:
    with job.start():
        assert job.ask("stop", "--no-wait")[0] == 0
        until(lambda: job.requests() == ["first"], "the user's stop")
        time.sleep(2)  # Past the time in which the same signal on one way is the same request.
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            job.launcher.send_signal(number)
        until(lambda: "other" in job.requests(), "the signals")
        result = job.end()
    assert (result["exit_status"], job.has_saved()) == (143, True)
    assert job.events("forced") == []


@pytest.mark.parametrize("number", STOPS, ids=lambda number: number.name)
def test_the_same_signal_at_human_speed_kills(job: Job, number: signal.Signals) -> None:
    with job.start() as launcher:
        insist(launcher, number)
    assert launcher.returncode == 128 + number
    assert not job.has_saved()
    assert job.requests() == ["first", "again"]
    (first, again) = (event["monotonic"] for event in job.events("signal"))
    assert again - first >= 1.0
