"""Checkpoints that no older round of a job overwrites, for plain files, torch and Paddle.

    mkdir FOLDER
    python -m rlaunch --nproc_per_node 2 examples/checkpoints.py plain FOLDER

A round is a start of all ranks. Rank 0 of each round claims a folder of its own before it does anything
else, with a number above all others, and looks for the newest checkpoint only then. A checkpoint is a file
that appears as a whole. So a rank 0 of an older round, which was stopped and goes on, writes only into a
folder that a newer round has passed by. ``rlaunch.checkpoint_guard`` keeps it from claiming another one,
and from publishing what it was writing.

FOLDER has to be on a file system that all nodes share, with atomic ``mkdir`` and ``rename`` (NFS has them,
object stores do not). Other files in it are left alone. Here rank 0 alone saves, as with data parallelism;
it would send what it has loaded to the others. Where every rank saves its part, rank 0 sends them the
claimed folder, each file has its rank's number in its name, and a last file, written after a barrier, says
that the checkpoint is complete.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rlaunch

STEPS = 10


def numbered(folder: Path, pattern: str) -> list[tuple[int, Path]]:
    """The entries of a folder whose whole name fits, by the number in it."""
    found = [(re.fullmatch(pattern, path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), path) for match, path in found if match)


def sync(folder: Path) -> None:
    """Waits until new names in a folder survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def claim(folder: Path) -> Path:
    """A folder for this round's checkpoints, which no other round has. For rank 0, first of all."""
    number = max((number for number, _ in numbered(folder, r"(\d+)")), default=0)
    while True:
        number += 1
        claimed = folder / f"{number:06d}"
        try:
            # Of two that claim at once, one gets the next number.
            with rlaunch.checkpoint_guard():
                claimed.mkdir()
        except FileExistsError:
            continue
        sync(folder)
        return claimed


def newest(folder: Path, claimed: Path) -> tuple[int, Path] | None:
    """The step and the path of the last checkpoint of the newest earlier round that has one."""
    for _, earlier in reversed(numbered(folder, r"(\d+)")):
        if earlier != claimed and (steps := numbered(earlier, r"step-(\d+)")):
            return steps[-1]
    return None


def save(claimed: Path, step: int, write: Callable[[str], Any]) -> Path:
    """Has ``write`` write a file, which appears as a whole as the checkpoint of this step."""
    draft, final = claimed / "draft", claimed / f"step-{step:09d}"
    # Covers what is written when the block ends: not what a thread writes later.
    with rlaunch.checkpoint_guard():
        write(str(draft))
        with draft.open("rb") as file:
            os.fsync(file)
    draft.rename(final)
    sync(claimed)
    return final


# How each framework writes a number, and reads it back.


def plain_write(value: int, path: str) -> None:
    Path(path).write_text(str(value))


def plain_read(path: str) -> int:
    return int(Path(path).read_text())


def torch_write(value: int, path: str) -> None:
    import torch

    torch.save({"total": torch.tensor(value)}, path)


def torch_read(path: str) -> int:
    import torch

    return int(torch.load(path)["total"])


def paddle_write(value: int, path: str) -> None:
    import paddle

    paddle.save({"total": paddle.to_tensor(value)}, path)


def paddle_read(path: str) -> int:
    import paddle

    return int(paddle.load(path)["total"])


FORMATS = {
    "plain": (plain_write, plain_read),
    "torch": (torch_write, torch_read),
    "paddle": (paddle_write, paddle_read),
}


def main(format_: str, folder: Path) -> None:
    if rlaunch.get_rank() != 0:
        return
    write, read = FORMATS[format_]
    claimed = claim(folder)
    found = newest(folder, claimed)
    step, total = (found[0], read(str(found[1]))) if found else (0, 0)
    print(f"round {os.environ.get('RLAUNCH_ROUND', '-')} begins at step {step}", flush=True)
    while step < STEPS:
        step, total = step + 1, total + step
        save(claimed, step, lambda path, total=total: write(total, path))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
