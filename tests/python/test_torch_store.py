"""The launcher's store and torch's own clients: everything they can ask, compared with torch's own server."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from oracle import SEED
from rlaunch import _lib

PATIENCE = timedelta(seconds=30)
SHORT = timedelta(milliseconds=50)
GREETING = b"\0" + struct.pack("<I", 0x3C85F7CE)
LIMIT = 8 * 1024 * 1024
# torch's clients ask for the name of each address; a name server that answers no more than most would hold
# them up for 5 seconds each (resolv.conf(5)).
IMPATIENT = {"RES_OPTIONS": "timeout:1 attempts:1"}


@pytest.fixture
def server() -> Iterator[_lib.TorchStore]:
    made = _lib.TorchStore()
    yield made
    made.close()


def client(port: int, **options: Any) -> Any:
    return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=PATIENCE, **options)


def outcome(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as error:
        return type(error).__name__, str(error).partition(" ")[0]


def operations(a: Any, b: Any, late: Callable[..., Any]) -> Iterator[Callable[[], Any]]:
    """What two clients ask, one thing after another; `late` asks in a thread while another thing is asked."""
    yield lambda: a.set("k", "v")
    yield lambda: b.get("k")
    yield lambda: (a.set("k", ""), b.get("k"))
    yield lambda: (a.add("n", 5), b.add("n", -7), a.get("n"))
    yield lambda: (a.set("text", "12abc"), b.add("text", 1), b.get("text"))
    yield lambda: (a.check(["k", "n"]), b.check(["k", "missing"]), b.check([]))
    yield lambda: [
        a.compare_set("c", *pair) for pair in (("x", "y"), ("", "one"), ("", "two"), ("one", "three"))
    ]
    yield lambda: b.get("c")
    yield lambda: (a.append("ap", "po"), a.append("ap", "tato"), b.get("ap"))
    yield lambda: (a.multi_set(["m1", "m2"], ["1", "2"]), b.multi_get(["m2", "k", "m1"]), b.multi_get([]))
    yield lambda: (a.num_keys(), sorted(a.list_keys()))
    yield lambda: (a.delete_key("k"), b.delete_key("k"), a.num_keys(), a.check(["k"]))
    yield lambda: a.wait(["k"], SHORT)
    yield lambda: (a.set("after", "a wait"), a.get("after"))
    yield lambda: a.wait(["n", "c"], SHORT)
    yield lambda: late(b.get, "soon", then=lambda: a.set("soon", "now"))
    yield lambda: late(b.wait, ["s1", "s2"], PATIENCE, then=lambda: (a.add("s1", 1), a.append("s2", "x")))
    yield lambda: (a.queue_push("q", "one"), a.queue_push("q", b"two\0"), b.queue_len("q"))
    yield lambda: (b.check(["q"]), b.num_keys(), b.delete_key("q"))
    yield lambda: (b.queue_pop("q"), a.queue_pop("q"), a.queue_len("q"), a.queue_len("none"))
    yield lambda: a.queue_pop("q", False)
    yield lambda: late(b.queue_pop, "q", then=lambda: a.queue_push("q", "three"))
    yield lambda: late(b.barrier, "bar", 2, then=lambda: a.barrier("bar", 2))
    yield lambda: (a.barrier("bar", 2), a.get("bar"))
    yield lambda: a.barrier("alone", 2, SHORT)
    yield lambda: (b.barrier("alone", 2), a.num_keys())
    yield lambda: (dist.PrefixStore("none", a).set("torchelastic/role_info/0", "x"), sorted(a.list_keys()))
    yield lambda: dist.PrefixStore("p", dist.PrefixStore("q", b)).add("n", 1)
    yield lambda: (a.clone().get("after"), a.has_extended_api())
    yield lambda: (a.set("3 MB", "x" * 3_000_000), len(b.get("3 MB")))
    yield lambda: (a.set("most", "x" * LIMIT), len(b.get("most")))
    yield lambda: (b.set("k" * 8191, "longest"), b.get("k" * 8191))
    yield lambda: (a.set("no number", "x"), a.add("no number", 1))
    yield lambda: (b.set("too long", "x" * (LIMIT + 1)), b.num_keys())


def outcomes(port: int) -> list[Any]:
    with ThreadPoolExecutor(1) as threads:

        def late(ask: Callable[..., Any], *args: Any, then: Callable[[], Any]) -> Any:
            asked = threads.submit(ask, *args)
            then()
            return asked.result(30)

        return [outcome(ask) for ask in operations(client(port), client(port), late)]


def test_torchs_clients_get_what_they_get_of_torchs_own_server(server: _lib.TorchStore) -> None:
    own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)
    ours, theirs = outcomes(server.port), outcomes(own.port)
    for number, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        assert our == their, f"operation {number}"
    assert sum(isinstance(each, tuple) and each[:1] == ("DistStoreError",) for each in ours) == 2


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


def test_256_clients_meet(server: _lib.TorchStore) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY, str(server.port)],
        env={**os.environ, **IMPATIENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{sum(range(256))}\n", done.stderr


def test_a_new_attempt_sees_nothing_of_the_old_one(server: _lib.TorchStore) -> None:
    old = client(server.port)
    old.set("k", "old")
    waits = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=PATIENCE)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(outcome, lambda: waits.wait(["never"], PATIENCE))
        while raw_count(server.port) != 1:  # The waiting one has to have come so far.
            pass
        server.renew()
        assert waiting.result(30)[0] == "DistNetworkError"
    new = client(server.port)
    assert not new.check(["k"])
    assert outcome(lambda: (old.set("k", "old"), old.get("k")))[0] == "DistNetworkError"
    assert new.num_keys() == 0


def raw_count(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port)) as bare:
        bare.sendall(GREETING + b"\x07")
        return int.from_bytes(bare.recv(8, socket.MSG_WAITALL), "little")


def strangers(port: int, draw: random.Random, over: threading.Event) -> int:
    """Sends noise, half requests and nothing, reads nothing, and hangs up in every way; how often."""
    held: list[socket.socket] = []
    times = 0
    while not over.is_set():
        with contextlib.suppress(OSError):
            bare = socket.create_connection(("127.0.0.1", port))
            bare.setblocking(False)
            opcode = bytes([draw.randrange(20)])
            length = struct.pack("<Q", draw.choice([0, 1, 5, 8192, 131072, LIMIT, 1 << 40, (1 << 64) - 1]))
            noise = draw.randbytes(draw.randrange(2000))
            bare.send(draw.choice([GREETING, GREETING, b""]) + draw.choice([opcode + length, b""]) + noise)
            if draw.random() < 0.3:
                bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if draw.random() < 0.3:
                bare.shutdown(socket.SHUT_WR)
            held.append(bare)
            times += 1
        if len(held) > 50:
            held.pop(draw.randrange(len(held))).close()
    for bare in held:
        bare.close()
    return times


def test_clients_work_among_strangers(server: _lib.TorchStore) -> None:
    over = threading.Event()
    a, b = client(server.port), client(server.port)
    with ThreadPoolExecutor(3) as threads:
        noise = [threads.submit(strangers, server.port, random.Random(SEED + i), over) for i in range(2)]
        try:
            for number in range(300):
                a.set(f"/key/of/ours/{number}", "x" * number)
                assert b.get(f"/key/of/ours/{number}") == b"x" * number
                assert a.add("/sum/of/ours", 1) == number + 1
                asked = threads.submit(b.wait, [f"/late/{number}"], PATIENCE)
                a.set(f"/late/{number}", "")
                asked.result(30)
        finally:
            over.set()
        assert sum(each.result(30) for each in noise) > 50


def test_it_listens_on_loopback_alone(server: _lib.TorchStore) -> None:
    for address in _lib.addresses():
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as bare:
            local = address in ("127.0.0.1", "::1")
            assert (bare.connect_ex((address, server.port)) == 0) == local, address


DESCRIPTORS_RUN_OUT = """
import resource, socket, sys, time
from rlaunch import _lib
server = _lib.TorchStore(connections=10_000)
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
        [sys.executable, "-c", DESCRIPTORS_RUN_OUT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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


def test_what_is_held_has_a_limit() -> None:
    server = _lib.TorchStore(limit=64 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    good = client(server.port)
    good.set("k", "x" * 1_000_000)
    greedy = client(server.port)
    failed = outcome(lambda: [greedy.set(f"{i}", "x" * 1_000_000) and greedy.num_keys() for i in range(1000)])
    assert failed is not None
    assert outcome(greedy.num_keys)[0] == "DistNetworkError"
    assert good.get("k") == b"x" * 1_000_000
    assert good.num_keys() < 40
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10
    server.close()


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


def test_a_group_of_processes_meets_in_it_in_every_attempt(server: _lib.TorchStore) -> None:
    told = {
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
                    [sys.executable, "-c", RANK],
                    env={**told, "RANK": str(rank)},
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
