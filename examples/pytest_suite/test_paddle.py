"""Paddle over gloo on CPUs, forked from a process that has imported Paddle rather than torch."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks(2, preload="paddle")


@pytest.fixture
def dist():
    """paddle.distributed with all ranks in its group."""
    import paddle.distributed as dist

    dist.init_parallel_env()
    return dist


def test_all_reduce(dist, rank):
    import paddle

    tensor = paddle.full([4], float(rank.rank + 1))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [3.0] * 4


@pytest.mark.parametrize("source", [0, 1])
def test_broadcast(dist, rank, source):
    import paddle

    tensor = paddle.to_tensor([rank.rank + 10])
    dist.broadcast(tensor, src=source)
    assert tensor.item() == source + 10


def test_a_step_of_data_parallel_training_is_equal_on_all_ranks(dist, rank):
    import paddle

    paddle.seed(rank.rank)  # Different at first: all ranks get rank 0's weights.
    layer = paddle.nn.Linear(3, 1)
    model = paddle.DataParallel(layer)
    optimizer = paddle.optimizer.SGD(learning_rate=0.1, parameters=model.parameters())
    before = layer.weight.tolist()
    images = paddle.arange(12, dtype="float32").reshape([4, 3])
    model(images[rank.rank :: 2]).pow(2).mean().backward()
    optimizer.step()

    weights = rank.gather(layer.weight.tolist())
    assert weights[0] == weights[1] != before


def test_a_checkpoint_of_one_rank_is_read_by_all(dist, rank, tmp_path: Path):
    import paddle

    paddle.seed(rank.rank)
    layer = paddle.nn.Linear(3, 1)
    assert len({str(weight) for weight in rank.gather(layer.weight.tolist())}) == 2
    if rank.rank == 0:
        paddle.save(layer.state_dict(), str(tmp_path / "model.pdparams"))
    rank.barrier()
    layer.set_state_dict(paddle.load(str(tmp_path / "model.pdparams")))
    first, second = rank.gather(layer.weight.tolist())
    assert first == second
