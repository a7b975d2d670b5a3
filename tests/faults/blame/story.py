"""Stories of failed jobs: what the ranks do, which rank caused the failure, and what a report has to say."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Above the script of every rank: its number, and files by which ranks wait for each other.
HEAD = """
import datetime, json, os, signal, subprocess, sys, threading, time, traceback
env = os.environ
rank = int(env.get("PADDLE_TRAINER_ID") or env["RANK"])
size = int(env.get("PADDLE_TRAINERS_NUM") or env["WORLD_SIZE"])

def tell(name):
    open(f"{name}.{rank}", "w").close()

def await_file(*names):
    deadline = time.monotonic() + 60
    while not all(map(os.path.exists, names)):
        if time.monotonic() > deadline:
            os._exit(99)
        time.sleep(0.005)

def sleep():
    while True:
        time.sleep(600)
"""

# What a framework reads, where the launcher sets only the variables of another one.
TORCH = """
if "MASTER_PORT" not in env:
    env["RANK"], env["WORLD_SIZE"] = str(rank), str(size)
    env["MASTER_ADDR"], env["MASTER_PORT"] = env["PADDLE_MASTER"].split(":")
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
"""

PADDLE = """
if "PADDLE_TRAINER_ID" not in env:
    ports = [int(env["MASTER_PORT"]) + 100 + number for number in range(size + 1)]
    ends = [f"127.0.0.1:{port}" for port in ports]
    env["PADDLE_TRAINER_ID"], env["PADDLE_TRAINERS_NUM"] = str(rank), str(size)
    env["PADDLE_TRAINER_ENDPOINTS"], env["PADDLE_CURRENT_ENDPOINT"] = ",".join(ends[:size]), ends[rank]
    env["PADDLE_MASTER"] = ends[size]
import paddle
import paddle.distributed as dist
dist.init_parallel_env()
one = paddle.ones([1])
"""

FRAMEWORKS = {None: "", "torch": TORCH, "paddle": PADDLE}
# What the ranks do that go on: they wait, or are in collectives.
GO_ON = {
    None: "sleep()",
    "torch": "for step in range(100000):\n    dist.all_reduce(torch.ones(4))",
    "paddle": "for step in range(100000):\n    dist.all_reduce(one)",
}


@dataclass(frozen=True)
class Story:
    """One job. `culprits`: the ranks of which a report has to name one as the first that failed."""

    name: str
    title: str
    body: str
    culprits: frozenset[int]
    # Patterns, all of which the report has to contain.
    reason: tuple[str, ...]
    # Patterns that a report of rlaunch may not contain: a job of one node has no cause on another.
    never: tuple[str, ...] = ("another node", "other nodes")
    ranks: int = 2
    framework: str | None = None
    # Variables of the launcher.
    environment: tuple[tuple[str, str], ...] = ()

    def script(self, head: str = "") -> str:
        """The program of all ranks. `head`: what it begins with."""
        return head + HEAD + FRAMEWORKS[self.framework] + self.body


STORIES: dict[str, Story] = {}


def story(
    name: str,
    title: str,
    body: str,
    *reason: str,
    culprits: int | Iterable[int],
    ranks: int = 2,
    framework: str | None = None,
    then: str | None = None,
    never: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> None:
    """Adds one. `then`: what all ranks do after the body; the default is in GO_ON."""
    assert name not in STORIES, name
    found = frozenset([culprits] if isinstance(culprits, int) else culprits)
    text = "\n".join([textwrap.dedent(body).strip(), GO_ON[framework] if then is None else then, ""])
    variables = tuple((environment or {}).items())
    excluded = (*Story.never, *never)
    STORIES[name] = Story(name, title, text, found, reason, excluded, ranks, framework, variables)
