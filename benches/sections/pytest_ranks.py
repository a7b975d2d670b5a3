"""A suite of distributed tests: each starts its ranks as people do today, or is marked and has a preload."""

from __future__ import annotations

from pathlib import Path

from bench_launchers import PADDLE, RLAUNCH, TORCHRUN, Launcher
from figures import Cell, Promise
from running import succeed
from sections.start import timed, written
from session import Session

TORCH_BODY = """
    numbers = torch.full((4,), rank + 1.0)
    dist.all_reduce(numbers)
    assert numbers.tolist() == [3.0] * 4
    dist.destroy_process_group()
"""

TORCH_TODAY = f"""
import socket
import pytest, torch
import torch.distributed as dist
import torch.multiprocessing

def adds(rank, port):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{{port}}", rank=rank, world_size=2)
{TORCH_BODY}

def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]

@pytest.mark.parametrize("turn", range(TURNS))
def test_adds(turn):
    torch.multiprocessing.spawn(adds, args=(free_port(),), nprocs=2)
"""

TORCH_MARKED = f"""
import pytest, torch
import torch.distributed as dist

@pytest.mark.parametrize("turn", range(TURNS))
@pytest.mark.ranks(2, preload="torch")
def test_adds(rank, turn):
    rank = rank.rank
    dist.init_process_group("gloo")
{TORCH_BODY}
"""

PADDLE_BODY = """
    dist.init_parallel_env()
    numbers = paddle.full([4], dist.get_rank() + 1.0)
    dist.all_reduce(numbers)
    assert numbers.tolist() == [3.0] * 4
"""

PADDLE_TODAY = f"""
import pytest, paddle
import paddle.distributed as dist

def adds():
{PADDLE_BODY}

@pytest.mark.parametrize("turn", range(TURNS))
def test_adds(turn):
    dist.spawn(adds, nprocs=2, backend="gloo")
"""

PADDLE_MARKED = f"""
import pytest, paddle
import paddle.distributed as dist

@pytest.mark.parametrize("turn", range(TURNS))
@pytest.mark.ranks(2, preload="paddle")
def test_adds(turn):
{PADDLE_BODY}
"""


def measure_suite(session: Session) -> None:
    """A pytest session of two-rank tests: marked `ranks(2, preload=...)`; rivals: `spawn` in each test."""
    count = session.amount(20, 4)

    def suite(name: str, text: str) -> Path:
        folder = session.folder / name
        folder.mkdir()
        written(folder, "pytest.ini", "[pytest]\n")
        return written(folder, f"test_{name}.py", text.replace("TURNS", str(count)))

    def seconds(path: Path) -> float:
        # One interpreter for both: the same framework, the same plugins.
        return timed(lambda: succeed([RLAUNCH.python, "-m", "pytest", "-q", str(path)])) / 1000

    rivals: list[tuple[Launcher, str, str, str]] = [
        (TORCHRUN, "torch", TORCH_TODAY, TORCH_MARKED),
        (PADDLE, "Paddle", PADDLE_TODAY, PADDLE_MARKED),
    ]
    for rival, title, today, marked in rivals:
        cells: dict[str, Cell] = {
            rival.name: seconds(suite(f"{rival.name}_today", today)),
            RLAUNCH.name: seconds(suite(f"{rival.name}_marked", marked)),
        }
        # A few tests do not make up for the imports of the pytest process and of the zygote.
        promise = None if session.quick else Promise("V7", times_less=5)
        session.row(f"{count} two-rank {title} tests", cells, "s", promise)
