"""Tensors that ranks receive and return: whole. Results stay, although the ranks have ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy
import pytest
import rlaunch
from effort import each
from launching import environment
from preloaded import python
from spawning import METHODS
from spawning import nothing_left_fixture as _nothing_left  # noqa: F401

TORCH = """
import rlaunch, torch, torch.multiprocessing

def make(strategy):
    torch.multiprocessing.set_sharing_strategy(strategy)
    big = torch.full((2_000_000,), 3.0)
    eighth = torch.ones(3).to(torch.float8_e4m3fn)
    views = {"eighth": eighth, "tail": eighth[1:], "unsigned": torch.tensor([1, 2**15], dtype=torch.uint16)}
    return {"small": torch.arange(3), "big": big, "parameter": torch.nn.Parameter(torch.ones(2)), **views}

for strategy in ("file_descriptor", "file_system"):
    for found in rlaunch.spawn(make, (strategy,), nprocs=2, start_method="fork").results():
        assert found["small"].tolist() == [0, 1, 2]
        assert (found["big"].shape, found["big"].sum().item()) == ((2_000_000,), 6_000_000.0)
        assert isinstance(found["parameter"], torch.nn.Parameter)
        # torch itself cannot unpickle these types.
        assert (found["eighth"].dtype, found["eighth"].float().tolist()) == (torch.float8_e4m3fn, [1, 1, 1])
        assert found["tail"].untyped_storage().data_ptr() == found["eighth"].untyped_storage().data_ptr()
        assert (found["unsigned"].dtype, found["unsigned"].tolist()) == (torch.uint16, [1, 2**15])
local = rlaunch.spawn(lambda: [torch.ones(2)], nprocs=2, start_method="fork").results()
assert [each[0].tolist() for each in local] == [[1.0, 1.0]] * 2
print("fine")
"""
PADDLE = """
import numpy, paddle, paddle.incubate.multiprocessing, rlaunch

def make():
    return {"small": paddle.ones([2]), "big": numpy.full(2_000_000, 3.0)}

for found in rlaunch.spawn(make, nprocs=2, start_method="fork", backend="gloo").results():
    assert found["small"].tolist() == [1.0, 1.0]
    assert found["big"].sum() == 6_000_000.0
print("fine")
"""
# What Paddle itself sends between processes is there for the first receiver alone.
PADDLE_BOTH_WAYS = """
import multiprocessing.reduction, paddle, rlaunch

assert paddle.distributed  # Registers Paddle's own reducers.
sparse = paddle.sparse.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], [2, 2])
named = paddle.ones([2])
named.name = "mine"
layer = paddle.nn.Sequential(paddle.nn.Linear(2, 2), paddle.nn.BatchNorm1D(2))
sent = {
    "named": named, "coo": sparse, "csr": sparse.to_sparse_csr(), "weight": layer[0].weight,
    "half": paddle.full([3], 1.5, "bfloat16"), "eighth": paddle.ones([2]).cast("float8_e4m3fn"),
    "loss": (layer[0].weight * 2).sum(), "empty": paddle.ones([0, 3]), "turned": paddle.ones([4, 2]).t(),
    "lazy": paddle.base.framework.EagerParamBase([2], "bfloat16", name="lazy", trainable=False),
}
sent["named"].note = "kept"
sent["weight"].is_distributed = True

def describe(each):
    values = each.to_dense() if each.is_sparse() else each
    values = values.cast("float32").tolist() if each.name != "lazy" else None
    kind = (type(each), each.dtype, each.is_sparse_coo(), each.is_sparse_csr(), each.stop_gradient)
    return (*kind, each.name, each.persistable, list(each.shape), values, vars(each))

def take(sent, layer):
    assert layer(paddle.ones([1, 2])).shape == [1, 2]
    return {key: describe(each) for key, each in sent.items()}, sent

wanted = {key: describe(each) for key, each in sent.items()}
for seen, back in rlaunch.spawn(lambda *args: take(*args), (sent, layer), nprocs=3).results():
    assert seen == wanted
    assert {key: describe(each) for key, each in back.items()} == wanted

# A reducer that the program has registered itself is not replaced.
multiprocessing.reduction.ForkingPickler.register(type(sparse), lambda tensor: (str, ("reduced",)))
(seen,) = rlaunch.spawn(lambda tensor: tensor, (paddle.ones([2]),), nprocs=1).results()
assert seen == "reduced", seen
print("fine")
"""
# One rank: to import jax takes seconds, here and there. Not by fork, which jax's threads forbid.
JAX = """
import jax.numpy as jnp, numpy, rlaunch

def make(size):
    return {"big": jnp.full(size, 3.0), "small": [jnp.arange(3, dtype="bfloat16")], "numpy": numpy.ones(size)}

if __name__ == "__main__":
    (found,) = rlaunch.spawn(make, (2_000_000,), nprocs=1, frameworks="jax").results()
    assert type(found["big"]) is type(jnp.ones(1))
    assert (found["big"].shape, float(found["big"].sum())) == ((2_000_000,), 6_000_000.0)
    assert (found["small"][0].tolist(), found["small"][0].dtype) == ([0, 1, 2], "bfloat16")
    assert found["numpy"].sum() == 2_000_000
    print("fine")
"""


@pytest.mark.parametrize(("framework", "program"), [("torch", TORCH), ("paddle", PADDLE)])
def test_tensors_come_back_whole(tmp_path: Path, framework: str, program: str) -> None:
    run(tmp_path, python(framework), program)


def test_tensors_of_paddle_pass_whole_both_ways(tmp_path: Path) -> None:
    run(tmp_path, python("paddle"), f"if __name__ == '__main__':\n{indent(PADDLE_BOTH_WAYS, '    ')}")


def test_tensors_come_back_whole_by_default(tmp_path: Path) -> None:
    """From ranks that are interpreters of their own."""
    program = """
import rlaunch, torch

def make():
    return torch.ones(2)

if __name__ == "__main__":
    assert [each.tolist() for each in rlaunch.spawn(make, nprocs=2).results()] == [[1.0, 1.0]] * 2
    print("fine")
"""
    run(tmp_path, python("torch"), program)


def test_arrays_of_jax_come_back_whole(tmp_path: Path) -> None:
    run(tmp_path, [sys.executable], JAX)


@pytest.mark.usefixtures("nothing_left")
@each("method", METHODS)
def test_arrays_of_numpy_come_back_whole(method: str) -> None:
    for rank, found in enumerate(rlaunch.spawn(make_arrays, nprocs=2, start_method=method).results()):
        assert (found["empty"].shape, found["one"].tolist()) == ((0, 3), rank)
        assert found["big"].flags.f_contiguous
        assert (found["big"].shape, found["big"].sum()) == ((3_000, 1_000), 3_000_000 * rank)
        assert found["view"].tolist() == [0, 2, 4]
        assert (found["record"]["x"].tolist(), found["object"].tolist()) == ([1], ["text", None])


def make_arrays() -> dict[str, Any]:
    """Each sees to its own kind of memory."""
    rank = rlaunch.get_rank()
    return {
        "empty": numpy.empty((0, 3)),
        "one": numpy.array(rank),
        "big": numpy.full((3_000, 1_000), rank, order="F"),
        "view": numpy.arange(6)[::2],
        "record": numpy.array([(1,)], dtype=[("x", "i4")]),
        "object": numpy.array(["text", None], dtype=object),
    }


def run(folder: Path, python: list[str], program: str) -> None:
    (folder / "main.py").write_text(program)
    env = environment(CUDA_VISIBLE_DEVICES="", JAX_PLATFORMS="cpu")
    command = [*python, "main.py"]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.endswith("fine\n"), done.stderr
