"""What a daemon of a rank writes for the rank counts for nothing: `setsid tensorboard &` has its file too."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from launching import DAEMON, Place, until
from preload_jobs import PADDLE, TORCH, Job

FAILS = "raise RuntimeError('port 6006 is already in use')"
HELPED = f"""{DAEMON}
if rank == 1:
    pid = run_daemon({FAILS!r})
    until(lambda: is_gone(pid), "the end of the daemon")
    tell("helped")
    sleep()
await_file("helped.1")
"""


JOBS = [(PADDLE, None), (TORCH, None), (PADDLE, "counted"), (TORCH, "counted")]


@pytest.fixture(params=JOBS, ids=str)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Job, list[str]]:
    frontend, zygote = request.param
    job = Job(tmp_path, frontend)
    return job, job.options(zygote)


@pytest.mark.parametrize("job", JOBS[:2], indirect=True, ids=str)
def test_a_rank_whose_daemon_has_failed_is_not_aborted(job: tuple[Job, list[str]]) -> None:
    """Rank 0, which fails later, is: the launcher has looked at both by then."""
    place, options = job
    place.script(f"""{HELPED}
import threading
threading.Thread(target=sleep).start()
raise ValueError("bad sample 17")
""")
    timeout = "--exit-timeout=0.5" if place.frontend == TORCH else "--exit_timeout=0.5"
    ended = place.run(*options, timeout, "train.py")
    assert [event["rank"] for event in place.events("stuck_exit")] == [0], ended.stderr
    result = place.result()
    assert (result["culprit"], result["reason"]) == (0, "ValueError: bad sample 17")


def test_its_exception_is_no_reason_for_another_rank_s_failure(job: tuple[Job, list[str]]) -> None:
    place, options = job
    place.script(f"{HELPED}\nraise ValueError('loss is nan')\n")
    ended = place.run(*options, "train.py")
    assert ended.status == 1, ended.stderr
    result = place.result()
    assert (result["culprit"], result["reason"]) == (0, "ValueError: loss is nan"), ended.stderr


BEATS = """
import os, rlaunch, time
while True:
    rlaunch.heartbeat()
    if not os.path.exists("beats"):
        open("beats", "w").close()
    time.sleep(0.02)
"""


def test_its_heartbeat_is_none_of_the_rank(place: Place) -> None:
    place.script(f"""{DAEMON}
run_daemon({BEATS!r})
until(lambda: os.path.exists("beats"), "a heartbeat")
sleep()
""")
    with place.start("--nproc_per_node=1", "--hang_timeout=0.5", "train.py") as launcher:
        until(
            lambda: (
                (place.folder / "log/rlaunch/events.jsonl").exists()
                and [event for event in place.events() if event["event"] == "hang"]
            ),
            "the report of the hang",
        )
        launcher.send_signal(signal.SIGTERM)
        place.wait(launcher)


def test_the_heartbeat_of_a_process_that_the_rank_has_started_is_one(place: Place) -> None:
    place.script(f"""
import subprocess
subprocess.Popen([sys.executable, "-c", {BEATS!r}], start_new_session=True)
until(lambda: os.path.exists("beats"), "a heartbeat")
sleep()
""")
    arguments = ("--nproc_per_node=1", "--hang_timeout=3", "--log_level=DEBUG", "train.py")
    with place.start(*arguments) as launcher:
        until((place.folder / "beats").exists, "a heartbeat")
        assert launcher.stderr is not None
        for _ in range(3):
            until(lambda: b"NotSilent" in launcher.stderr.readline(), "a look")
        launcher.send_signal(signal.SIGTERM)
        place.wait(launcher)
    assert [event for event in place.events() if event["event"] == "hang"] == []
