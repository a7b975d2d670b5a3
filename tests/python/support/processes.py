"""Reads /proc about processes, and waits for their ends by pidfd. Imports little: ranks import it too."""

from __future__ import annotations

import contextlib
import os
import select
import time
from pathlib import Path


def state(pid: int) -> str:
    """The letter the kernel has for a process's state; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def alive(pid: int) -> bool:
    return state(pid) not in ("", "Z", "X")


def children(of: int | None = None) -> set[int]:
    """Every process below this one, zombies too."""
    found: set[int] = set()
    # A thread, or a child, that has ended meanwhile has no children.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{of or 'self'}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for pid in map(int, (task / "children").read_text().split()):
                    found |= {pid, *children(pid)}
    return found


def await_exit(pid: int, deadline: float) -> None:
    """Waits for the end of a process, but not for long: the number may be another's by now."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    ended.poll(1000 * max(0.0, min(0.2, deadline - time.monotonic())))
    os.close(descriptor)
