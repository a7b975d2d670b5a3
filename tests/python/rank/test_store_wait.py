"""Ranks connect to the store of rank 0 once it listens, rather than sleep because it did not."""

from __future__ import annotations

import datetime
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest
from hosts import hosts
from paths import ROOT
from rlaunch._rank import store_connection, store_wait


@pytest.fixture(autouse=True)
def no_finder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of other tests, and these tests, watch no imports of this process."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


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


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch, port: socket.socket) -> dict[str, Any]:
    """Those of a torch that returns the arguments; this is rank 1."""
    rendezvous = types.ModuleType("torch.distributed.rendezvous")
    handlers: dict[str, Any] = {"env": lambda url, **options: (url, options)}
    rendezvous._rendezvous_handlers = handlers  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, rendezvous.__name__, rendezvous)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", str(port.getsockname()[1]))
    return handlers


@pytest.mark.parametrize(("rank", "waits"), [("0", False), ("1", True)])
def test_torch_waits_too(
    rank: str,
    waits: bool,
    handlers: dict[str, Any],
    port: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", rank)
    asked: list[int] = []
    monkeypatch.setattr(
        store_connection, "has_listener", lambda number: asked.append(number) or len(asked) > 2
    )
    store_wait.wait_for_stores()
    timeout = datetime.timedelta(seconds=60)
    assert handlers["env"]("env://", timeout=timeout) == ("env://", {"timeout": timeout})
    assert asked == ([port.getsockname()[1]] * 3 if waits else [])


def test_the_wait_ends_with_torchs_timeout(handlers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    monkeypatch.setattr(store_connection, "wait_for_listener", lambda *where: limits.append(where[2]))
    store_wait.wait_for_stores()
    handlers["env"]("env://", timeout=datetime.timedelta(seconds=7))
    handlers["env"]("env://", timeout=datetime.timedelta(minutes=30))
    handlers["env"]("env://")
    assert limits == [7, store_wait.MAX_WAIT, store_wait.MAX_WAIT]


def test_a_host_without_address_is_left_to_the_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_connection, "has_listener", lambda _: pytest.fail("asked"))
    store_connection.wait_for_listener("no-such-host.invalid", 1, 60)


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


def test_no_framework_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "paddle.base.core", raising=False)
    store_wait.wait_for_stores()
    assert "paddle.base.core" not in sys.modules


REMOTE = """
import sys
from rlaunch._rank import store_connection
accepts = store_connection._accepts
def accepts_and_tell(*where):
    answer = accepts(*where)
    print(answer, flush=True)
    return answer
store_connection._accepts = accepts_and_tell
store_connection.wait_for_listener(sys.argv[1], 4242, 600)
"""


@pytest.mark.parametrize("address", ["ip", "ipv6"])
def test_the_store_of_another_machine_is_waited_for(address: str) -> None:
    with hosts(2) as (first, second):
        host = getattr(first, address)
        command = [sys.executable, "-c", REMOTE, host]
        with second.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as rank:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "False\n"
            listen = f"import socket; s = socket.create_server(({host!r}, 4242), family=socket.{{}})"
            listen = listen.format("AF_INET6" if address == "ipv6" else "AF_INET") + "; s.accept()"
            with first.run([sys.executable, "-c", listen]) as server:
                assert rank.stdout.read().split()[-1] == "True"
                assert (rank.wait(), server.wait()) == (0, 0)
