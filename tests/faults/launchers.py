"""The launchers that can be put to the test. A new one is an entry in LAUNCHERS."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
GRACE = 3


@dataclass(frozen=True)
class Launcher:
    """A command line, and where it puts the logs."""

    name: str
    module: str
    # Options for so many ranks and this log folder.
    options: Callable[[int, Path], list[str]]
    # A pattern below the log folder, of the file that rank {rank} writes its output to.
    log_pattern: str
    # Seconds between asking ranks to stop and killing them, as configured or as built in.
    grace: float
    # The option that configures them, if there is one.
    grace_option: str = ""
    # The option by which ranks run a program as it is, where it needs one.
    program_option: tuple[str, ...] = ()
    # Python code that runs the launcher in its own process; sys.argv has the command line.
    run_code: str = ""
    # Python code that starts two ranks, each a call of `run()`, or of `run(RANK)`, and sets `context`.
    spawn_code: str = ""
    ours: bool = False
    # Whether a process of its own is to stand between it and the ranks.
    supervised: bool = False
    thorough: bool = False

    @property
    def python(self) -> str:
        return os.environ.get(f"FAULTS_{self.name.upper()}_PYTHON", sys.executable)

    def command(self, ranks: int, logs: Path) -> list[str]:
        return [self.python, "-m", self.module, *self.options(ranks, logs)]

    def with_grace(self, grace: float) -> Launcher:
        """The same with another grace period, where that can be configured."""
        if not self.grace_option:
            return self
        added = [self.grace_option, str(grace)]
        return replace(self, grace=grace, options=lambda ranks, logs: [*self.options(ranks, logs), *added])

    def log(self, logs: Path, rank: int) -> Path:
        found = sorted(logs.glob(self.log_pattern.format(rank=rank)))
        if len(found) != 1:
            raise FileNotFoundError(f"{len(found)} logs of rank {rank} in {logs}")
        return found[0]

    def amount(self, quick: T, full: T, rival: T) -> T:
        """How much of something: rivals take seconds where we take milliseconds."""
        return quick if not self.thorough else full if self.ours else rival

    def installed(self) -> bool:
        package = self.module.partition(".")[0]
        probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
        return subprocess.run([self.python, "-c", probe], cwd="/", check=False).returncode == 0

    @property
    def hint(self) -> str:
        package = {"paddle": "paddlepaddle", "torchrun": "torch"}.get(self.name, self.name)
        return (
            f"{self.name} is not installed for {self.python}: pip install {package}, "
            f"or name an interpreter that has it in FAULTS_{self.name.upper()}_PYTHON, or --only-installed"
        )


def paddle_options(ranks: int, logs: Path) -> list[str]:
    return ["--nproc_per_node", str(ranks), "--log_dir", str(logs)]


def rlaunch_options(ranks: int, logs: Path) -> list[str]:
    return [*paddle_options(ranks, logs), "--grace_period", str(GRACE)]


def torchrun_options(ranks: int, logs: Path) -> list[str]:
    # Logs of all ranks in files, rank 0's on the console too: as the other two do.
    files = ["--log-dir", str(logs), "--redirects", "3", "--tee", "0:3"]
    return ["--nproc-per-node", str(ranks), *files, "--shutdown-timeout", str(GRACE)]


LAUNCHERS = {
    launcher.name: launcher
    for launcher in (
        Launcher(
            "rlaunch",
            "rlaunch",
            rlaunch_options,
            "workerlog.{rank}",
            GRACE,
            grace_option="--grace_period",
            program_option=("--no_python",),
            run_code=f"""
import rlaunch
rlaunch.launch(sys.argv[-1], nproc_per_node=2, log_dir="log", grace_period={GRACE})
""",
            spawn_code=f"""
import rlaunch
context = rlaunch.spawn(run, nprocs=2, join=False, backend="gloo", grace_period={GRACE})
""",
            ours=True,
            supervised=True,
        ),
        Launcher(
            "paddle",
            "paddle.distributed.launch",
            paddle_options,
            "workerlog.{rank}",
            30,
            run_code="from paddle.distributed.launch.main import launch; launch()",
            spawn_code="""
import paddle.distributed
context = paddle.distributed.spawn(run, nprocs=2, join=False, backend="gloo")
""",
        ),
        Launcher(
            "torchrun",
            "torch.distributed.run",
            torchrun_options,
            "*/attempt_0/{rank}/stdout.log",
            GRACE,
            grace_option="--shutdown-timeout",
            program_option=("--no-python",),
            run_code="from torch.distributed.run import main; main(sys.argv[1:])",
            spawn_code="""
import torch.multiprocessing
context = torch.multiprocessing.spawn(run, nprocs=2, join=False)
""",
        ),
    )
}
