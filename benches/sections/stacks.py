"""What it costs to see into a job: the stacks of its ranks, and a rank that is read again and again."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

from bench_launchers import RLAUNCH, environment
from figures import Promise
from running import Run, pss, wakeups
from session import Session

IDLE = "def wait():\n    time.sleep(600)\nwait()\n"
TORCH = "import torch, torch.distributed\ntell('up', 1)\n" + IDLE
# The time of each step of a training on two ranks, in seconds, until the bench has made `end`.
STEPS = """
import json
import torch
import torch.distributed as dist
os.environ.setdefault("RANK", str(rank)); os.environ.setdefault("WORLD_SIZE", str(size))
dist.init_process_group("gloo", init_method=f"file://{here}/meet", rank=rank, world_size=size)
model = torch.nn.Linear(256, 256)
def step():
    model(torch.ones(32, 256)).sum().backward()
    for one in model.parameters():
        dist.all_reduce(one.grad)
for _ in range(50):
    step()
tell("up", 1)
steps = []
over = torch.zeros(1)
while not over:
    began = time.perf_counter()
    step()
    steps.append(time.perf_counter() - began)
    over = torch.tensor([float(os.path.exists(os.path.join(here, "end")))])
    dist.all_reduce(over)
tell("steps", json.dumps(steps))
"""


def ask(run: Run, *args: str) -> subprocess.CompletedProcess[bytes]:
    """Runs ``rlaunch ARGS`` for the job of this run."""
    command = [sys.executable, "-m", "rlaunch.control", *args, str(run.process.pid)]
    return subprocess.run(command, capture_output=True, env=environment(), check=True)


def measure_stacks(session: Session) -> None:
    """From `rlaunch stacks` to its last line, and what it does to the steps of a training on two ranks."""

    def seconds(body: str, ranks: int, up: str) -> float:
        with Run(RLAUNCH, session.folder, body, ranks=ranks) as run:
            run.await_values(up)
            took = []
            for _ in range(session.amount(5, 2)):
                began = time.monotonic()
                text = ask(run, "stacks").stdout.decode()
                took.append(time.monotonic() - began)
                assert f"({ranks} of {ranks}): in wait" in text, text
            return statistics.median(took)

    cells = {RLAUNCH.name: seconds(TORCH, 8, "up")}
    session.row("stacks of 8 ranks with torch", cells, "s", Promise("stacks", most=1))
    many = session.amount(256, 32)
    cells = {RLAUNCH.name: seconds(IDLE, many, "pid")}
    session.row(f"stacks of {many} small ranks", cells, "s", Promise("stacks", most=5))

    def steps(reads: bool) -> tuple[float, float]:
        with Run(RLAUNCH, session.folder, STEPS) as run:
            run.await_values("up")
            end = time.monotonic() + session.amount(20, 4)
            while time.monotonic() < end:
                if reads:
                    ask(run, "stacks")
                else:
                    time.sleep(0.2)
            (run.folder / "end").touch()
            while len(run.values("steps")) < 2:
                time.sleep(0.05)
            ordered = sorted(json.loads(run.values("steps")[0]))
            return ordered[len(ordered) // 2] * 1000, ordered[len(ordered) * 99 // 100] * 1000

    quiet, read = steps(False), steps(True)
    for what, undisturbed, disturbed in zip(("p50", "p99"), quiet, read, strict=True):
        title = f"a step while stacks are read all the time, {what} (bare: while none is)"
        session.row(title, {RLAUNCH.name: disturbed}, "ms", bare=undisturbed)

    # No folder for the control socket, and no look at silent ranks.
    without = {
        "RLAUNCH_RUNTIME_DIR": "/dev/null/none",
        "RLAUNCH_HANG_TIMEOUT": "0",
        "RLAUNCH_EXIT_TIMEOUT": "0",
    }
    costs = [idle_cost(session, variables) for variables in ({}, without)]
    for what, unit, with_it, bare in zip(("memory, PSS", "wakeups in 10 s"), ("MB", ""), *costs, strict=True):
        session.row(
            f"idle launcher: {what} (bare: without socket and timeouts)",
            {RLAUNCH.name: with_it},
            unit,
            bare=bare,
        )


def idle_cost(session: Session, variables: dict[str, str]) -> tuple[float, float]:
    """PSS in MB, and how often the launcher's threads wake up in 10 s, while two ranks sleep."""
    with Run(RLAUNCH, session.folder, IDLE, variables=variables) as run:
        run.await_values("pid")
        time.sleep(3)  # Whatever the start has left to do.
        pids = run.launcher_processes()
        before = wakeups(pids)
        time.sleep(10)
        return pss(pids), float(wakeups(pids) - before)
