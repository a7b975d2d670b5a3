"""Stacks of ranks whose memory no other process may read: ranks of ``spawn`` and preload write them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from barred_reader import bar_reader
from effort import each
from jobs import WAITING, Jobs, await_stacks
from launching import LIMIT, environment, until

SPAWN = """
import os, pathlib, sys, time
import rlaunch

def barrier(folder):
    (folder / f"ready.{os.environ['PADDLE_TRAINER_ID']}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    context = rlaunch.spawn(barrier, (folder,), nprocs=2, join=False, start_method=sys.argv[2])
    while len(list(folder.glob("ready.*"))) < 2:
        time.sleep(0.01)
    # A rank may still be inside touch().
    for _ in range(200):
        text = context.stacks()
        if text.startswith("ranks 0, 1 (2 of 2): in barrier"):
            break
    print(text)
    (folder / "go").touch()
    context.join()
"""


def begin() -> None:
    os.setpgrp()
    bar_reader()


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


def test_preloaded_ranks_answer(jobs: Jobs) -> None:
    jobs.script(WAITING)
    options = ("--nproc_per_node=3", "--preload=json", "train.py")
    with jobs.start(*options, env=jobs.env, preexec_fn=begin) as launcher:
        for rank in range(3):
            until((jobs.folder / f"ready.{rank}").exists, f"rank {rank}")
        text = await_stacks(jobs, "rank 1 is the odd one")
        assert "ranks 0, 2 (2 of 3): " in text, text
        for name in ("barrier", "load"):
            assert re.search(rf"^    {name} \(\S*train\.py:\d", text, re.MULTILINE), text
        # They live on.
        assert await_stacks(jobs, "rank 1 is the odd one")
        assert launcher.poll() is None


def test_of_other_ranks_it_is_said_that_they_cannot_be_read(jobs: Jobs) -> None:
    jobs.script(WAITING)
    with jobs.start("--nproc_per_node=3", "train.py", env=jobs.env, preexec_fn=begin) as launcher:
        for rank in range(3):
            until((jobs.folder / f"ready.{rank}").exists, f"rank {rank}")
        assert "no Python stack: it cannot be read" in jobs.ask("stacks").stdout.decode()
        assert launcher.poll() is None


@each("method", ["spawn", "fork", "forkserver", "zygote"])
def test_ranks_of_spawn_answer(method: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SPAWN)
    command = [sys.executable, "program.py", str(tmp_path), method]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(),
        preexec_fn=begin,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    assert re.match(r"ranks 0, 1 \(2 of 2\): in barrier \(\S*program\.py:\d", done.stdout), done.stdout
