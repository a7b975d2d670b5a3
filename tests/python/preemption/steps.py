"""Ranks that train in steps, save when they are to stop, and continue where they were."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from launching import LIMIT, TALKING, Ended, environment

PREEMPTED, TERMINATED = 78, 128 + 15

# A rank's state after N steps is the sum of their numbers. A checkpoint is whole or not there.
STEPS = f"""
import json, os, random, signal, sys, time, rlaunch
rank = int(os.environ.get("PADDLE_TRAINER_ID") or os.environ["RANK"])
seconds, last = float(os.environ.get("STEP_SECONDS", "0.002")), int(os.environ.get("LAST_STEP", "-1"))
{TALKING}
def on_term(*_):
    tell("terminated")
    sys.exit(0)

signal.signal(signal.SIGTERM, on_term)
try:
    with open(f"checkpoint.{{rank}}") as file:
        step, state = json.load(file)
except FileNotFoundError:
    step = state = 0
while step != last:
    if rlaunch.should_stop(step):
        tell("left", rlaunch.time_left())
        tell("checkpoint", json.dumps([step, state]))
        sys.exit(0)
    if not os.path.exists(f"ready.{{rank}}"):
        tell("ready", os.getpid())
    time.sleep(random.random() * seconds)
    step, state = step + 1, state + step
tell("finished", json.dumps([step, state]))
"""


def checkpoints(folder: Path, name: str = "checkpoint") -> list[tuple[int, int]]:
    """The step and the state of each rank's checkpoint, by rank."""
    found = []
    while (path := folder / f"{name}.{len(found)}").exists():
        step, state = json.loads(path.read_text())
        found.append((step, state))
    return found


def state_after(steps: int) -> int:
    """The state of a rank that has lost none of its steps."""
    return steps * (steps - 1) // 2


def ask(folder: Path, *args: str) -> Ended:
    """Runs ``rlaunch ARGS`` for the jobs whose launchers have this folder for their control sockets."""
    done = subprocess.run(
        [sys.executable, "-m", "rlaunch.control", *args],
        capture_output=True,
        env=variables(folder),
        cwd=folder.parent,
        timeout=LIMIT,
    )
    return Ended(done.returncode, done.stdout, done.stderr.decode())


def variables(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a launcher whose control socket is in this folder."""
    return environment(RLAUNCH_RUNTIME_DIR=os.fspath(folder), **more)


def events(log_dir: Path, name: str) -> list[dict[str, Any]]:
    """A launcher's events of this kind."""
    lines = (log_dir / "rlaunch/events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]
