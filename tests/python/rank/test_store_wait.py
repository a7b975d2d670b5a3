"""Ranks connect to the store of rank 0 once it listens, rather than sleep because it did not."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest
from rlaunch._process import tcp_listeners
from rlaunch._rank import store_connection, store_wait


@pytest.fixture(autouse=True)
def no_finder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of other tests, and these tests, watch no imports of this process."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where rank 0 will listen; this is rank 1 of the same node, in both frameworks."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        number = server.getsockname()[1]
        variables = {
            "PADDLE_TRAINER_ID": "1",
            "PADDLE_TRAINER_ENDPOINTS": f"127.0.0.1:{number},127.0.0.1:7",
            "PADDLE_CURRENT_ENDPOINT": "127.0.0.1:7",
            "RANK": "1",
            "LOCAL_RANK": "1",
            "MASTER_PORT": str(number),
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("PADDLE_MASTER", raising=False)
        yield server


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ports that have been waited for; nothing is."""
    ports: list[int] = []
    monkeypatch.setattr(store_connection, "wait_for_listener", lambda port, _: ports.append(port))
    return ports


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
    looked, listens, seen = threading.Event(), store_connection.has_listener, []

    def listens_and_tell(number: int) -> bool:
        answer = listens(number)
        seen.append(answer)
        looked.set()
        return answer

    monkeypatch.setattr(store_connection, "has_listener", listens_and_tell)
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
    ("variable", "value"),
    [
        ("PADDLE_TRAINER_ID", "0"),
        ("PADDLE_MASTER", "none"),
        # Rank 0 on another node.
        ("PADDLE_CURRENT_ENDPOINT", "10.0.0.2:7"),
        ("PADDLE_CURRENT_ENDPOINT", ""),
    ],
)
def test_paddle_does_not_wait_where_rank_0_is_not_another_rank_of_the_node(
    variable: str, value: str, core: types.ModuleType, waited: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    store_wait.wait_for_stores()
    assert core.create_or_get_global_tcp_store() != 0
    assert waited == []


def test_a_store_that_exists_is_not_waited_for(core: types.ModuleType, waited: list[int]) -> None:
    store_wait.wait_for_stores()
    for _ in range(2):
        core.create_or_get_global_tcp_store()
    assert len(waited) == 1


def test_the_wait_has_an_end(port: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process listens. (The test's own limit ends a wait that goes on.)"""
    seen, listens = [], store_connection.has_listener
    monkeypatch.setattr(store_connection, "has_listener", lambda number: seen.append(listens(number)))
    store_connection.wait_for_listener(port.getsockname()[1], 1)
    assert len(seen) > 1
    assert not any(seen)


def test_connections_stay_blocking(core: types.ModuleType, port: socket.socket) -> None:
    port.listen()
    with socket.socket() as client, socket.socket() as other:
        core.create_or_get_global_tcp_store = (  # type: ignore[attr-defined]
            lambda: client.connect(port.getsockname())
        )
        store_wait.wait_for_stores()
        socket.setdefaulttimeout(30)
        try:
            core.create_or_get_global_tcp_store()
        finally:
            socket.setdefaulttimeout(None)
        assert os.get_blocking(client.fileno())
        assert os.get_blocking(other.fileno())


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch, port: socket.socket) -> dict[str, Any]:
    """Those of a torch that returns the arguments."""
    rendezvous = types.ModuleType("torch.distributed.rendezvous")
    handlers: dict[str, Any] = {"env": lambda url, **options: (url, options)}
    rendezvous._rendezvous_handlers = handlers  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, rendezvous.__name__, rendezvous)
    return handlers


@pytest.mark.parametrize(
    ("rank", "local_rank", "url", "waits"),
    [
        ("1", "1", "env://", True),
        ("0", "0", "env://", False),
        # Rank 0 on another node.
        ("3", "1", "env://", False),
        # A group that the program numbers itself.
        ("1", "1", "env://?rank=0&world_size=2", False),
    ],
)
def test_torch_waits_too(
    rank: str,
    local_rank: str,
    url: str,
    waits: bool,
    handlers: dict[str, Any],
    port: socket.socket,
    waited: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    store_wait.wait_for_stores()
    assert handlers["env"](url, timeout=60) == (url, {"timeout": 60})
    assert waited == ([port.getsockname()[1]] if waits else [])


def test_a_variable_turns_it_off(handlers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    original = handlers["env"]
    monkeypatch.setenv("RLAUNCH_STORE_WAIT", "0")
    store_wait.wait_for_stores()
    assert handlers["env"] is original


def test_a_second_call_adds_nothing(handlers: dict[str, Any]) -> None:
    store_wait.wait_for_stores()
    once, finders = handlers["env"], list(sys.meta_path)
    store_wait.wait_for_stores()
    assert (handlers["env"], sys.meta_path) == (once, finders)


def test_no_framework_is_imported() -> None:
    code = "import sys; from rlaunch._rank import startup; print({'torch', 'paddle'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code]) == b"set()\n"


def test_a_kernel_without_ipv6_shows_its_listeners(
    port: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_but_tcp6(path: str, **options: Any) -> Any:
        if path.endswith("tcp6"):
            raise FileNotFoundError(path)
        return open(path, **options)

    monkeypatch.setattr(tcp_listeners, "open", open_but_tcp6, raising=False)
    number = port.getsockname()[1]
    assert not store_connection.has_listener(number)
    port.listen()
    assert store_connection.has_listener(number)


CLIENT = "import socket, sys; link = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); input()"


def test_rank_0_waits_for_the_other_ranks_to_disconnect() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as links:
        port = server.getsockname()[1]
        # Paddle's rank 0 is a client of its own store.
        links.enter_context(socket.create_connection(("127.0.0.1", port)))
        links.enter_context(server.accept()[0])
        store_connection.wait_for_clients(port, 600)
        with subprocess.Popen([sys.executable, "-c", CLIENT, str(port)], stdin=subprocess.PIPE) as client:
            other = links.enter_context(server.accept()[0])
            store_connection.wait_for_clients(port, 0.01)
            assert client.poll() is None
            closes = threading.Timer(0.05, other.close)
            closes.start()
            store_connection.wait_for_clients(port, 600)
            assert closes.finished.is_set()
            closes.join()
            assert client.stdin is not None
            client.stdin.close()


def test_rank_0_of_paddle_waits_at_its_exit(
    core: types.ModuleType, port: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []
    monkeypatch.setattr(store_connection, "wait_for_clients", lambda *given: waits.append(given))
    monkeypatch.setattr(atexit, "register", lambda function, *given: function(*given))
    port.listen()
    for rank, expected in (("1", []), ("0", [(port.getsockname()[1], store_wait.MAX_EXIT_WAIT)])):
        monkeypatch.setenv("PADDLE_TRAINER_ID", rank)
        monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
        store_wait._wrap_paddle()
        core.create_or_get_global_tcp_store()
        assert waits == expected
