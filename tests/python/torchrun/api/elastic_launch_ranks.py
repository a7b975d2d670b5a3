"""Ranks of elastic_launch. Imports no pytest."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from pathlib import Path


def identity(word: str) -> tuple[str, ...]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "ROLE_NAME", "TORCHELASTIC_RUN_ID")
    return (word, *(os.environ[name] for name in names))


def fails_on_rank_1(code: object) -> None:
    if os.environ["RANK"] == "1":
        if isinstance(code, int):
            os._exit(code)
        raise ValueError(code)
    signal.pause()


def fails_and_is_slow_to_end() -> None:
    own = os.environ["TORCHELASTIC_ERROR_FILE"]
    if os.environ["RANK"] == "0":
        atexit.register(signal.pause)
        raise ValueError("the cause")
    of_rank_0 = Path(own.replace("/1/error.json", "/0/error.json"))
    while not of_rank_0.exists():
        time.sleep(0.005)
    # Long ago: what is compared are times, by ticks of the kernel.
    os.utime(of_rank_0, (1e9, 1e9))
    os._exit(4)


def fails_with_its_own_code(folder: str) -> None:
    """Exits with 3 plus its rank, when the other rank does."""
    rank, there = int(os.environ["RANK"]), Path(folder)
    (there / str(rank)).touch()
    while not (there / str(1 - rank)).exists():
        time.sleep(0.001)
    sys.exit(3 + rank)


def ends_without_a_result() -> None:
    os._exit(0)


def succeeds_at_last() -> str:
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if os.environ["RANK"] == "1" and attempt != "2":
        sys.exit(4)
    return attempt
