"""Tests that do not pass, one for each way of it. README.md says what is seen of each."""

import ctypes
import os
import subprocess
import sys
import threading
from multiprocessing import shared_memory

import pytest

pytestmark = pytest.mark.ranks(2)

SERVER = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
print("listening", flush=True)
time.sleep(600)
"""


def average(values):
    return sum(values) / (len(values) - 1)


def wait_for_data():
    threading.Event().wait()


def test_fails_on_one_rank(rank):
    print("this is rank", rank.rank)
    if rank.rank == 1:
        assert average([1, 2, 3]) == 2
    rank.barrier()


def test_fails_in_the_middle_of_a_collective(rank):
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if rank.rank == 1:
        raise ValueError("the batch is empty")
    dist.barrier()


@pytest.mark.ranks(3, timeout=8)
def test_hangs(rank):
    if rank.rank == 1:
        wait_for_data()
    rank.barrier()


def test_is_skipped_by_one_rank(rank):
    if rank.rank == 1:
        pytest.skip("rank 1 has no device")
    rank.barrier()


def test_leaves_a_process(rank):
    if rank.rank == 0:
        left = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
        assert left.stdout.readline() == "listening\n"


def test_leaves_shared_memory(rank):
    if rank.rank == 1:
        shared_memory.SharedMemory(create=True, size=1 << 20).close()


def test_crashes(rank):
    if rank.rank == 1:
        ctypes.string_at(0)
    rank.barrier()


def test_exits(rank):
    if rank.rank == 0:
        os._exit(3)
    rank.barrier()


@pytest.fixture
def broken(rank):
    if rank.rank == 0:
        raise ConnectionError("no such server")
    rank.barrier()


def test_cannot_be_set_up(broken):
    pass


@pytest.mark.xfail(raises=ZeroDivisionError, strict=True, reason="a bug that is known")
def test_is_expected_to_fail(rank):
    if rank.rank == 1:
        average([1])
    rank.barrier()


def test_after_all_that_the_session_goes_on(rank):
    assert rank.gather(rank.rank) == [0, 1]
