"""Ends jobs whose ranks read batches by torch's DataLoader, and counts what is left in /dev/shm.

    python tests/faults/shared_memory/endings.py --launcher run --launcher torchrun --endings 200

Exit status 1 if a job of rlaunch has left something.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("/dev/shm")
# Seconds that torch's own helper, which waits 2 s for other clients, may take after the launcher's end.
PATIENCE = 5
LIMIT = 300

# Two ranks, each with two workers, whose batches are in shared memory. The third batch is where it ends.
JOB = """
import os, signal, sys, time
import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset

torch.multiprocessing.set_sharing_strategy(sys.argv[1])
ending = sys.argv[2]

class Data(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return torch.zeros(100_000)

def note_pid(worker):
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")

note_pid(None)
kept = []
for number, batch in enumerate(DataLoader(Data(), 4, num_workers=2, worker_init_fn=note_pid)):
    kept.append(batch)
    if number < 3:
        continue
    if ending == "exception":
        raise ValueError("bad batch")
    if ending == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if ending == "stopped":
        open(f"ready.{os.environ['LOCAL_RANK']}", "w").close()
        time.sleep(600)
    break
"""
STRATEGIES = ("file_system", "file_descriptor")
ENDINGS = ("ok", "exception", "killed", "stopped")
KINDS = list(itertools.product(STRATEGIES, ENDINGS))


def of_paddle(module: str) -> list[str]:
    return [module, "--nproc_per_node=2", "--frameworks=paddle,torch", "--log_dir=log"]


def of_torch(module: str) -> list[str]:
    return [module, "--nproc-per-node=2", "--master-port=0", "--redirects=3", "--log-dir=log"]


LAUNCHERS = {
    "rlaunch": of_paddle("rlaunch"),
    "run": of_torch("rlaunch.run"),
    "torchrun": of_torch("torch.distributed.run"),
}
OURS = ("rlaunch", "run")


@dataclass(frozen=True)
class Ended:
    """One job that has ended: its exit status, and the names that it has left in /dev/shm."""

    status: int
    left: list[str]


def end_one(launcher: str, strategy: str, ending: str, folder: Path) -> Ended:
    """Runs a job to its end."""
    (folder / "train.py").write_text(JOB)
    command = [sys.executable, "-m", *LAUNCHERS[launcher], "train.py", strategy, ending]
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            if ending == "stopped":
                for rank in range(2):
                    await_true((folder / f"ready.{rank}").exists, process)
                process.send_signal(signal.SIGTERM)
            status = process.wait(LIMIT)
        finally:
            process.kill()
            process.wait()
    return Ended(status, left_by((folder / "pids").read_text().split()))


def await_true(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert process.poll() is None, f"the job ended with {process.returncode}"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def left_by(pids: list[str]) -> list[str]:
    """The names that these processes have left, after torch's helper had its time."""
    deadline = time.monotonic() + PATIENCE
    while (left := list(names_of(pids))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def names_of(pids: list[str]) -> Iterator[str]:
    for name in os.listdir(FOLDER):
        found = re.match(r"torch_(\d+)_", name)
        if found and found[1] in pids:
            yield name


def main() -> int:
    parser = argparse.ArgumentParser(description="What jobs with a DataLoader leave in /dev/shm.")
    parser.add_argument("--launcher", action="append", choices=LAUNCHERS, help="again for more (all)")
    parser.add_argument("--endings", type=int, default=200, help="how many jobs of each launcher (200)")
    args = parser.parse_args()
    failed = False
    for launcher in args.launcher or LAUNCHERS:
        before = set(os.listdir(FOLDER))
        jobs = list(itertools.islice(itertools.cycle(KINDS), args.endings))
        left: Counter[str] = Counter()

        def run(kind: tuple[str, str], launcher: str = launcher) -> tuple[str, Ended]:
            with tempfile.TemporaryDirectory(prefix="endings-") as folder:
                return "/".join(kind), end_one(launcher, *kind, Path(folder))

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for kind, ended in pool.map(run, jobs):
                left[kind] += len(ended.left)
        after = set(os.listdir(FOLDER))
        size = sum((FOLDER / name).stat().st_size for name in after - before)
        print(
            f"{launcher}: {len(jobs)} jobs left {sum(left.values())} files {dict(+left)}; "
            f"/dev/shm: {len(before)} files before, {len(after)} after, {size / 1e6:.1f} MB more",
            flush=True,
        )
        failed |= launcher in OURS and (bool(+left) or after != before)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
