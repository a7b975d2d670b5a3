"""Nodes that join an elastic job while it runs: one that harms it, and five that arrive one after another."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench_launchers import RUN, TORCHRUN, Launcher
from figures import NOT_INSTALLED, Cell, Promise
from machines import Node, cgroup, hosts, missing
from running import Late
from sections.nodes import RANK, Job, Where, now
from session import Session

ARRIVE_EVERY = 8.0
ARRIVING = 5
# After a newcomer, longer than the time for which a round runs at least, and the last call (60 s and 1 s).
WINDOW = 75.0

# rlaunch's, whose default of 600 s is too long for a bench.
HANG_TIMEOUT = 20
# That time, and those to watch the stacks and to begin the next round, after the window of the others.
HANG_WINDOW = WINDOW + HANG_TIMEOUT + 25
NO_START = "cannot start its program"
FAILS = "has ranks that fail"
HANGS = f"has ranks that hang at their start (rlaunch: --hang-timeout {HANG_TIMEOUT})"
# What the ranks of a newcomer run.
KINDS = {
    NO_START: ("no-interpreter", "#!/no/such/interpreter\n"),
    FAILS: ("fails.py", "import sys\nsys.exit(7)\n"),
    HANGS: ("hangs.py", "import time\ntime.sleep(3600)\n"),
}
NAME = "bad newcomer"
# The most that each may cost the job: further rounds that make steps, and a time without a step.
# One that hangs costs the timeout, two looks at its stacks of 5 s each, and a restart of ranks of torch.
MOST = {NO_START: (0, 1.0), FAILS: (1, 5.0), HANGS: (1, HANG_TIMEOUT + 20.0)}

# As `nodes.RANK`, by torch: only there can a launcher see that ranks wait for each other.
TORCH_RANK = """
import os, sys, time
import torch
import torch.distributed as dist
name = f"{sys.argv[1]}/life.{os.environ['NODE']}.{os.getpid()}"
life = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(life, f"{os.environ['WORLD_SIZE']}\\n".encode())
dist.init_process_group("gloo")
while True:
    ends = torch.tensor([float(os.path.exists(f"{sys.argv[1]}/finish"))])
    dist.all_reduce(ends)
    if ends.item():
        break
    os.write(life, f"s {time.clock_gettime(time.CLOCK_BOOTTIME)}\\n".encode())
    time.sleep(0.005)
"""


def words_of(job: Job, kind: str) -> list[str]:
    name, text = KINDS[kind]
    program = job.folder / name
    program.write_text(text)
    program.chmod(0o755)
    return [str(program)] if name.endswith(".py") else ["--no-python", str(program)]


def rounds_since(job: Job, begin: float) -> float:
    """How many rounds have made their first step since then."""
    return float(sum(life.node == 0 and bool(life.steps) and life.steps[0] > begin for life in job.lives()))


def joined_by(job: Job, node: Node, kind: str, window: float) -> dict[str, Cell]:
    """A bad node joins a job of two nodes."""
    job.await_steps(2, job.began)
    job.prepare(node, *words_of(job, kind))
    begin = now()
    node.start()
    time.sleep(window)
    end = now()
    lasts = max(step for life in job.lives() for step in life.steps)
    return {
        "rounds": rounds_since(job, begin),
        "pause": job.longest_pause(begin, end) if lasts > end - 5 else "the job makes no more steps",
    }


def joined_one_by_one(job: Job, nodes: list[Node], every: float, window: float) -> dict[str, Cell]:
    """Good nodes join a job of two nodes, one after another."""
    job.await_steps(2, job.began)
    begin = now()
    for number, node in enumerate(nodes):
        time.sleep(max(0.0, begin + number * every - now()))
        job.prepare(node)
        node.start()
    time.sleep(window)
    steps = [life.world for life in job.lives() if life.steps and life.steps[-1] > now() - 5]
    world: Cell = float(max(steps)) if steps else "the job makes no more steps"
    return {"rounds": rounds_since(job, begin), "world": world}


@contextlib.contextmanager
def machines(folder: Path) -> Iterator[list[Node]]:
    with hosts(2 + ARRIVING) as made, ExitStack() as stack:
        name = f"bench-new-{os.getpid()}"
        groups = [stack.enter_context(cgroup(f"{name}-{number}")) for number in range(2 + ARRIVING)]
        yield [Node(at, made[at], group, folder, folder) for at, group in enumerate(groups)]


def measure_newcomers(session: Session) -> None:
    """Nodes that join an elastic job of 2 nodes, 1 rank each, at the master (c10d), watched for 75 s.

    One whose ranks hang: with ranks of torch, rlaunch with a short `--hang-timeout`, watched for 120 s.
    """
    if reason := missing():
        print(f"newcomers: not measured: {reason}", flush=True)
        return
    with machines(session.folder) as nodes:
        for kind in KINDS:
            rounds, pause = of_each(session, nodes, kind, ("rounds", "pause"))
            title = f"a node joins that {kind}"
            most_rounds, most_pause = MOST[kind]
            promise = Promise(NAME, most=most_rounds)
            session.row(f"{title}: further rounds that make steps", rounds, "", promise)
            session.row(f"{title}: longest time without a step", pause, "s", Promise(NAME, most=most_pause))
        rounds, world = of_each(session, nodes, None, ("rounds", "world"))
        title = f"{ARRIVING} nodes join, {ARRIVE_EVERY:g} s apart"
        promise = Promise("newcomers", most=1)
        session.row(f"{title}: further rounds that make steps", rounds, "", promise)
        promise = Promise("newcomers", least=2 + ARRIVING)
        session.row(f"{title}: nodes of the job afterwards", world, "", promise)


def of_each(
    session: Session, nodes: list[Node], kind: str | None, names: tuple[str, ...]
) -> list[dict[str, Cell]]:
    """The figures of these names, each by launcher."""
    launchers = {launcher.name: figures_of(session, launcher, nodes, kind) for launcher in (RUN, TORCHRUN)}
    return [
        {name: found if isinstance(found, str) else found[figure] for name, found in launchers.items()}
        for figure in names
    ]


def figures_of(
    session: Session, launcher: Launcher, nodes: list[Node], kind: str | None
) -> dict[str, Cell] | str:
    """The figures of one launcher; a text: why there are none."""
    if not launcher.version:
        return NOT_INSTALLED
    count = "2:3" if kind else f"2:{2 + ARRIVING}"
    rank, window = (TORCH_RANK, HANG_WINDOW) if kind == HANGS else (RANK, WINDOW)
    # Without files of its own, rlaunch sees a rank's output only after two timeouts.
    short = [f"RLAUNCH_HANG_TIMEOUT={HANG_TIMEOUT}"] if not launcher.is_rival else []
    more = (["GLOO_SOCKET_IFNAME=wire", *short], ["--redirects=3"]) if kind == HANGS else ([], [])
    try:
        with Job(
            launcher, Where("the master", None), nodes[:2], session.folder, True, count, rank, more
        ) as job:
            try:
                if kind is not None:
                    return joined_by(job, nodes[2], kind, window)
                return joined_one_by_one(job, nodes[2:], ARRIVE_EVERY, WINDOW - ARRIVING * ARRIVE_EVERY)
            finally:
                (job.folder / "finish").touch()
                for node in nodes[2:]:
                    node.end()
    except Late as error:
        return str(error).removeprefix(f"{launcher.title}: ")
