"""Scripts of ranks and the commands that start them, one for each front end."""

from __future__ import annotations

from pathlib import Path

from launching import TALKING

# Names of files that ranks write have the rank, the number of ranks and the node.
RANK = f"""
import os, signal, socket, sys, time
import rlaunch
number, world = rlaunch.get_rank(), rlaunch.get_world_size()
rank = f"{{number}}.of.{{world}}.on.{{socket.gethostname()}}"
{TALKING}"""
WHOLE_WORLD = {"0.of.4", "1.of.4", "2.of.4", "3.of.4"}

# Saves when it is asked to stop, which takes a while.
SAVES = f"""{RANK}
def save(*_):
    time.sleep({{seconds}})
    tell("saved")
    sys.exit({{status}})
signal.signal(signal.SIGTERM, save)
tell("ready")
"""

# Options are its arguments, such as log_dir=log.
LAUNCH = """
import sys

import rlaunch

options = {"nproc_per_node": 2, **dict(word.split("=") for word in sys.argv[1:])}
try:
    rlaunch.launch("train.py", **options)
except rlaunch.WorkerError as error:
    print(error, file=sys.stderr)
    sys.exit(error.report.exit_status)
except rlaunch.LaunchError as error:
    print(error, file=sys.stderr)
    sys.exit(error.status)
"""
FRONT_ENDS = ("python -m rlaunch", "python -m rlaunch.run", "rlaunch.launch()")


def command(front_end: str, **options: str | int) -> str:
    """The command of a job that has two ranks a node, with these options. A shell expands their variables."""
    if front_end == "rlaunch.launch()":
        return " ".join(["python launch.py", *(quoted(f"{name}={value}") for name, value in options.items())])
    if front_end == "python -m rlaunch.run":
        options = {name.replace("_", "-"): value for name, value in ({"nproc_per_node": 2} | options).items()}
    else:
        options = {"nproc_per_node": 2} | options
    words = [f"--{name} {quoted(str(value))}" for name, value in options.items()]
    return " ".join([front_end, *words, "train.py"])


def quoted(word: str) -> str:
    return f'"{word}"' if "$" in word else word


def saves(seconds: float = 0.0, status: int = 0) -> str:
    return SAVES.replace("{seconds}", str(seconds)).replace("{status}", str(status))


def write(folder: Path, script: str) -> None:
    """The ranks' script, and the program that calls rlaunch.launch()."""
    (folder / "train.py").write_text(script)
    (folder / "launch.py").write_text(LAUNCH)


def reported(folder: Path, name: str) -> dict[str, list[str]]:
    """Ranks that have reported this, as `0.of.4`, by node."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob(f"{name}.*.of.*.on.*")):
        if path.suffix != ".tmp":
            who, _, node = path.name.removeprefix(f"{name}.").partition(".on.")
            found.setdefault(node, []).append(who)
    return found


def is_whole(folder: Path, name: str) -> bool:
    """Whether all four ranks, two on each of two nodes, have reported this."""
    by_node = reported(folder, name)
    return [len(ranks) for ranks in by_node.values()] == [2, 2] and set().union(
        *by_node.values()
    ) == WHOLE_WORLD
