"""``rlaunch.spawn``, and the one after torch, interrupted at every line of their own: wherever a signal
handler raises, from the first rank's start to the wait for the last one, no rank is left."""

from __future__ import annotations

import pytest
from interrupted_parents import interrupted_at_each_line
from stress import Parent


@pytest.mark.parametrize(
    # They share most lines: if each is interrupted at each third line, they are at each together.
    ("method", "nprocs", "after_torch", "first"),
    [("spawn", 1, False, 0), ("fork", 2, False, 1), ("forkserver", 1, False, 2), ("fork", 2, True, 0)],
)
def test_an_interrupt_at_any_line_leaves_no_process(
    method: str, nprocs: int, after_torch: bool, first: int
) -> None:
    with Parent(interrupted_at_each_line, method, nprocs, after_torch, first) as parent:
        messages = [parent.heard(100)]
        while messages[-1][0] != "lines":
            messages.append(parent.heard(100))
        assert parent.ends() == 0
        assert parent.leaves_no_process()
    assert messages[-1][1] > 100
    assert messages[:-1] == []
