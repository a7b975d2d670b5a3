"""Jobs of rlaunch with a DataLoader leave nothing in /dev/shm."""

from __future__ import annotations

from pathlib import Path

import endings
from effort import FULL, each

# Only `make test-full` tries other strategies than the one with which torch's helper removes the memory. Each
# ending runs under one command line.
KINDS = [kind for kind in endings.KINDS if FULL or kind[0] == "file_system"]


@each("strategy, ending", KINDS)
def test_nothing_is_left_in_shared_memory(strategy: str, ending: str, tmp_path: Path) -> None:
    launcher = endings.OURS[KINDS.index((strategy, ending)) % 2]
    ended = endings.end_one(launcher, strategy, ending, tmp_path)
    assert (ended.status == 0) == (ending == "ok"), (tmp_path / "output").read_text()
    assert ended.left == []
