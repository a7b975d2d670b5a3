"""Jobs that grow and shrink while they train learn what they would have learned anyway."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from effort import each
from elastic_jobs import PADDLE, STAR, TORCH, Backend, Job, Node, joining
from hosts import Host, hosts

# Fits a line to eight points, in whole numbers: a sum is the same in whatever order. Which points a rank has
# goes by the world's size. It goes on from the last checkpoint, which all have from rank 0, up to `gate`.
LEARN = """
points = [(x, 5 * x + 11) for x in range(8)]

def saved():
    try:
        with open("checkpoint") as file:
            return json.load(file)
    except FileNotFoundError:
        return [0, 0, 0]

def gate():
    with open("gate") as file:
        return int(file.read())

step, a, b = all_reduce(saved() if rank == 0 else [0, 0, 0])
while step < 60:
    errors = [(x, (a * x + b >> 16) - y) for x, y in points[rank::world]]
    loss, by_a, by_b = all_reduce([sum(f(x, e) for x, e in errors) for f in
                                   (lambda x, e: e * e, lambda x, e: e * x, lambda x, e: e)])
    a, b, step = a - by_a * 600, b - by_b * 600, step + 1
    if rank == 0:
        tell("checkpoint.new", json.dumps([step, a, b]))
        os.rename("checkpoint.new.0", "checkpoint")
        if step == 60:
            tell("learned", loss)
    live()
    while step >= gate() < 60:
        live()
        time.sleep(0.01)
tell(f"done.{node}", world)
"""

# The same with torch: its gloo, its gradients, its checkpoints.
TORCHS = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
saved = torch.load("checkpoint") if os.path.exists("checkpoint") else {"step": 0, "model": None}
model = torch.nn.Linear(1, 1).double()
torch.nn.init.zeros_(model.weight)
torch.nn.init.zeros_(model.bias)
if saved["model"]:
    model.load_state_dict(saved["model"])
sgd = torch.optim.SGD(model.parameters(), 2 ** -7)
x = torch.arange(8.0, dtype=torch.float64).reshape(8, 1)[rank::world]

def gate():
    with open("gate") as file:
        return int(file.read())

for step in range(saved["step"] + 1, 7):
    loss = ((model(x) - 5 * x - 11) ** 2).sum()
    sgd.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    dist.all_reduce(loss)
    sgd.step()
    if rank == 0:
        torch.save({"step": step, "model": model.state_dict()}, "checkpoint.new")
        os.rename("checkpoint.new", "checkpoint")
        tell("step", step)
        if step == 6:
            tell("learned", loss.item())
    while step >= gate() < 6:
        live()
        time.sleep(0.01)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def four() -> Iterator[list[Host]]:
    with hosts(4) as made:
        yield made


def open_gate(job: Job, step: int) -> None:
    (job.folder / "gate.new").write_text(str(step))
    (job.folder / "gate.new").rename(job.folder / "gate")


def elastic(module: str) -> list[str]:
    return ["--elastic_level=1"] if module == PADDLE else ["--max-restarts=3"]


@contextmanager
def uninterrupted(
    tmp_path: Path, on: list[Host], backend: Backend, module: str, body: str, framework: str | None = None
) -> Iterator[Callable[[], str]]:
    """One round of these hosts, beside other jobs: the result of its training, once it has ended."""
    (tmp_path / "whole").mkdir()
    with Job(tmp_path / "whole", on, backend, str(len(on))) as job:
        open_gate(job, 60)
        script = job.script(body, framework=framework)
        job.start(script, module=module)

        def learned() -> str:
            job.end_successfully()
            return (job.folder / "learned.0").read_text()

        yield learned


@pytest.mark.parametrize("how", ["killed", "stopped"])
@each("module", [PADDLE, TORCH])
def test_two_become_four_and_two_again(
    tmp_path: Path, four: list[Host], backend: Backend, module: str, how: str
) -> None:
    whole = uninterrupted(tmp_path, four[1:], backend, module, STAR + LEARN)
    with whole as learned, Job(tmp_path, four, backend, "2:4") as job:
        script = job.script(STAR + LEARN)
        args = [*joining(module, 20), *elastic(module), script]

        def at(step: int, nodes: list[Node], number: int) -> None:
            for node in nodes:
                node.await_round(len(nodes), number)
            job.await_text("checkpoint", lambda text: json.loads(text)[0] == step)

        open_gate(job, 10)
        nodes = [job.node(on, *args, module=module) for on in (0, 1)]
        at(10, nodes, 1)
        # The two come in two rounds or in one.
        nodes += [job.node(on, *args, module=module) for on in (2, 3)]
        last = max(node.await_round(4)["round"] for node in nodes)
        open_gate(job, 30)
        at(30, nodes, last)
        for node in nodes[2:]:
            if how == "killed":
                node.kill()
            else:
                node.process.send_signal(signal.SIGTERM)
        for node in nodes[:2]:
            node.await_round(2)
        open_gate(job, 60)
        job.end_successfully(*nodes[:2])
        worlds = list(job.check_one_world().values())
        assert (worlds[0], max(worlds), worlds[-1]) == (2, 4, 2)
        assert job.text("learned.0") == learned()


def test_torch_learns_the_same_with_one_two_and_one(
    tmp_path: Path, four: list[Host], backend: Backend
) -> None:
    whole = uninterrupted(tmp_path, four[2:3], backend, TORCH, TORCHS, "torch")
    with whole as learned, Job(tmp_path, four[:2], backend, "1:2") as job:
        args = [*joining(TORCH, 60), *elastic(TORCH), job.script(TORCHS, framework="torch")]
        open_gate(job, 2)
        zero = job.node(0, *args, module=TORCH)
        job.await_text("step.0", lambda text: text == "2")
        one = job.node(1, *args, module=TORCH)
        zero.await_round(2)
        open_gate(job, 4)
        job.await_text("step.0", lambda text: text == "4")
        one.kill()
        zero.await_round(1)
        open_gate(job, 60)
        job.end_successfully(zero)
        assert job.text("learned.0") == learned()
