"""Leftovers of the ranks of a test."""

from __future__ import annotations

import os
import socket
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

import pytest
from rlaunch._pytest.resources.leaks import Leaks, list_ports, record_shared_memory


def test_ports_on_which_a_process_listens() -> None:
    before = list_ports(os.getpid())
    with (
        socket.create_server(("127.0.0.1", 0)) as four,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as six,
    ):
        port = f"127.0.0.1:{four.getsockname()[1]}", f"[::1]:{six.getsockname()[1]}"
        with socket.create_connection(four.getsockname()):
            assert set(list_ports(os.getpid())) - set(before) == set(port)
    assert list_ports(os.getpid()) == before
    assert list_ports(2**22 + 1) == []


def test_shared_memory_that_a_rank_has_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_tracker, "register", resource_tracker.register)
    leaks = Leaks()
    names = record_shared_memory()
    kept = shared_memory.SharedMemory(create=True, size=20_000)
    gone = shared_memory.SharedMemory(create=True, size=10)
    gone.close()
    gone.unlink()
    name = kept.name.lstrip("/")
    assert names() == [name]
    kept.close()
    assert leaks.collect([], [], []) == []
    assert leaks.collect([], [], names()) == [f"shared memory {name} (19 KiB)"]
    assert names() == []
    assert leaks.collect([], [], [name]) == []


@pytest.mark.parametrize("is_private", [True, False])
def test_shared_memory_that_has_a_rank_in_its_name(monkeypatch: pytest.MonkeyPatch, is_private: bool) -> None:
    """Where another container may have the same number, it is neither a leak nor removed."""
    monkeypatch.setattr("rlaunch._lib.is_shared_memory_private", lambda: is_private)
    leaks = Leaks()
    mine, others = Path(f"/dev/shm/torch_{os.getpid()}_77_0"), Path("/dev/shm/torch_1_77_0")
    try:
        mine.write_bytes(b"12345")
        others.write_bytes(b"")
        found = [f"shared memory {mine.name} (5 bytes)"] if is_private else []
        assert leaks.collect([], [os.getpid()], []) == found
        assert mine.exists() != is_private
        assert others.exists()
    finally:
        mine.unlink(missing_ok=True)
        others.unlink(missing_ok=True)


def test_a_process_is_named_with_its_ports() -> None:
    leaks = Leaks()
    leaks._ports = {12: ["127.0.0.1:80"]}
    assert leaks.collect([(12, "sleep"), (13, "cat")], [], []) == [
        "process 12 (sleep), listening on 127.0.0.1:80",
        "process 13 (cat)",
    ]
