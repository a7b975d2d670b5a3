"""``context.stacks()``: where the ranks of a ``spawn`` are."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import rlaunch
from launching import until


def sleep_in_c(folder: str) -> None:
    (Path(folder) / "here").touch()
    # Without releasing the GIL: no signal handler of Python runs, nor faulthandler's thread.
    ctypes.PyDLL(None).sleep(1000)


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_ranks_that_are_stuck_in_c(method: str, tmp_path: Path) -> None:
    context = rlaunch.spawn(
        sleep_in_c, (str(tmp_path),), nprocs=2, join=False, start_method=method, grace_period=0
    )
    try:
        until((tmp_path / "here").exists, "a rank")
        text = until(
            lambda: (text := context.stacks()).count("sleep_in_c") >= 1 and "2 of 2" in text and text, "both"
        )
        assert text.startswith("ranks 0, 1 (2 of 2): in sleep_in_c (")
    finally:
        for process in context.processes:
            process.kill()
        with pytest.raises(rlaunch.RankError):
            context.join()
    assert context.stacks() == ""
