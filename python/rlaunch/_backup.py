"""Endpoints too long for the environment, put where Paddle's readers look for them then."""

from __future__ import annotations

import os

from . import _lib
from ._worker import BACKUP, ENDPOINTS

# A string of 32 pages or more, its NUL counted, is refused by execve(2), and a rank that has one in its
# environment can start no program; importing Paddle starts one.
_TOO_LONG = 128 * 1024


def set_aside(environs: list[dict[str, str]]) -> tuple[list[dict[str, str]], _lib.Descriptor | None]:
    """The environments with long endpoints in a backup file; the file, to be kept while ranks may read it.

    It is a piece of memory that is named by this process's descriptor, so nothing is left behind, and
    nobody else's processes can read it.
    """
    endpoints = environs[0].get(ENDPOINTS, "") if environs else ""
    if len(f"{ENDPOINTS}={endpoints}".encode()) < _TOO_LONG:
        return environs, None
    import json

    file = _lib.Descriptor.memory("rlaunch-backup")
    with open(file.fileno(), "w", closefd=False) as text:
        json.dump({ENDPOINTS: endpoints}, text)
    told = {BACKUP: f"/proc/{os.getpid()}/fd/{file.fileno()}"}
    # Where the ranks meet: Paddle's store does not look into the file.
    if "PADDLE_MASTER" not in os.environ:
        told["PADDLE_MASTER"] = endpoints.partition(",")[0]
    return [{k: v for k, v in {**env, **told}.items() if k != ENDPOINTS} for env in environs], file
