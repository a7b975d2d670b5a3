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


@pytest.mark.parametrize("distance", [0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("second", STOPS, ids=lambda number: number.name)
@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
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


@pytest.mark.parametrize("number", STOPS, ids=lambda number: number.name)
def test_the_same_signal_at_human_speed_kills(job: Job, number: signal.Signals) -> None:
    with job.start() as launcher:
        insist(launcher, number)
    assert launcher.returncode == 128 + number
    assert not job.has_saved()
    assert job.requests() == ["first", "again"]
    (first, again) = (event["monotonic"] for event in job.events("signal"))
    assert again - first >= 1.0
