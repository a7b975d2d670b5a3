"""The commands of docs/slurm.md have options that there are, where programs read them."""

from __future__ import annotations

import re
import subprocess
import sys

from paths import ROOT

PAGE = (ROOT / "docs/slurm.md").read_text()


def help_of(module: str) -> str:
    command = [sys.executable, "-m", module, "--help", "all"]
    return subprocess.run(command, capture_output=True, text=True).stdout


def test_every_command_has_options_that_there_are() -> None:
    helps = {module: help_of(module) for module in ("rlaunch", "rlaunch.run")}
    lines = re.findall(r"^(?:srun|mpirun) .* -m .*$", PAGE, re.M)
    commands = [part.split() for line in lines for part in line.split(" : ")]
    assert len(lines) >= 2
    for command in commands:
        at = command.index("-m")
        module = command[at + 1]
        options = [word for word in command[at + 2 :] if word.startswith("--")]
        missing = [one for one in options if not re.search(rf"{one}\b", helps[module])]
        assert not missing, command


def test_sbatch_reads_all_options_of_the_script() -> None:
    """They stand before the first command (sbatch(1)). `make test-cluster` runs the script."""
    (script,) = re.findall(r'^```bash title="job.sh"\n(.*?)^```', PAGE, re.M | re.S)
    first = re.search(r"^[^#\n]", script, re.M)
    assert first
    assert "#SBATCH" not in script[first.start() :]
    # Each launcher gets the same.
    assert re.search(r"^export RLAUNCH_JOB_SECRET=.+\nsrun ", script, re.M)
