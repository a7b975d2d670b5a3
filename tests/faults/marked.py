"""The processes of a case: all that carry its mark in their environment, wherever they hide."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "RLAUNCH_FAULT_MARK"
SETTLE = 2.0  # Seconds after which whatever lives is a survivor.


@dataclass(frozen=True)
class Member:
    """A process of a case that lives; a zombie is none."""

    pid: int
    parent: int
    state: str
    kind: str


def kind_of(command: list[str]) -> str:
    """The kind of a process, by its command line: leftovers of ranks have it as their last argument."""
    words = command[1:]
    if any(word.endswith("/shell.py") for word in words[:2]):
        return "shell"
    if "-m" in words[:3] or not words:
        return "launcher"
    if "--multiprocessing-fork" in words:
        return "rank"
    if any(word.endswith("/host.py") for word in words[:2]):
        return "host"
    if "-c" in words[:3]:
        if any("module.guard(" in word for word in words):
            return "guardian"
        return words[-1] if words[-1] in ("child", "setsid", "daemon") else "helper"
    return "rank" if any(word.endswith("train.py") for word in words[:3]) else command[0]


def stat_of(pid: int) -> tuple[str, int]:
    """State and parent, from /proc/PID/stat; the name before them may hold anything."""
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], int(fields[1])


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def members(mark: str) -> list[Member]:
    """The living processes with this mark."""
    needle = f"{VARIABLE}={mark}".encode()
    found = []
    for pid in pids():
        with contextlib.suppress(OSError):
            if needle in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                state, parent = stat_of(pid)
                if state not in "ZX":
                    found.append(Member(pid, parent, state, kind_of(command)))
    return found


def zombies_of(parents: set[int]) -> int:
    """Zombies that these processes have not collected."""
    count = 0
    for pid in pids():
        with contextlib.suppress(OSError):
            state, parent = stat_of(pid)
            count += state == "Z" and parent in parents
    return count


def survivors(mark: str, settle: float = SETTLE) -> list[Member]:
    """The processes that still live after `settle` seconds; returns early as soon as none does."""
    deadline = time.monotonic() + settle
    while True:
        # Twice: a process that forks while /proc is read may be missed once.
        if not members(mark) and not members(mark):
            return []
        if time.monotonic() >= deadline:
            return members(mark)
        time.sleep(0.02)


def describe(left: list[Member]) -> str:
    if not left:
        return "0 survivors"
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(m.kind for m in left).items()))
    zombies = zombies_of({member.pid for member in left})
    more = f", and {zombies} zombies of theirs" if zombies else ""
    return f"{len(left)} survivor{'s' * (len(left) > 1)} ({kinds}){more}"


def send(pid: int, mark: str, number: int) -> bool:
    """Signals a process with this mark, and no other: the pidfd is of the one whose mark is read after."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if f"{VARIABLE}={mark}".encode() not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return False
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def end_all(mark: str) -> None:
    """Ends the processes of a case, and no other."""
    deadline = time.monotonic() + 20
    while left := members(mark):
        for member in left:
            send(member.pid, mark, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"cannot be killed: {left}")
        time.sleep(0.01)
