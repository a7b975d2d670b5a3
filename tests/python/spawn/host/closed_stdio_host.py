"""A program that starts ranks without some of its standard descriptors. Imports no pytest."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

import rlaunch


def standard_descriptors() -> dict[int, str]:
    """What 0, 1 and 2 are, if they are open and not the pipe of multiprocessing's resource tracker."""
    from multiprocessing import resource_tracker

    found = {}
    for fd in range(3):
        if fd != resource_tracker._resource_tracker._fd:  # type: ignore[attr-defined]
            with contextlib.suppress(FileNotFoundError):
                found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


def speak() -> str:
    """Writes to stderr, if there is one, as a library does that knows nothing of closed descriptors."""
    with contextlib.suppress(OSError):
        os.write(2, b"from a library\n")
    return os.environ["RANK"]


def streams() -> list[str]:
    return [os.readlink(f"/proc/self/fd/{fd}") for fd in (1, 2)]


def run(what: str, log_dir: str, closing: str = "") -> list[Any]:
    exec(closing)
    if closing:
        options: dict[str, Any] = {"preload": "decimal"} if what == "zygote" else {}
        return rlaunch.spawn(int, nprocs=2, start_method=what, backend="gloo", **options).results()
    before = standard_descriptors()
    if what == "launch":
        script = "readlink /proc/$PPID/fd/2"  # The launcher's.
        report = rlaunch.launch("sh", "-c", script, nproc_per_node=1, log_dir=log_dir, no_python=True)
        return [report.outcome, standard_descriptors() == before]
    if what == "streams":
        quiet: dict[str, Any] = {
            "start_method": "zygote",
            "preload": "decimal",
            "backend": "gloo",
            "frameworks": "torch",
        }
        return rlaunch.spawn(streams, nprocs=1, **quiet).results()
    options = {"preload": "decimal"} if what == "zygote" else {}
    ranks = rlaunch.spawn(
        speak, (), 2, False, start_method=what, backend="gloo", log_dir=log_dir, frameworks="torch", **options
    )
    during = standard_descriptors()
    return [ranks.results(), during == before]


if __name__ == "__main__":
    report = int(sys.argv[1])
    os.set_inheritable(report, False)
    os.write(report, json.dumps(run(*sys.argv[2:])).encode())
