"""Endpoint lists that are too long for the environment, in a file that Paddle reads instead."""

from __future__ import annotations

import os

from ... import _lib

ENDPOINTS = "PADDLE_TRAINER_ENDPOINTS"
BACKUP = "PADDLE_BACKUP_ENV_PATH"

# execve(2) refuses a string of 32 pages or more, NUL included. A rank with such a variable could start no
# program, and importing Paddle starts one.
_TOO_LONG = 128 * 1024


def move_long_endpoints(
    environs: list[dict[str, str]],
) -> tuple[list[dict[str, str]], _lib.Descriptor | None]:
    """Moves the endpoints of all ranks into a backup file if they are too long for the environment.

    The file is a memfd, which the ranks open through this process's /proc/PID/fd: it vanishes with this
    process, and processes of other users cannot read it.

    Args:
        environs: the variables of each rank.

    Returns:
        The variables to use, and the file, which has to stay open while ranks may read it; None without one.
    """
    endpoints = environs[0].get(ENDPOINTS, "") if environs else ""
    if len(f"{ENDPOINTS}={endpoints}".encode()) < _TOO_LONG:
        return environs, None
    import json

    file = _lib.Descriptor.memory("rlaunch-backup")
    with open(file.fileno(), "w", closefd=False) as text:
        json.dump({ENDPOINTS: endpoints}, text)
    added = {BACKUP: f"/proc/{os.getpid()}/fd/{file.fileno()}"}
    # Paddle's store takes its address from the endpoints, but does not look into the file.
    if "PADDLE_MASTER" not in os.environ:
        added["PADDLE_MASTER"] = endpoints.partition(",")[0]
    return [{k: v for k, v in {**env, **added}.items() if k != ENDPOINTS} for env in environs], file


def vars_to_unset(environ: dict[str, str]) -> list[str]:
    """Returns the variables that a rank with the variables ``environ`` must not inherit."""
    # Through these proxies the ranks would send the traffic between them.
    proxies = ["http_proxy", "https_proxy"]
    # Paddle looks into the backup file only for a variable that is not set.
    return [*proxies, ENDPOINTS] if BACKUP in environ else proxies
