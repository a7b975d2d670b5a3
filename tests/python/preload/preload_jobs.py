"""Jobs whose ranks are forked from a process that imports for all of them, under either front end."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from launching import TALKING, Ended, supervisor_of, until
from torch_launching import TorchPlace

PADDLE, TORCH = "rlaunch", "rlaunch.run"

# The helpers of ranks under either front end, to talk with a test.
RANK = f"""
import json, os, signal, sys, time
rank = int(os.environ.get("PADDLE_TRAINER_ID") or os.environ["RANK"])
attempt = int(os.environ["RLAUNCH_RANK_KEY"].split("/")[1])
{TALKING}"""

# A module to be imported for all; it counts how often.
COUNTED = """
with open("imports", "a") as file:
    file.write("x")
"""


class Job(TorchPlace):
    """A folder to launch in, by the front end of this name."""

    def __init__(self, folder: Path, frontend: str) -> None:
        super().__init__(folder)
        self.frontend = frontend
        self.module("counted", COUNTED)

    def module(self, name: str, body: str) -> None:
        (self.folder / f"{name}.py").write_text(textwrap.dedent(body))

    def script(self, body: str, name: str = "train.py") -> str:
        (self.folder / name).write_text(RANK + textwrap.dedent(body))
        return name

    def options(self, zygote: str | None, ranks: int = 2, restarts: int = 0) -> list[str]:
        """Of a job whose streams go into logs."""
        own = [f"--preload={zygote}"] if zygote else []
        if self.frontend == TORCH:
            return [
                f"--nproc-per-node={ranks}",
                f"--max-restarts={restarts}",
                "--redirects=3",
                "--log-dir=log",
                *own,
            ]
        restarts_ = [f"--max_restart={restarts}", "--restart_delay=0"] if restarts else []
        return [f"--nproc_per_node={ranks}", "--console_ranks=none", *restarts_, *own]

    def popen(
        self, *args: str | bytes, env: Mapping[Any, Any] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        options = {"cwd": self.folder, "stdin": subprocess.DEVNULL, **options}
        command = [sys.executable, "-m", self.frontend, *args]
        self.launcher = subprocess.Popen(command, env=env or self.environment(), **options)
        return self.launcher

    def own_folder(self) -> Path:
        """Where the launcher of the only run has its records."""
        (path,) = (self.folder / "log").glob("**/rlaunch/events.jsonl")
        return path.parent

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (self.own_folder() / "events.jsonl").read_text().splitlines()]
        return [line for line in lines if name in (None, line["event"])]

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.own_folder() / "result.json").read_text())
        return result

    def output(self, rank: int = 0, attempt: int = 0) -> str:
        """The output of a rank, both streams."""
        if self.frontend == PADDLE:
            return self.log(rank).decode()
        folder = self.run_folder() / f"attempt_{attempt}" / str(rank)
        return (folder / "stdout.log").read_text() + (folder / "stderr.log").read_text()

    def imports(self) -> int:
        """How often the counted module has been imported."""
        return len(self.text("imports"))

    def zygote(self) -> psutil.Process:
        """It, once it runs its program."""
        launcher = self.launcher
        assert launcher is not None
        until(lambda: psutil.Process(launcher.pid).children(), "the supervisor")
        supervisor = supervisor_of(launcher)

        def found() -> psutil.Process | None:
            return next((one for one in supervisor.children() if one.name() == "rlaunch-zygote"), None)

        zygote: psutil.Process = until(found, "the zygote")
        return zygote


def lines_of(ended: Ended) -> list[str]:
    """The messages of the launcher."""
    own = [line for line in ended.stderr.splitlines() if line.startswith("rlaunch: ")]
    return [line.removeprefix("rlaunch: ") for line in own]
