"""``rlaunch.spawn`` where /proc is not mounted, or is that of another PID namespace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from effort import each
from launching import LIMIT, environment

PROGRAM = """
import os
import sys

import rlaunch

def rank() -> int:
    return int(os.environ["PADDLE_TRAINER_ID"])

if __name__ == "__main__":
    method = sys.argv[1]
    options = {"preload": "json"} if method == "zygote" else {}
    print(rlaunch.spawn(rank, nprocs=2, start_method=method, **options).results())
"""
NOT_MOUNTED = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
FOREIGN = ["unshare", "-Urpf", "--kill-child"]
PLACES = {
    "not mounted": (NOT_MOUNTED, "/proc is not mounted"),
    "foreign": (FOREIGN, "/proc is that of another PID namespace"),
}


def run(namespaces: list[str], method: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM)
    command = [*namespaces, sys.executable, "program.py", method]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=LIMIT
    )


@pytest.mark.parametrize("proc", PLACES)
@each("method", ["fork", "spawn", "forkserver"])
def test_ranks_run_and_one_line_says_what_is_not_found(method: str, proc: str, tmp_path: Path) -> None:
    namespaces, why = PLACES[proc]
    ran = run(namespaces, method, tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "[0, 1]\n"), ran.stderr
    (line,) = ran.stderr.splitlines()
    assert why in line
    assert "processes that ranks leave are neither found nor ended" in line


@pytest.mark.parametrize("proc", PLACES)
def test_a_preload_that_cannot_be_checked_is_refused(proc: str, tmp_path: Path) -> None:
    namespaces, _ = PLACES[proc]
    ran = run(namespaces, "zygote", tmp_path)
    assert ran.returncode == 1
    last = ran.stderr.splitlines()[-1]
    assert "ZygoteError: no preload server: whether ranks can be forked cannot be checked: " in last
    assert "/proc" in last
