"""Runs a story under a launcher, and reads whom it blames."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from launching import environment
from story import Story
from torch_launching import STEERING

# Seconds. A rank that is asked to stop may take its grace period.
LIMIT = 240


@dataclass(frozen=True)
class BlameReport:
    """What a launcher said of a story: the rank that it names as the first that failed, and its report."""

    rank: int | None
    text: str

    def names_culprit(self, of: Story) -> bool:
        return self.rank in of.culprits

    def missing(self, of: Story) -> list[str]:
        """The patterns of the reason that the report has not."""
        return [pattern for pattern in of.reason if not re.search(pattern, self.text)]

    def misleading(self, of: Story) -> list[str]:
        """The patterns that the report has and may not have."""
        return [pattern for pattern in of.never if re.search(pattern, self.text)]


@dataclass(frozen=True)
class Blamer:
    """A launcher. `headline`: of its report; it has the rank, and the report begins with it."""

    title: str
    options: Callable[[int], list[str]]
    headline: str
    # Whether the ranks' own output counts as the report.
    whole_output: bool = False

    def run(self, of: Story, folder: Path, head: str = "") -> BlameReport:
        (folder / "train.py").write_text(of.script(head))
        env = {name: value for name, value in environment().items() if not STEERING.match(name)}
        env.update(of.environment)
        command = [sys.executable, "-m", *self.options(of.ranks), "train.py"]
        done = subprocess.run(
            command,
            cwd=folder,
            env=env,
            timeout=LIMIT,
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
        text = (done.stdout + done.stderr).decode(errors="replace")
        found = re.search(self.headline, text, re.MULTILINE)
        if found is None:
            return BlameReport(None, text)
        return BlameReport(int(found[1]), text if self.whole_output else text[found.start() :])


def of_paddle(module: str, *options: str) -> Callable[[int], list[str]]:
    return lambda ranks: [module, f"--nproc_per_node={ranks}", *options]


def of_torch(module: str, *options: str) -> Callable[[int], list[str]]:
    return lambda ranks: [module, f"--nproc-per-node={ranks}", "--master-port=0", *options]


ROOT_CAUSE = r"^Root Cause \(first observed failure\):\n(?:.*\n){1,4}?  rank +: (\d+) "
LAUNCHERS = {
    "rlaunch": Blamer("rlaunch", of_paddle("rlaunch", "--frameworks=paddle,torch"), r"^rank (\d+) failed: "),
    "run": Blamer("rlaunch.run", of_torch("rlaunch.run", "--frameworks=torch,paddle"), ROOT_CAUSE),
    "paddle": Blamer(
        "paddle.distributed.launch",
        of_paddle("paddle.distributed.launch"),
        r"^Container rank (\d+) status failed ",
        whole_output=True,
    ),
    "torchrun": Blamer("torchrun", of_torch("torch.distributed.run"), ROOT_CAUSE, whole_output=True),
}
OURS = ("rlaunch", "run")
