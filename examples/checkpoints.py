"""Checkpoints that no older round of a job can overwrite, for plain files, torch and Paddle.

    python -m rlaunch --nproc_per_node 2 examples/checkpoints.py plain FOLDER

A round is a start of all ranks. Each round claims a folder of its own, with a number that no round had
before; a checkpoint appears in it as a whole. ``newest`` looks at the highest folder that has one. So a rank
of an older round, which was stopped and goes on, can write only where no rank reads any more.
``rlaunch.checkpoint_guard`` lets it see that. The folder may be on a file system that all nodes share.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rlaunch

STEPS = 10


def claim(folder: Path) -> Path:
    """A folder for this round's checkpoints, which no other round has. One rank claims it."""
    folder.mkdir(parents=True, exist_ok=True)
    number = max((int(path.name) for path in folder.iterdir()), default=0)
    while True:
        number += 1
        claimed = folder / f"{number:06d}"
        try:
            # Of two that claim at once, one gets the next number.
            claimed.mkdir()
        except FileExistsError:
            continue
        return claimed


def newest(folder: Path) -> tuple[int, Path] | None:
    """The step and the path of the last checkpoint of the newest round that has one."""
    rounds = sorted(folder.iterdir(), reverse=True) if folder.exists() else []
    for claimed in rounds:
        steps = sorted(claimed.glob("step-*"))
        if steps:
            return int(steps[-1].name.partition("-")[2]), steps[-1]
    return None


def save(claimed: Path, step: int, write: Callable[[str], Any]) -> Path:
    """Has ``write`` write a file, which appears as a whole as the checkpoint of this step."""
    draft, final = claimed / f"draft-{step:09d}", claimed / f"step-{step:09d}"
    with rlaunch.checkpoint_guard():
        write(str(draft))
        with draft.open("rb") as file:
            os.fsync(file)
        draft.rename(final)
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
    write, read = FORMATS[format_]
    found = newest(folder)
    step, total = (found[0], read(str(found[1]))) if found else (0, 0)
    print(f"round {os.environ.get('RLAUNCH_ROUND', '-')} begins at step {step}", flush=True)
    if rlaunch.get_rank() != 0:
        return
    claimed = claim(folder)
    while step < STEPS:
        step, total = step + 1, total + step
        save(claimed, step, lambda path, total=total: write(total, path))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
