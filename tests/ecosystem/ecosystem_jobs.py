"""Runs a script under rlaunch and under the framework's own launcher, and reads what its ranks have seen."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_launching import TorchPlace

SCRIPTS = Path(__file__).parent / "scripts"
# For one job. Two ranks that import torch, Lightning and transformers on a busy machine take half a minute.
LIMIT = 240.0

# What a rank has seen, by name.
Facts = dict[str, Any]

RLAUNCH_RUN = "rlaunch-run"
TORCHRUN = "torchrun"
RLAUNCH = "python -m rlaunch"
PADDLE = "python -m paddle.distributed.launch"
MODULES = {
    RLAUNCH_RUN: "rlaunch.run",
    TORCHRUN: "torch.distributed.run",
    RLAUNCH: "rlaunch",
    PADDLE: "paddle.distributed.launch",
}


@dataclass(frozen=True)
class Job:
    """A job that has ended, in a folder of its own."""

    folder: Path
    status: int
    stdout: str
    stderr: str

    def facts(self, name: str = "seen") -> list[Facts]:
        """What the ranks have seen, by rank."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob(f"{name}.*.json"))]

    def result(self) -> dict[str, Any]:
        """rlaunch's result.json."""
        (path,) = self.folder.glob("log/**/rlaunch/result.json")
        result: dict[str, Any] = json.loads(path.read_text())
        return result


class Jobs:
    """Jobs of one test. Each begins in a new folder with the scripts and without files of other jobs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    @contextlib.contextmanager
    def start(self, command: str, folder: Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
        """Starts a command line, as the docs have it, in a folder."""
        with subprocess.Popen(
            as_words(command),
            cwd=folder,
            env=environment(folder) | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def run(self, *commands: str, status: int | None = 0) -> Job:
        """Runs commands to their ends in a new folder; returns the last one, which ends with this status."""
        *before, command = commands
        folder = self.new_folder()
        for one in before:
            with self.start(one, folder) as process:
                self.wait(process, folder)
        with self.start(command, folder) as process:
            return self.wait(process, folder, status)

    @staticmethod
    def wait(process: subprocess.Popen[str], folder: Path, status: int | None = 0) -> Job:
        stdout, stderr = process.communicate(timeout=LIMIT)
        job = Job(folder, process.returncode, stdout, stderr)
        assert status in (None, job.status), f"{job.status}\n{stdout}\n{stderr}"
        return job

    def new_folder(self) -> Path:
        self._count += 1
        folder = self._folder / f"job{self._count}"
        shutil.copytree(SCRIPTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
        return folder


def as_words(command: str) -> list[str]:
    """A command line of the docs as words, run by the interpreter of the tests."""
    for name, module in MODULES.items():
        if command.startswith(f"{name} "):
            return [sys.executable, "-m", module, *command[len(name) :].split()]
    words = command.split()
    if words[0] == "python":
        return [sys.executable, *words[1:]]
    return [str(Path(sys.executable).parent / words[0]), *words[1:]]


def environment(folder: Path) -> dict[str, str]:
    """The variables of a job: CPU only, one thread a rank, nothing from the network or the user's folders."""
    return TorchPlace(folder).environment(
        ACCELERATE_USE_CPU="true",
        HF_HOME=str(folder / "hf"),
        TRANSFORMERS_OFFLINE="1",
        OMP_NUM_THREADS="1",
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    )
