"""A /dev/shm of its own for a command, in which no process of another PID namespace can create a file."""

from __future__ import annotations

import os

import pytest

OWN_MEMORY = ["unshare", "--mount", "sh", "-ec", 'mount -t tmpfs none /dev/shm; exec "$@"', "sh"]

# A process of the initial PID namespace sees all others, and root sees which /dev/shm they have. Elsewhere no
# file is removed that no process was seen to have.
SEES_ALL = os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC
needs_own_memory = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a /dev/shm")
