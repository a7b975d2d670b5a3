"""What the scripts of this folder share: their options, and what they tell the test.

A script that is to fail does so in its first attempt only, so that a restarted job ends.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

RANK = int(os.environ.get("RANK", os.environ.get("PADDLE_TRAINER_ID", "0")))
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fail", type=int, help="the rank that fails in epoch 1 of the first attempt")
    parser.add_argument("--wait", action="store_true", help="stay in epoch 1 until a signal comes")
    return parser.parse_args()


def fail_or_wait(options: argparse.Namespace, epoch: int) -> None:
    """Does what the options say of this epoch."""
    if epoch == 1 and ATTEMPT == 0 and options.fail == RANK:
        raise ValueError("loss is nan")
    if epoch == 1 and options.wait:
        tell("ready", pid=os.getpid())


def tell(name: str = "seen", /, **facts: Any) -> None:
    """Writes `NAME.RANK.json`, whole."""
    path = Path(f"{name}.{RANK}.json")
    path.with_suffix(".tmp").write_text(json.dumps(facts))
    path.with_suffix(".tmp").rename(path)


def wait_while(condition: Any) -> None:
    """Runs signal handlers, which Python does between two lines, until one has changed something."""
    deadline = time.monotonic() + 120
    while condition():
        if time.monotonic() > deadline:
            raise TimeoutError("no signal came")
        time.sleep(0.01)
