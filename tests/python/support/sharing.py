"""Values that are costly to find and the same for all workers of pytest-xdist: one worker finds them."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

Found = TypeVar("Found")


def once(factory: pytest.TempPathFactory, name: str, find: Callable[[Path], Found]) -> Found:
    """The result of `find`, given an empty folder of this name. Another worker that asks waits for it."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    kept = shared / f"{name}.pickle"
    with open(shared / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            folder = shared / name
            folder.mkdir()
            kept.write_bytes(pickle.dumps(find(folder)))
    found: Found = pickle.loads(kept.read_bytes())
    return found
