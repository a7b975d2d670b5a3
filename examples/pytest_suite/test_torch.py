"""torch over gloo on CPUs. Imported in the ranks, so that the pytest process never waits for it."""

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks(2, preload="torch")


@pytest.fixture
def dist(rank):
    """torch.distributed with a process group of all ranks."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    yield dist
    dist.destroy_process_group()


def test_all_reduce(dist, rank):
    import torch

    tensor = torch.full((4,), float(rank.rank + 1))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [3.0] * 4


@pytest.mark.parametrize("source", [0, 1])
def test_broadcast(dist, rank, source):
    import torch

    tensor = torch.tensor([rank.rank + 10])
    dist.broadcast(tensor, src=source)
    assert tensor.item() == source + 10


def test_a_step_of_data_parallel_training_is_equal_on_all_ranks(dist, rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(rank.rank)  # Different at first: all ranks get rank 0's weights.
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = torch.arange(12.0).reshape(4, 3)
    model(images[rank.rank :: 2]).pow(2).mean().backward()
    optimizer.step()
    after = [parameter.detach() for parameter in model.parameters()]

    weights = rank.gather([parameter.tolist() for parameter in after])
    assert weights[0] == weights[1]
    # The same as one process that sees all images.
    alone = torch.nn.Linear(3, 1)
    alone.load_state_dict(dict(zip(("weight", "bias"), before, strict=True)))
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    alone(images).pow(2).mean().backward()
    optimizer.step()
    for mine, wanted in zip(after, alone.parameters(), strict=True):
        torch.testing.assert_close(mine, wanted.detach())


def test_a_checkpoint_of_one_rank_is_read_by_all(dist, rank, tmp_path: Path):
    import torch

    torch.manual_seed(os.getpid())
    model = torch.nn.Linear(3, 1)
    if rank.rank == 0:
        torch.save(model.state_dict(), tmp_path / "model.pt")
    dist.barrier()
    model.load_state_dict(torch.load(tmp_path / "model.pt"))
    first, second = rank.gather(model.weight.tolist())
    assert first == second
