"""Jobs of both front ends whose ranks take their time to save."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from launching import LIMIT, RANK, Place, environment, until

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
        self.variables = {"TMPDIR": str(folder), "RLAUNCH_RUNTIME_DIR": str(folder / "run")}
        self.words = [sys.executable, *FRONT_ENDS[front_end], "train.py"]
        rank = RANK.replace(
            'os.environ["PADDLE_TRAINER_ID"]', 'os.environ.get("PADDLE_TRAINER_ID") or os.environ["RANK"]'
        )
        (folder / "train.py").write_text(rank + SAVES)

    @contextlib.contextmanager
    def start(self, *before: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """The command, which is started with the launcher's words after these, once the ranks run."""
        env = environment(**self.variables)
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

    def ranks(self) -> list[psutil.Process]:
        return [psutil.Process(int((self.folder / f"ready.{rank}").read_text())) for rank in range(2)]

    def ask(self, *words: str) -> tuple[int, bytes]:
        env = environment(**self.variables)
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
