"""A rank of the chaos run: trains by torch's gloo, saves checkpoints, and writes down when it lived.

    chaos_train.py FOLDER NODE

All times are CLOCK_BOOTTIME. `life.*` has a line of what the rank is and the last time at which it ran; the
journal of rank 0 says which checkpoint the round began with, and which it saved. It ends when all ranks have
seen FOLDER/finish.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

BOOT = time.CLOCK_BOOTTIME


def now() -> float:
    return time.clock_gettime(BOOT)


def began() -> float:
    """When this process was started: its own first instruction is later."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")


FOLDER, NODE = Path(sys.argv[1]), int(sys.argv[2])
ROUND, RANK, WORLD = (int(os.environ[name]) for name in ("RLAUNCH_ROUND", "RANK", "WORLD_SIZE"))


def live() -> None:
    """Writes down every 5 ms that this rank runs."""
    head = {"round": ROUND, "rank": RANK, "node": NODE, "world": WORLD, "began": began(), "pid": os.getpid()}
    line = json.dumps(head).encode() + b"\n"
    name = f"life.{ROUND}.{RANK}.{NODE}.{os.getpid()}"
    life = os.open(FOLDER / name, os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(life, line, 0)
    while True:
        os.pwrite(life, b"%20.6f\n" % now(), len(line))
        time.sleep(0.005)


threading.Thread(target=live, daemon=True).start()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import checkpoints  # noqa: E402

EVERY = 5  # Steps between two checkpoints.
BATCH = 12  # Samples a step, which all worlds of 1 to 4 ranks divide.
SLEEP = 0.03  # A step's computing.


def samples(step: int) -> torch.Tensor:
    return torch.arange(step * BATCH, (step + 1) * BATCH, dtype=torch.float64)


def total_at(step: int) -> float:
    """What the state has after so many steps, in worlds of any size: the sum of all samples before."""
    count = step * BATCH
    return count * (count - 1) / 2


class Journal:
    """What rank 0 did, for the judge."""

    def __init__(self) -> None:
        self.file = open(FOLDER / f"journal.{ROUND}.{os.getpid()}", "a", buffering=1)  # noqa: SIM115

    def write(self, event: str, step: int, path: Path | None = None) -> None:
        entry = {"event": event, "round": ROUND, "time": now(), "step": step, "path": str(path or "")}
        self.file.write(json.dumps(entry) + "\n")


def load(path: Path | None, step: int) -> dict[str, object]:
    """Raises an exception if the checkpoint is not the one of this step."""
    if path is None:
        return {"step": 0, "total": 0.0}
    state: dict[str, object] = torch.load(path, weights_only=False)
    if (state["step"], state["total"]) != (step, total_at(step)):
        raise ValueError(f"{path} has {state['total']} for step {state['step']}")
    return state


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    claimed: Path | None = None
    state: list[object] = [None]
    journal = Journal() if RANK == 0 else None
    if journal is not None:
        claimed = checkpoints.claim(FOLDER / "checkpoints")
        asked = now()
        found = checkpoints.newest(FOLDER / "checkpoints", claimed)
        step = found[0] if found else 0
        try:
            state = [load(found[1] if found else None, step)]
        except Exception:
            journal.write("corrupt", step, found[1] if found else None)
            raise
        journal.file.write(json.dumps({"event": "began", "round": ROUND, "time": asked, "step": step}) + "\n")
    dist.init_process_group("gloo")
    dist.broadcast_object_list(state)
    loaded = state[0]
    assert isinstance(loaded, dict)
    step, total = loaded["step"], loaded["total"]
    if "model" in loaded:
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
    ddp = DistributedDataParallel(model)
    while True:
        own = samples(step)[RANK :: dist.get_world_size()]
        optimizer.zero_grad()
        inputs = (own / (own.max() + 1)).unsqueeze(1)
        torch.nn.functional.mse_loss(ddp(inputs), inputs.sin()).backward()
        optimizer.step()
        time.sleep(SLEEP)
        # Exact, as all are whole numbers below 2**53.
        sums = torch.tensor([own.sum(), float((FOLDER / "finish").exists())], dtype=torch.float64)
        dist.all_reduce(sums)
        step, total = step + 1, total + float(sums[0])
        # Into its log, which may hang.
        print(f"step {step}", flush=True)
        ends = bool(sums[1])
        if journal is not None and claimed is not None and (step % EVERY == 0 or ends):
            saved = {
                "step": step,
                "total": total,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
            path = checkpoints.save(claimed, step, lambda path, saved=saved: torch.save(saved, path))
            journal.write("saved", step, path)
        if ends:
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
