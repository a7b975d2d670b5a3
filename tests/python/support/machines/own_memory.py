"""Shared memory of Paddle, and a /dev/shm of its own for a command: no other PID namespace shares it."""

from __future__ import annotations

import os

import pytest

OWN_MEMORY = ["unshare", "--mount", "sh", "-ec", 'mount -t tmpfs none /dev/shm; exec "$@"', "sh"]

# A process of the initial PID namespace sees all others, and root sees which /dev/shm they have. Elsewhere no
# file is removed that no process was seen to have.
SEES_ALL = os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC
needs_own_memory = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a /dev/shm")

# As a rank of Paddle and a worker of its DataLoader, which would clean up only if it ended by itself: what is
# shared is mapped, and no descriptor is kept.
SHARES_AS_PADDLE = """
import mmap, uuid
kept = []

def share():
    name = f"/dev/shm/paddle_{os.getpid()}_0_{uuid.uuid4().int}"
    tell(f"shares-{os.getpid()}", name)  # Before: a rank that is killed may leave it.
    with open(name, "x+b") as file:
        file.truncate(4096)
        kept.append(mmap.mmap(file.fileno(), 4096))
    return name

own = share()
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell("worker", share())
    sleep()
await_file(f"worker.{rank}")
tell("own", own)
"""
