"""The ranks of the stop matrix: one script, whose first argument is the kind of rank."""

from __future__ import annotations

from dataclasses import dataclass

# What a checkpoint has as its last line: without it, the file is not whole.
LAST_LINE = "whole"

SCRIPT = """
import os, signal, sys, time

rank = int(os.environ.get("PADDLE_TRAINER_ID") or os.environ["RANK"])
kind, seconds, loader = sys.argv[1], float(sys.argv[2]), sys.argv[3]
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""

# An import of torch takes seconds of CPU in each rank: tests have workers of multiprocessing instead.
SCRIPT += r'''
def tell(name, text):
    """A file that is whole when it appears."""
    with open(f"{name}.{rank}.tmp", "w") as file:
        file.write(f"{text}\n")
    os.rename(f"{name}.{rank}.tmp", f"{name}.{rank}")

def checkpoint(step):
    tell("checkpoint", f"rank {rank}, step {step}\nwhole")

def save(step):
    """Saves for so many seconds, and says so as programs do."""
    print("saving", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        step()
        time.sleep(0.05)
    checkpoint("last")
    print("saved", flush=True)

def listen():
    """A list in which the stop signals are noted that come from now on."""
    asked = []
    for number in STOPS:
        signal.signal(number, lambda number, frame: asked.append(number))
    return asked

def ignore_stops(*_):
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)

def serve(pipe, asking_end, guarded):
    """A worker or a service: answers each request, until its rank has ended."""
    asking_end.close()
    if guarded:
        ignore_stops()
    try:
        while True:
            pipe.send(pipe.recv())
    except (EOFError, OSError, KeyboardInterrupt):
        os._exit(0)

def start_service(guarded):
    """Starts a process that serves; returns a function that asks it."""
    import multiprocessing
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    context.Process(target=serve, args=(theirs, ours, guarded), daemon=True).start()
    theirs.close()
    def ask():
        ours.send("request")
        return ours.recv()
    return ask

def torch_batches(guarded):
    from torch.utils.data import DataLoader, Dataset
    class Data(Dataset):
        def __len__(self):
            return 1_000_000
        def __getitem__(self, index):
            return float(index)
    start = ignore_stops if guarded else None
    batches = iter(DataLoader(Data(), 4, num_workers=4, worker_init_fn=start, multiprocessing_context="fork"))
    return lambda: next(batches), batches._shutdown_workers

def train_with_workers(guarded):
    if loader == "torch":
        batch, end_workers = torch_batches(guarded)
    else:
        workers = [start_service(guarded) for _ in range(4)]
        batch, end_workers = lambda: [worker() for worker in workers], lambda: None
    log = start_service(guarded)
    def step():
        batch()
        log()
    for _ in range(4):  # One batch of each worker, so that all have begun.
        step()
    asked = listen()
    tell("ready", os.getpid())
    while not asked:
        step()
        time.sleep(0.05)
    save(step)
    end_workers()
    # Without the exit handlers of multiprocessing: they wait for workers that ignore their SIGTERM.
    os._exit(0)

if kind in ("saves", "wrapper"):
    asked = listen()
    tell("ready", os.getpid())
    while not asked:
        time.sleep(0.02)
    save(lambda: None)
elif kind in ("workers", "guarded"):
    train_with_workers(kind == "guarded")
elif kind == "ignores":
    ignore_stops()
    checkpoint(0)
    tell("ready", os.getpid())
    step = 0
    while True:
        step += 1
        checkpoint(step)
        time.sleep(0.05)
'''

# Not the last command, so that no shell replaces itself by it.
WRAPPER = """#!/bin/sh
'{python}' train.py "$@"
status=$?
exit $status
"""


@dataclass(frozen=True)
class RankKind:
    """A kind of rank. `name`: its argument to the script."""

    name: str
    title: str
    about: str

    @property
    def wrapped(self) -> bool:
        """Whether a shell stands between the launcher and the program."""
        return self.name == "wrapper"

    @property
    def saves(self) -> bool:
        """Whether it saves when it is asked to stop."""
        return self.name != "ignores"


KINDS = {
    kind.name: kind
    for kind in (
        RankKind(
            "saves",
            "Handles the signal",
            "A program that handles SIGTERM, SIGINT and SIGHUP. It prints a line, saves a checkpoint, which "
            "takes {save:g} s, and exits with 0.",
        ),
        RankKind(
            "workers",
            "Four data loader workers and a logging service",
            "The same with a `DataLoader` of torch that has four workers, and with a process that logs. "
            "Each step of the save takes a batch and a reply. Signals have their default actions in these "
            "processes.",
        ),
        RankKind(
            "guarded",
            "Workers and service that ignore the signals",
            "The same, but workers and service ignore the signals. It runs under the sender that signals "
            "every process itself: there no launcher can keep the signal from a worker.",
        ),
        RankKind(
            "wrapper",
            "A shell wrapper",
            "`train.sh`, which runs the first program as its child, without `exec`. The shell handles no "
            "signal.",
        ),
        RankKind(
            "ignores",
            "Ignores the signals",
            "A program that ignores the signals and writes a checkpoint every 0.05 s. It can only be killed.",
        ),
    )
}
