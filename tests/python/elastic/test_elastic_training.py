"""Real training by nodes that find each other, with Paddle and torch, and by Paddle's launcher among ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import each
from elastic_jobs import IMPORT_LIMIT, PADDLE, PADDLES, TORCH, AtMaster, Backend, Job
from hosts import Host, hosts
from launching import LIMIT
from test_launch_nodes import TRAIN

DDP = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(7)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
sgd = torch.optim.SGD(model.parameters(), 0.1)
x = torch.rand(16, 4, generator=torch.Generator().manual_seed(rank))
losses = []
for _ in range(5):
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    losses.append(loss.item())
number = torch.tensor([float(rank + 1)])
dist.all_reduce(number)
total = sum(float(p.sum()) for p in model.parameters())
tell("trained", f"{dist.get_world_size()} {number.item()} {total:.6f} {losses[-1] < losses[0]}")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def four() -> Iterator[list[Host]]:
    with hosts(4) as made:
        yield made


def check_training(job: Job, world: int, limit: float = LIMIT) -> None:
    job.end_successfully(limit=limit)
    # All have the same parameters in the end, and the sum that only all of them together have.
    (one,) = {(job.folder / f"trained.{rank}").read_text() for rank in range(world)}
    size, total, _, learned = one.split()
    assert (size, float(total), learned) == (str(world), world * (world + 1) / 2, "True")


def test_four_hosts_train_with_paddle(tmp_path: Path, four: list[Host], backend: Backend) -> None:
    with Job(tmp_path, four, backend, "4") as job:
        job.start(job.script(TRAIN, framework="paddle"))
        check_training(job, 4)


def test_two_hosts_with_one_rank_and_two_train_with_paddle(
    tmp_path: Path, four: list[Host], backend: Backend
) -> None:
    with Job(tmp_path, four[:2], backend) as job:
        script = job.script(TRAIN, framework="paddle")
        job.node(0, "--nproc_per_node=2", script)
        job.node(1, script)
        check_training(job, 3)


def test_two_hosts_train_with_torch(tmp_path: Path, four: list[Host], backend: Backend) -> None:
    with Job(tmp_path, four[:2], backend) as job:
        job.start(job.script(DDP, framework="torch"), module=TORCH)
        check_training(job, 2)


@each(
    "modules",
    [
        pytest.param((PADDLES, PADDLE), id="Paddle serves"),
        pytest.param((PADDLE, PADDLES), id="rlaunch serves"),
    ],
)
@pytest.mark.timeout(300)
def test_paddles_own_launcher_is_one_of_the_nodes(
    tmp_path: Path, four: list[Host], modules: tuple[str, str]
) -> None:
    with Job(tmp_path, four[:2], AtMaster) as job:
        script = job.script(TRAIN, framework="paddle")
        for on, module in enumerate(modules):
            # Its own idea of its address is loopback's here.
            own = {"POD_IP": four[on].ip} if module == PADDLES else {}
            job.node(on, script, module=module, GLOO_SOCKET_IFNAME="wire", **own)
        check_training(job, 2, IMPORT_LIMIT)
