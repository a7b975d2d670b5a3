"""Ranks of tests look for the store of rank 0 when it is there, rather than sleep because it is not."""

from __future__ import annotations

import socket
import sys
import threading
import types
from collections.abc import Iterator

import pytest
from rlaunch._pytest.rank import store_wait


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where rank 0 will listen; this is rank 1."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
        monkeypatch.setenv("PADDLE_MASTER", f"127.0.0.1:{server.getsockname()[1]}")
        yield server


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch, port: socket.socket) -> types.ModuleType:
    """A Paddle whose store is the outcome of a connection at once."""
    core = types.ModuleType("paddle.base.core")

    def create() -> int:
        with socket.socket() as client:
            return client.connect_ex(port.getsockname())

    core.create_or_get_global_tcp_store = create  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "paddle.base.core", core)
    return core


def test_the_store_client_connects_once_a_server_listens(
    core: types.ModuleType, port: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, listens, seen = threading.Event(), store_wait.has_listener, []

    def listens_and_tell(number: int) -> bool:
        answer = listens(number)
        seen.append(answer)
        looked.set()
        return answer

    monkeypatch.setattr(store_wait, "has_listener", listens_and_tell)
    monkeypatch.setattr(store_wait, "MAX_WAIT", 60.0)
    store_wait.wait_for_stores()
    found: list[int] = []
    rank = threading.Thread(target=lambda: found.append(core.create_or_get_global_tcp_store()))
    rank.start()
    assert looked.wait(60)
    port.listen()
    rank.join(60)
    assert found == [0]
    assert seen[0] is False
    assert seen[-1] is True


@pytest.mark.parametrize(
    ("variable", "value"), [("PADDLE_TRAINER_ID", "0"), ("PADDLE_MASTER", "none"), (None, None)]
)
def test_the_store_client_does_not_wait_where_no_server_is_expected(
    variable: str | None, value: str, core: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is None:  # No rank comes.
        monkeypatch.setattr(store_wait, "MAX_WAIT", 0.0)
    else:
        monkeypatch.setenv(variable, value)
    store_wait.wait_for_stores()
    assert core.create_or_get_global_tcp_store() != 0


def test_requests_to_the_store_are_sent_at_once(core: types.ModuleType, port: socket.socket) -> None:
    port.listen()
    with socket.socket() as client, socket.socket() as other:
        core.create_or_get_global_tcp_store = (  # type: ignore[attr-defined]
            lambda: client.connect(port.getsockname())
        )
        store_wait.wait_for_stores()
        core.create_or_get_global_tcp_store()
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        assert other.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0


@pytest.mark.parametrize(("rank", "waits"), [("0", False), ("1", True)])
def test_torch_looks_in_time_too(
    rank: str, waits: bool, port: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendezvous = types.ModuleType("torch.distributed.rendezvous")
    handlers = {"env": lambda url, timeout=0: (url, timeout)}
    rendezvous._rendezvous_handlers = handlers  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, rendezvous.__name__, rendezvous)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("MASTER_PORT", str(port.getsockname()[1]))
    asked: list[int] = []
    monkeypatch.setattr(store_wait, "has_listener", lambda number: asked.append(number) or len(asked) > 2)
    store_wait.wait_for_stores()
    assert handlers["env"]("env://", timeout=3) == ("env://", 3)
    assert asked == ([port.getsockname()[1]] * 3 if waits else [])


def test_a_rank_without_paddle_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "paddle.base.core", raising=False)
    store_wait.wait_for_stores()
    assert "paddle.base.core" not in sys.modules
