"""The launchers that are compared: rlaunch by its two command lines, and its rivals.

A new one is an entry in LAUNCHERS.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

# Steers a launcher: not inherited from the shell that runs the bench.
STEERING = re.compile(r"(R?LAUNCH_|PADDLE_|PET_|TORCH|MASTER_|SLURM_)|(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)$")


class Kind(Enum):
    # One of rlaunch's two command lines.
    PRESENT = auto()
    # The rlaunch of another commit.
    BEFORE = auto()
    RIVAL = auto()


@dataclass(frozen=True)
class Launcher:
    """A command line: ranks whose output goes to files, rank 0's to the console too."""

    name: str
    title: str
    module: str
    package: str
    options: Callable[[int, Path], list[str]]
    # For the lines of all ranks on the console, each behind a prefix; None: it cannot.
    shared_console: tuple[str, ...] | None = None
    kind: Kind = Kind.RIVAL

    @property
    def keeps_promises(self) -> bool:
        return self.kind is Kind.PRESENT

    @property
    def is_rival(self) -> bool:
        return self.kind is Kind.RIVAL

    @property
    def python(self) -> str:
        return os.environ.get(f"FAULTS_{self.name.upper()}_PYTHON", sys.executable)

    def command(self, ranks: int, logs: Path, *more: str) -> list[str]:
        return [self.python, "-m", self.module, *self.options(ranks, logs), *more]

    @functools.cached_property
    def version(self) -> str | None:
        """None where it is not installed."""
        probe = f"from importlib import metadata; print(metadata.version({self.package!r}))"
        done = subprocess.run(
            [self.python, "-c", probe], cwd="/", capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else None


def environment() -> dict[str, str]:
    """The environment of launchers: torchrun warns if OMP_NUM_THREADS is not set."""
    env = {name: value for name, value in os.environ.items() if not STEERING.match(name)}
    # As installed by pip: with its bytecode, which some machines are configured not to write.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env | {"OMP_NUM_THREADS": "1"}


def paddle_options(ranks: int, logs: Path) -> list[str]:
    return ["--nproc_per_node", str(ranks), "--log_dir", str(logs)]


def torchrun_options(ranks: int, logs: Path) -> list[str]:
    with socket.socket() as free:  # Its default port may be another torchrun's.
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = ["--log-dir", str(logs), "--redirects", "3", "--tee", "0:3"]
    return ["--nproc-per-node", str(ranks), "--master-port", str(port), *files]


RLAUNCH = Launcher(
    "rlaunch",
    "rlaunch",
    "rlaunch",
    "rlaunch",
    paddle_options,
    ("--console_ranks=all", "--log_prefix=rank"),
    Kind.PRESENT,
)
RUN = Launcher(
    "run",
    "rlaunch.run",
    "rlaunch.run",
    "rlaunch",
    torchrun_options,
    ("--tee=3",),
    Kind.PRESENT,
)
# The rlaunch of another commit (`before.py`), where FAULTS_BEFORE_PYTHON names the interpreter that has it.
BEFORE = dataclasses.replace(RLAUNCH, name="before", title="rlaunch before", kind=Kind.BEFORE)
PADDLE = Launcher("paddle", "Paddle", "paddle.distributed.launch", "paddlepaddle", paddle_options)
TORCHRUN = Launcher("torchrun", "torchrun", "torch.distributed.run", "torch", torchrun_options, ("--tee=3",))
HAS_BEFORE = "FAULTS_BEFORE_PYTHON" in os.environ
LAUNCHERS = (RLAUNCH, RUN, *([BEFORE] if HAS_BEFORE else []), PADDLE, TORCHRUN)
