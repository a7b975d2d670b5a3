"""Jobs in two containers that share /dev/shm touch nothing of each other, nor of other programs."""

from __future__ import annotations

import os
from pathlib import Path

import neighbours
import pytest
from effort import FULL
from oracle import SEED


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make cgroups")
@pytest.mark.timeout(1200 if FULL else 240)
def test_nothing_of_others_is_touched(tmp_path: Path) -> None:
    assert neighbours.find_touched(200 if FULL else 12, SEED, tmp_path) == []
