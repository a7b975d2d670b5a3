"""``python torch_store_cases.py CASE``: torch's own clients at the launcher's store."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import native_hooks
import torch.distributed as dist
from oracle import SEED

PATIENCE = timedelta(seconds=30)
SHORT = timedelta(milliseconds=50)
GREETING = b"\0" + struct.pack("<I", 0x3C85F7CE)
LIMIT = 8 * 1024 * 1024


def client(port: int, **options: Any) -> Any:
    return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=PATIENCE, **options)


def outcome(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as error:
        return type(error).__name__, str(error).partition(" ")[0]


def operations(a: Any, b: Any, late: Callable[..., Any]) -> Iterator[Callable[[], Any]]:
    """Requests of two clients, one after another; `late` asks in a thread while another request is made."""
    yield lambda: a.set("k", "v")
    yield lambda: b.get("k")
    # A request without an answer may reach the server after another client's: `a` asks something first.
    yield lambda: (a.set("k", ""), a.get("k"), b.get("k"))
    yield lambda: (a.add("n", 5), b.add("n", -7), a.get("n"))
    yield lambda: (a.set("text", "12abc"), b.add("text", 1), b.get("text"))
    yield lambda: (a.check(["k", "n"]), b.check(["k", "missing"]), b.check([]))
    yield lambda: [
        a.compare_set("c", *pair) for pair in (("x", "y"), ("", "one"), ("", "two"), ("one", "three"))
    ]
    yield lambda: b.get("c")
    yield lambda: (a.append("ap", "po"), a.append("ap", "tato"), a.get("ap"), b.get("ap"))
    yield lambda: (a.multi_set(["m1", "m2"], ["1", "2"]), b.multi_get(["m2", "k", "m1"]), b.multi_get([]))
    yield lambda: (a.num_keys(), sorted(a.list_keys()))
    yield lambda: (a.delete_key("k"), b.delete_key("k"), a.num_keys(), a.check(["k"]))
    yield lambda: a.wait(["k"], SHORT)
    yield lambda: (a.set("after", "a wait"), a.get("after"))
    yield lambda: a.wait(["n", "c"], SHORT)
    yield lambda: late(b.get, "soon", then=lambda: a.set("soon", "now"))
    yield lambda: late(b.wait, ["s1", "s2"], PATIENCE, then=lambda: (a.add("s1", 1), a.append("s2", "x")))
    yield lambda: [a.queue_push("q", "one"), a.queue_push("q", b"two\0"), a.queue_len("q"), b.queue_len("q")]
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


def torchs_clients_get_the_answers_of_torchs_own_server(server: native_hooks.TorchStore) -> None:
    own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)
    ours, theirs = outcomes(server.port), outcomes(own.port)
    for number, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        assert our == their, f"operation {number}: {our} of ours, {their} of torch's"
    assert sum(isinstance(each, tuple) and each[:1] == ("DistStoreError",) for each in ours) == 2


def a_new_attempt_sees_nothing_of_the_old_one(server: native_hooks.TorchStore) -> None:
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


def clients_work_among_strangers(server: native_hooks.TorchStore) -> None:
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


def stored_values_have_a_limit() -> None:
    server = native_hooks.TorchStore(limit=64 << 20)
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


if __name__ == "__main__":
    case = globals()[sys.argv[1]]
    if sys.argv[1] == stored_values_have_a_limit.__name__:
        case()
    else:
        store = native_hooks.TorchStore()
        case(store)
        store.close()
