"""The launcher's store and torch's own clients: everything they can ask, compared with torch's own server."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import native_hooks
import pytest
from paths import PYTHONPATH
from preloaded import python
from rlaunch import _lib

GREETING = b"\0" + struct.pack("<I", 0x3C85F7CE)
CASES = Path(__file__).with_name("torch_store_cases.py")
# torch's clients ask for the name of each address; a name server that answers no more than most would hold
# them up for 5 seconds each (resolv.conf(5)).
IMPATIENT = {"RES_OPTIONS": "timeout:1 attempts:1"}


@pytest.fixture
def server() -> Iterator[native_hooks.TorchStore]:
    made = native_hooks.TorchStore()
    yield made
    made.close()


@pytest.mark.parametrize(
    "case",
    [
        "torchs_clients_get_the_answers_of_torchs_own_server",
        "a_new_attempt_sees_nothing_of_the_old_one",
        "clients_work_among_strangers",
        "stored_values_have_a_limit",
    ],
)
def test_torchs_clients(case: str) -> None:
    done = subprocess.run(
        [*python("torch"), CASES, case],
        env={**os.environ, **IMPATIENT, "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


MANY = """
import sys
import torch.distributed as dist
from concurrent.futures import ThreadPoolExecutor

def work(rank):
    # The constructor itself waits until all are there.
    store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), 256, False)
    store.set(f"rank {rank}", bytes([rank]) * 10_000)
    store.barrier("all", 256)
    assert store.get(f"rank {(rank + 1) % 256}") == bytes([(rank + 1) % 256]) * 10_000
    return store.add("sum", rank)

with ThreadPoolExecutor(256) as threads:
    print(max(threads.map(work, range(256))))
"""


def test_256_clients_rendezvous(server: native_hooks.TorchStore) -> None:
    done = subprocess.run(
        [*python("torch"), "-c", MANY, str(server.port)],
        env={**os.environ, **IMPATIENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{sum(range(256))}\n", done.stderr


def test_the_store_listens_on_loopback_alone(server: native_hooks.TorchStore) -> None:
    for address in _lib.addresses():
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as bare:
            local = address in ("127.0.0.1", "::1")
            assert (bare.connect_ex((address, server.port)) == 0) == local, address


DESCRIPTORS_RUN_OUT = """
import resource, socket, sys, time
sys.path.insert(0, sys.argv[1])
import native_hooks
server = native_hooks.TorchStore(connections=10_000)
ping = b"\\0" + (0x3C85F7CE).to_bytes(4, "little") + b"\\x0dping"
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
print(server.port, flush=True)
sys.stdin.readline()
before = time.process_time()
sys.stdin.readline()
print(time.process_time() - before, flush=True)
sys.stdin.readline()
"""


def test_running_out_of_descriptors_is_waited_out_without_spinning() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DESCRIPTORS_RUN_OUT, native_hooks.FOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        port = int(other.stdout.readline())
        many = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        for bare in many:
            bare.sendall(GREETING + b"\x0dping")
        assert many[0].recv(4, socket.MSG_WAITALL) == b"ping"
        other.stdin.write("\n")
        other.stdin.flush()
        many[-1].settimeout(1)
        with pytest.raises(TimeoutError):
            many[-1].recv(4)
        other.stdin.write("\n")
        other.stdin.flush()
        assert float(other.stdout.readline()) < 0.3
        for bare in many[:50]:
            bare.close()
        many[-1].settimeout(30)
        assert many[-1].recv(4, socket.MSG_WAITALL) == b"ping"
        other.stdin.close()
        for bare in many:
            bare.close()


RANK = """
import os, sys
import torch, torch.distributed as dist
for attempt in range(2):
    dist.init_process_group("gloo")
    tensor = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(tensor)
    dist.barrier()
    dist.destroy_process_group()
    print(tensor.item(), flush=True)
    sys.stdin.readline()
os._exit(0)
"""


def test_a_process_group_rendezvous_in_it_in_every_attempt(server: native_hooks.TorchStore) -> None:
    variables = {
        **os.environ,
        **IMPATIENT,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(server.port),
        "WORLD_SIZE": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(
                subprocess.Popen(
                    [*python("torch"), "-c", RANK],
                    env={**variables, "RANK": str(rank)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(2)
        ]
        for _ in range(2):
            for rank in ranks:
                assert rank.stdout is not None
                assert rank.stdout.readline() == "3.0\n"
            server.renew()
            for rank in ranks:
                assert rank.stdin is not None
                rank.stdin.write("\n")
                rank.stdin.flush()
        assert [rank.wait(30) for rank in ranks] == [0, 0]
