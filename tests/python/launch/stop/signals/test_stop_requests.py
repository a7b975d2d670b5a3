"""What counts as a second request to stop: pairs of signals."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from launching import (
    LIMIT,
    RANK,
    Place,
    environment,
    insist,
    until,
)

# Ranks that take their time to save, as the test says. They say each signal that they get.
SAVES = """
got = []
def hear(number, _):
    got.append(signal.Signals(number).name)
    tell("got", " ".join(got))
for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"):
    signal.signal(getattr(signal, name), hear)
tell("ready", os.getpid())
until(lambda: got, "a stop")
await_file("go")
tell("saved")
"""
FRONT_ENDS = {
    "rlaunch": ["-m", "rlaunch", "--nproc_per_node=2", "--grace_period=600", "--log_dir=log"],
    "rlaunch.run": ["-m", "rlaunch.run", "--nproc-per-node=2", "--shutdown-timeout=600", "--log-dir=log"],
}
STOPS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]


class Job:
    """A job of either front end, started by any command."""

    def __init__(self, folder: Path, front_end: str) -> None:
        self.folder = folder
        self.words = [sys.executable, *FRONT_ENDS[front_end], "train.py"]
        rank = RANK.replace(
            'os.environ["PADDLE_TRAINER_ID"]', 'os.environ.get("PADDLE_TRAINER_ID") or os.environ["RANK"]'
        )
        (folder / "train.py").write_text(rank + SAVES)

    @contextlib.contextmanager
    def start(self, *before: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """The command, which is started with the launcher's words after these, once the ranks run."""
        env = environment(TMPDIR=str(self.folder), RLAUNCH_RUNTIME_DIR=str(self.folder / "run"))
        options = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.PIPE,
            **options,
        }
        command = subprocess.Popen([*before, *self.words], cwd=self.folder, env=env, **options)
        with Place.cleaned(command):
            for rank in range(2):
                until((self.folder / f"ready.{rank}").exists, f"rank {rank}")
            self.launcher = psutil.Process(json.loads(self.ask("status", "--json")[1])["launcher"])
            yield command

    def ask(self, *words: str) -> tuple[int, bytes]:
        env = environment(RLAUNCH_RUNTIME_DIR=str(self.folder / "run"))
        done = subprocess.run(
            [sys.executable, "-m", "rlaunch.control", *words],
            capture_output=True, cwd=self.folder, env=env, timeout=LIMIT,
        )  # fmt: skip
        return done.returncode, done.stdout

    def read(self, name: str) -> str:
        (path,) = self.folder.glob(f"log/**/rlaunch/{name}")
        return path.read_text()

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [
            event
            for event in map(json.loads, self.read("events.jsonl").splitlines())
            if event["event"] == kind
        ]

    def requests(self) -> list[str]:
        """How the stops counted so far that are in the journal, and mean something."""
        return [event["request"] for event in self.events("signal") if "request" in event]

    def end(self) -> dict[str, Any]:
        """Lets the ranks save. Returns the result."""
        (self.folder / "go").touch()
        with contextlib.suppress(psutil.NoSuchProcess):
            self.launcher.wait(LIMIT)
        result: dict[str, Any] = json.loads(self.read("result.json"))
        return result

    def has_saved(self) -> bool:
        return all((self.folder / f"saved.{rank}").exists() for rank in range(2))


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
