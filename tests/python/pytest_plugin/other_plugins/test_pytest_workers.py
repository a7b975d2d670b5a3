"""Tests on ranks in the workers of pytest-xdist: no port and no device is two tests' at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from effort import FULL, cases
from launching import await_none_marked, environment

COUNT = cases(10, 22, in_ci=22)
SUITE = """
import os
import socket
import time
from pathlib import Path

import pytest

NOTES = Path(os.environ["NOTES"])


def address_of(endpoint):
    host, _, port = endpoint.rpartition(":")
    return host, int(port)


def meet(rank, name):
    '''Listens at each port of this rank, and hears this test's ranks there, and no other's.'''
    master = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    own = [os.environ["PADDLE_CURRENT_ENDPOINT"]] + [master] * (rank.rank == 0)
    servers = [socket.create_server(address_of(endpoint)) for endpoint in own]
    rank.barrier()
    for endpoint in [*os.environ["PADDLE_TRAINER_ENDPOINTS"].split(","), master]:
        with socket.create_connection(address_of(endpoint)) as line:
            line.sendall(f"{name} {rank.rank}".encode())
    for server in servers:
        callers = [server.accept()[0] for _ in range(rank.world_size)]
        heard = sorted(caller.makefile().read() for caller in callers)
        assert heard == [f"{name} {other}" for other in range(rank.world_size)]
    rank.barrier()  # Till then these ports are this test's.
    for server in servers:
        server.close()
    with open(NOTES / "met", "a") as notes:
        notes.write(f"{name} {rank.rank}\\n")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("number", range(int(os.environ["COUNT"])))
def test_ports(rank, number):
    meet(rank, f"ports-{number}")


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(n, marks=pytest.mark.ranks(2 if n % 5 == 4 else 1, gpus=True))
        for n in range(int(os.environ["COUNT"]))
    ],
)
def test_devices(rank, number):
    device = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[rank.local_rank]
    assert len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")) == rank.world_size
    held = NOTES / f"device-{device}"
    os.close(os.open(held, os.O_CREAT | os.O_EXCL))  # No process has it.
    try:
        (NOTES / f"used-{device}-by-{os.environ['PYTEST_XDIST_WORKER']}").touch()
        meet(rank, f"devices-{number}")
        # One worker's test has it until the other worker has come to one of its own.
        limit = time.monotonic() + 90
        while len({path.name.rpartition("-")[2] for path in NOTES.glob("used-*")}) < 2:
            assert time.monotonic() < limit, "the other worker has no test on a device"
            time.sleep(0.01)
    finally:
        held.unlink()
"""

FRAMEWORKS = """
@pytest.mark.xdist_group("torch")
@pytest.mark.ranks(2, preload="torch")
@pytest.mark.parametrize("number", range(3))
def test_torch(rank, number):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([rank.rank + number])
    dist.all_reduce(total)
    assert total.item() == 2 * number + 1
    dist.destroy_process_group()


@pytest.mark.xdist_group("paddle")
@pytest.mark.ranks(2, preload="paddle")
@pytest.mark.parametrize("number", range(3))
def test_paddle(rank, number):
    import paddle
    import paddle.distributed as dist

    dist.init_parallel_env()
    total = paddle.to_tensor([rank.rank + number])
    dist.all_reduce(total)
    assert total.item() == 2 * number + 1
"""


@pytest.mark.timeout(400)
def test_many_tests_in_two_workers_share_no_port_and_no_device(tmp_path: Path, mark: str) -> None:
    notes, temporary = tmp_path / "notes", tmp_path / "tmp"
    for folder in (notes, temporary):
        folder.mkdir()
    (tmp_path / "test_it.py").write_text(SUITE + FRAMEWORKS if FULL else SUITE)
    # Ranks without a framework are forked from a process that has imported next to nothing.
    (tmp_path / "pytest.ini").write_text("[pytest]\nranks_preload = json\n")
    words = ["-n2", "--dist=loadgroup", "-q", "-p", "no:cacheprovider", "--timeout=300", "test_it.py"]
    # The folder of locks is this run's own: others on this machine play with devices 0 and 1, too.
    env = environment(
        **{name: None for name in os.environ if name.startswith("PYTEST_")},
        COUNT=str(COUNT),
        CUDA_VISIBLE_DEVICES="0,1",
        MARK=mark,
        NOTES=str(notes),
        TMPDIR=str(temporary),
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{2 * COUNT + 6 * FULL} passed" in done.stdout
    met = (notes / "met").read_text().splitlines()
    ranks = [2 if number % 5 == 4 else 1 for number in range(COUNT)]
    assert len(met) == len(set(met)) == 2 * COUNT + sum(ranks)
    names = {path.name for path in notes.iterdir()} - {"met"}
    assert {name.split("-")[1] for name in names} == {"0", "1"}
    assert {name.rpartition("-")[2] for name in names} == {"gw0", "gw1"}
    assert all(name.startswith("used-") for name in names)
    # multiprocessing's resource tracker ends a moment after its program.
    await_none_marked(mark)
