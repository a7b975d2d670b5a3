"""The embedded master and Paddle's own launcher: its clients, its servers, and whole jobs of both."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import socket
import subprocess
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import native_hooks
import pytest
from launching import LIMIT, Place, environment, free_ports
from paddle_modules import modules_of_paddles_launcher
from preloaded import python

paddle_master, kv_client, kv_server = modules_of_paddles_launcher(
    "controllers.master", "utils.kv_client", "utils.kv_server"
)
KVClient, KVServer = kv_client.KVClient, kv_server.KVServer
PATIENCE = 60.0


@pytest.fixture
def ours() -> Iterator[native_hooks.Master]:
    master = native_hooks.Master()
    yield master
    master.close()


@pytest.fixture
def theirs() -> Iterator[Any]:
    server = KVServer(0)
    server.start()
    yield server
    server.stop()


def payload(name: str, rank: int, host: str = "127.0.0.1") -> str:
    endpoints = f"{host}:6,{host}:7"
    return json.dumps(
        {
            "name": name,
            "rank": rank,
            "replicas": 2,
            "dtype": "cpu",
            "candidate": f"{host}:5",
            "endpoints": endpoints,
        }
    )


class Node:
    """A node of ours that starts nothing."""

    def __init__(
        self, port: int, name: str, nodes: int, rank: int | None = None, address: str = "127.0.0.1"
    ) -> None:
        rules = {"min": nodes, "max": nodes, "join_ms": 600_000, "order": "Name"}
        self.offer = {
            "name": name,
            "rank": rank,
            "host": name,
            "address": address,
            "ranks": 2,
            "device": "cpu",
            "master": f"{address}:5",
            "endpoints": [f"{address}:6", f"{address}:7"],
            "rules": rules,
        }
        self.port, self.client = port, None
        self.news: list[tuple[str, str, str | None]] = []

    def join(self, **rules: Any) -> Node:
        self.offer["rules"].update(rules)
        self.client = native_hooks.MasterClient(
            "127.0.0.1", self.port, self.offer["name"], self.record({"is": "Ready", "seen": 0})
        )
        return self

    def record(self, standing: dict[str, Any]) -> str:
        return json.dumps({"format": 5, "info": self.offer, "status": standing})

    def until(self, what: Callable[[dict[str, Any], list[Any] | None], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for kind, text, members in self.client.heard(1.0):
                self.news.append((kind, text, members))
                if kind == "state":
                    found = what(json.loads(text), members and json.loads(members))
                    if found:
                        return found
        raise AssertionError(f"in vain: {self.news}")

    def round(self) -> list[dict[str, Any]]:
        return self.until(lambda state, members: state["phase"]["is"] == "Running" and members)


def test_paddle_s_client_gets_the_answers_of_paddle_s_server(ours: native_hooks.Master, theirs: Any) -> None:
    def asked(port: int) -> list[Any]:
        client = KVClient(f"127.0.0.1:{port}")
        asked = [
            lambda: client.wait_server_ready(5),
            lambda: [client.get(key) for key in ("/healthy", "missing")],
            lambda: client.get_prefix("/w"),
            lambda: [
                client.put("/w/1", "one"),
                client.put("w/2", 'é "two" \U0001f600'),
                client.put("/other", ""),
            ],
            lambda: [client.put("/w/1", "again"), *(client.get(key) for key in ("/w/1", "w/2", "/w"))],
            lambda: [client.get_prefix(key) for key in ("w", "/", "/w/1", "/w/10")],
            lambda: [client.put("/a b/ü", "x"), client.get_prefix("/a b")],
            lambda: [client.delete("/w/1"), client.delete("/w/1"), client.get_prefix("/w")],
            lambda: [client.put("/long", "x" * 500_000), client.get_prefix("/long")],
        ]
        return [ask() for ask in asked]

    assert asked(ours.port) == asked(theirs.server_address[1])


def test_answers_are_the_same_on_the_wire(ours: native_hooks.Master, theirs: Any) -> None:
    def asked(port: int) -> list[Any]:
        answers = []
        first = ["GET /healthy", "GET /x", "PUT /x/1", "POST /x/2", "GET /x"]
        for request in [*first, "DELETE /x/1", "DELETE /x/1", "GET /x"]:
            method, path = request.split()
            body = 'é\\\n\b"\x7f'.encode() if method == "PUT" else b"2" if method == "POST" else None
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            connection.request(method, path, body)
            answer = connection.getresponse()
            kept = {
                name.lower(): value
                for name, value in answer.getheaders()
                if name.lower().startswith("content-")
            }
            answers.append((answer.status, answer.reason, kept, answer.read()))
            connection.close()
        return answers

    assert asked(ours.port) == asked(theirs.server_address[1])


def test_connections_are_kept(ours: native_hooks.Master) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", ours.port, timeout=PATIENCE)
    for _ in range(3):
        connection.request("GET", "/healthy")
        before = connection.sock
        assert connection.getresponse().read() == b'{"/healthy": "ok"}'
        assert connection.sock is before
        assert before is not None
    connection.close()


@contextlib.contextmanager
def paddle_s(port: int, sort_ip: bool = False) -> Iterator[Any]:
    """The rendezvous part of Paddle's launcher; its host is elsewhere, so that it serves nothing itself."""
    ctx = types.SimpleNamespace(
        args=types.SimpleNamespace(master=f"localhost:{port}", rank=-1, sort_ip=sort_ip),
        node=types.SimpleNamespace(ip="10.9.8.7"),
        logger=logging.getLogger("paddle's"),
        status=types.SimpleNamespace(is_done=lambda: done.is_set()),
    )
    done = threading.Event()
    yield paddle_master.HTTPMaster(ctx)
    done.set()


@pytest.mark.parametrize(
    ("nodes", "sort_ip"),
    [
        ([("aaaaaa", -1, "10.0.0.9"), ("zzzzzz", -1, "10.0.0.1"), ("bbbbbb", -1, "10.0.0.2")], False),
        ([("node", -1, "10.0.0.9"), ("node-1", -1, "10.0.0.1"), ("node.2", -1, "10.0.0.2")], False),
        ([("aaaaaa", -1, "10.0.0.10"), ("zzzzzz", -1, "10.0.0.9"), ("bbbbbb", -1, "9.0.0.11")], True),
        ([("us", 1, "10.0.0.9"), ("zzzzzz", 0, "10.0.0.1"), ("bbbbbb", 2, "10.0.0.2")], False),
    ],
)
def test_both_compute_the_same_order(
    ours: native_hooks.Master, nodes: list[tuple[str, int, str]], sort_ip: bool
) -> None:
    (name, rank, address), *others = nodes

    def meet(name: str, rank: int, address: str) -> Any:
        with paddle_s(ours.port, sort_ip) as master:
            return master.sync_peers("/default/info", name, payload(name, rank, address), 3, rank)

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(meet, *other) for other in others]
        node = Node(ours.port, name, 3, None if rank < 0 else rank, address)
        members = node.join(order="Address" if sort_ip else "Name").round()
        order = [member["info"]["name"] for member in members]
        for future, other in zip(waiting, others, strict=True):
            peers, index = future.result(PATIENCE)
            said = [json.loads(peer) for peer in peers]
            assert [one["name"] for one in said] == order
            assert order[index] == other[0]
            for one, member in zip(said, members, strict=True):
                offer = member["info"]
                assert one["endpoints"] == ",".join(offer["endpoints"])
                assert (one["candidate"], one["replicas"]) == (offer["master"], offer["ranks"])
    of_paddle = [member["info"]["name"] for member in members if member["info"]["is_paddle_launcher"]]
    assert sorted(of_paddle) == sorted(other[0] for other in others)


@pytest.mark.parametrize("sort_ip", [False, True])
@pytest.mark.parametrize("ranks", [(-1, -1), (1, 0)])
def test_a_node_of_ours_joins_a_rendezvous_at_paddle_s_master(
    theirs: Any, ranks: tuple[int, int], sort_ip: bool
) -> None:
    port = theirs.server_address[1]

    def meet() -> Any:
        with paddle_s(port, sort_ip) as master:
            return master.sync_peers("/job/info", "zz", payload("zz", ranks[1], "10.0.0.9"), 2, ranks[1])

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet)
        own = payload("aa", ranks[0], "10.0.0.10")
        all_, index = native_hooks.sync_with_paddle_master(
            "127.0.0.1", port, "job", 2, "aa", ranks[0], own, PATIENCE, sort_ip
        )
        peers, other = waiting.result(PATIENCE)
    assert [value for _, value in all_] == peers
    assert {index, other} == {0, 1}
    assert all_[index][1] == own


def test_a_duplicate_node_rank_is_named(theirs: Any) -> None:
    port = theirs.server_address[1]
    assert KVClient(f"127.0.0.1:{port}").put("/job/info/first/0", payload("first", 0))
    with pytest.raises(OSError, match=r"--rank 0 is given twice: /job/info/first/0 and /job/info/us/0"):
        native_hooks.sync_with_paddle_master("127.0.0.1", port, "job", 2, "us", 0, payload("us", 0), PATIENCE)
    with pytest.raises(OSError, match=r"time|come"):
        native_hooks.sync_with_paddle_master("127.0.0.1", port, "other", 2, "us", 0, payload("us", 0), 0.5)


def servers_payload(name: str, host: str = "127.0.0.1") -> str:
    offer = {"servers": [f"{host}:6"], "trainers": [f"{host}:7", f"{host}:8"], "gloo_port": 9}
    return json.dumps({"name": name, "rank": -1, "dtype": "cpu", **offer})


def test_both_read_the_servers_and_trainers_of_each_other(ours: native_hooks.Master) -> None:
    def meet() -> Any:
        with paddle_s(ours.port) as master:
            return master.sync_peers("/default/info", "zzzzzz", servers_payload("zzzzzz", "10.0.0.9"), 2, -1)

    node = Node(ours.port, "aaaaaa", 2)
    node.offer |= {"ranks": 3, "servers": 2, "endpoints": [f"127.0.0.1:{port}" for port in (4, 6, 7)]}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet)
        members = [member["info"] for member in node.join().round()]
        peers, index = waiting.result(PATIENCE)
    assert index == 1
    assert [(one["servers"], one["endpoints"], one["master"]) for one in members] == [
        (2, ["127.0.0.1:4", "127.0.0.1:6", "127.0.0.1:7"], "127.0.0.1:5"),
        (1, ["10.0.0.9:6", "10.0.0.9:7", "10.0.0.9:8"], "10.0.0.9:9"),
    ]
    said = json.loads(peers[0])
    assert said["servers"] == ["127.0.0.1:4", "127.0.0.1:6"]
    assert (said["trainers"], said["gloo_port"]) == (["127.0.0.1:7"], 5)


OTHERS_SERVE = "was started with parameter servers, this node without; start all nodes alike"
NONE_SERVE = "was started without parameter servers, this node with; start all nodes alike"


@pytest.mark.parametrize(
    ("theirs_is", "own", "why"),
    [
        (payload("first", -1), ["--server_num=1"], NONE_SERVE),
        (servers_payload("first"), ["--nproc_per_node=1"], OTHERS_SERVE),
        (
            servers_payload("first"),
            ["--server_num=1", "--sort_ip=true"],
            "--sort_ip: the master at 127.0.0.1:",
        ),
    ],
)
def test_a_node_at_paddle_s_master_whose_job_is_of_another_kind_ends(
    place: Place, theirs: Any, theirs_is: str, own: list[str], why: str
) -> None:
    port = theirs.server_address[1]
    assert KVClient(f"127.0.0.1:{port}").put("/default/info/first/-1", theirs_is)
    place.script("tell('began')")
    ended = place.run(f"--master=127.0.0.1:{port}", "--nnodes=2", *own, "train.py")
    assert ended.status == 73, ended.stderr
    (line,) = ended.error_lines()
    assert why in line
    assert not [name for name in place.names() if name.startswith("began")]


def test_no_proxy_is_asked(theirs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    port = theirs.server_address[1]
    found, _ = native_hooks.sync_with_paddle_master(
        "127.0.0.1", port, "job", 1, "us", -1, payload("us", -1), PATIENCE
    )
    assert [key for key, _ in found] == ["/job/info/us/-1"]


def test_a_client_that_reads_nothing_stalls_no_other(ours: native_hooks.Master) -> None:
    client = KVClient(f"127.0.0.1:{ours.port}")
    for i in range(20):
        assert client.put(f"/big/{i}", "x" * 1_000_000)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            deaf = stack.enter_context(socket.create_connection(("127.0.0.1", ours.port)))
            deaf.sendall(b"GET /big HTTP/1.1\r\n\r\n")
        assert client.get("/healthy") == "ok"
        assert not client.put("/too/long", "x" * 2_000_000)
        assert client.get("/healthy") == "ok"


SCRIPT = """
import json, os
names = "PADDLE_TRAINERS_NUM PADDLE_TRAINER_ENDPOINTS PADDLE_MASTER PADDLE_NNODES"
seen = {name: os.environ.get(name) for name in names.split()}
open(f"seen.{os.environ['PADDLE_TRAINER_ID']}", "w").write(json.dumps(seen))
"""


def paddle_s_launcher(place: Place, port: int) -> subprocess.Popen[bytes]:
    """A node with two ranks."""
    (place.folder / "train.py").write_text(SCRIPT)
    command = [*python("paddle"), "-m", "paddle.distributed.launch", "--master", f"127.0.0.1:{port}"]
    command += ["--host", "127.0.0.1", "--nnodes", "2", "--nproc_per_node", "2", "train.py"]
    return subprocess.Popen(command, cwd=place.folder, env=environment(), stdin=subprocess.DEVNULL)


def test_paddle_s_launcher_starts_with_a_node_of_ours(place: Place) -> None:
    ours = native_hooks.Master()
    node = Node(ours.port, "aaaaaa", 2).join()
    process = paddle_s_launcher(place, ours.port)
    try:
        members = node.round()
        node.client.put(node.record({"is": "Runs", "round": 1}))
        assert process.wait(LIMIT * 3) == 0, (place.folder / "log" / "workerlog.0").read_text()
    finally:
        process.kill()
        process.wait()
        ours.close()
    theirs = members[1]["info"]
    assert [member["id"].split(":")[0] for member in members] == ["aaaaaa", "paddle"]
    assert (theirs["ranks"], len(theirs["endpoints"])) == (2, 2)
    seen = json.loads((place.folder / "seen.2").read_text())
    assert (seen["PADDLE_TRAINERS_NUM"], seen["PADDLE_NNODES"]) == ("4", "2")
    assert seen["PADDLE_MASTER"] == "127.0.0.1:5"
    assert seen["PADDLE_TRAINER_ENDPOINTS"].split(",") == ["127.0.0.1:6", "127.0.0.1:7", *theirs["endpoints"]]


def test_a_node_of_ours_starts_with_paddle_s_launcher(place: Place) -> None:
    port = free_ports(1)
    process = paddle_s_launcher(place, port)
    try:
        all_, index = native_hooks.sync_with_paddle_master(
            "127.0.0.1", port, "default", 2, "us", -1, payload("us", -1), LIMIT * 3
        )
        assert process.wait(LIMIT * 3) == 0
    finally:
        process.kill()
        process.wait()
    assert [key for key, _ in all_] == ["/default/info/aaaaaa/-1", "/default/info/us/-1"]
    assert index == 1
    theirs = json.loads(all_[0][1])
    seen = json.loads((place.folder / "seen.0").read_text())
    assert seen["PADDLE_MASTER"] == theirs["candidate"]
    assert seen["PADDLE_TRAINER_ENDPOINTS"] == theirs["endpoints"] + ",127.0.0.1:6,127.0.0.1:7"
