"""Ranks of several fixed nodes: their variables, against the real Paddle."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import rlaunch
from effort import cases
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from launching import free_ports, own_ports
from oracle import SEED, Answer, Oracle, ask_here, paddle_with, question, settled, without_ports


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    made = Oracle()
    yield made
    made.close()


DEVICES = {
    "nccl": paddle_with(4, "gpu:0"),
    "bkcl": paddle_with(4, "xpu:0"),
    "xccl": paddle_with(4, "npu:0"),
}
NODES = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::2", "node-b", "127.0.0.1"]
# Where ports begin, and those of lists.
PORT = own_ports(16000, 2000)[70]
LISTED = PORT + 100


# --- Where rlaunch differs from Paddle, on purpose -------------------------------------------------------


def bracketed(endpoints: str) -> str:
    """IPv6 addresses in brackets."""
    return re.sub(r"(?<![^,])([0-9a-f:]*:[0-9a-f:]*):(\d+)(?=,|$)", r"[\1]:\2", endpoints)


def means_cloud(asked: dict[str, Any]) -> bool:
    given = asked["options"].get("use_paddlecloud")
    return set(CLOUD) <= set(asked["environ"]) if given is None else bool(given)


def on_cloud(asked: dict[str, Any]) -> bool:
    """Whether the platform's variables decide."""
    return means_cloud(asked) and asked["environ"].get("PADDLE_TRAINERS_NUM", "1").strip() != "1"


def refused(rows: list[list[list[str]]], asked: dict[str, Any]) -> str | None:
    """The fault in the endpoints that Paddle hands out: a part of rlaunch's error text."""
    endpoints = dict(rows[0])["PADDLE_TRAINER_ENDPOINTS"].split(",")
    environ = asked["environ"] if on_cloud(asked) else {}
    if int(environ.get("PADDLE_TRAINER_ID", 0)) < 0:
        # Python counts from the end then.
        return "list index out of range: PADDLE_TRAINER_ID is -"
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        if "DISTRIBUTED_TRAINER_ENDPOINTS" in environ and not (port.isdigit() and host):
            return f"'{endpoint}' in DISTRIBUTED_TRAINER_ENDPOINTS is not an endpoint"
        if not host and len(endpoints) > asked["nprocs"]:
            return "has an empty address"
    first = int(endpoints[0].rpartition(":")[2])
    if not 0 < first < 65536:
        return f"{first} is not a port"
    if first + asked["nprocs"] > 65536:
        return f"port {first} leaves no room for {asked['nprocs']} ports"
    return "would both listen on" if len(set(endpoints)) < len(endpoints) else None


def as_rlaunch_has_it(real: Answer, asked: dict[str, Any]) -> Answer:
    """Paddle's answer with the differences on the page."""
    port = asked["environ"].get("PADDLE_PORT")
    accident = f"invalid literal for int() with base 10: {port or ''!r}\n"
    if accident in real["printed"]:
        real["printed"] = real["printed"].replace(accident, "")
        if port is not None:
            start = asked["options"].get("started_port")
            begin = 6170 if start is None else start
            real["logged"].append(
                f"PADDLE_PORT is '{port}', which is not a number: the ports begin at {begin}."
            )
    if "rows" in real:
        wrong = refused(real["rows"], asked)
        if wrong is not None:
            return {"refused": wrong}
        real["rows"] = [
            [[name, bracketed(value) if "ENDPOINT" in name else value] for name, value in row]
            for row in real["rows"]
        ]
        return real
    # A refused call logs no warnings.
    real["logged"] = []
    return real


# The text that rlaunch adds to Paddle's, or has where Paddle has none.
MORE = {
    "": r"DISTRIBUTED_TRAINER_ENDPOINTS has \d+ endpoints; .*",
    "list index out of range": r"list index out of range: PADDLE_TRAINER_ID is .*, of \d+ nodes",
    "NoneType": r"int\(\) .* 'NoneType': TRAINER_PORTS_NUM should not be None",
    "is not in list": r"'.*' is not in list\nthis machine has .*; give this node's address in node_ip",
}


def same(real: Answer, mine: Answer, asked: dict[str, Any]) -> None:
    if "refused" in real:
        assert "rows" not in mine, real
        assert real["refused"] in mine["error"][1]
        return
    if "error" in real and "error" in mine and real["error"] != mine["error"]:
        text = real["error"][1]
        pattern = next(
            (more for ending, more in MORE.items() if ending == text or (ending and ending in text)), None
        )
        assert pattern is not None, (real["error"], mine["error"])
        assert mine["error"][1].startswith(text)
        assert re.fullmatch(pattern, mine["error"][1])
        # A second line only where this machine itself was asked.
        assert "\n" not in mine["error"][1] or asked["options"].get("node_ip") is None
        mine = {**mine, "error": [mine["error"][0], text]}
    assert mine == real


def ask_both(
    oracle: Oracle,
    backend: str,
    nprocs: int,
    options: dict[str, Any],
    environ: dict[str, str],
    here: list[Any],
) -> None:
    options = {"backend": backend, **options}
    asked = {**question(nprocs, options, environ, devices=4), "here": here}
    ips = next((text for key in ("ips", "cluster_node_ips") if (text := options.get(key)) is not None), "")
    nodes = [ip.strip() for ip in ips.split(",")]
    # Where the name leads nowhere, Paddle is made to believe in what rlaunch finds out by itself.
    by_name, found = here[0] or "node-x", [ip for ip in here[1:] if ip in nodes]
    if by_name not in nodes and len(found) == 1 and not on_cloud(asked):
        by_name = found[0]
    of_paddle = {**asked, "here": [by_name]}
    real, mine = settled(
        asked, lambda _: oracle.ask(of_paddle, "paddle"), lambda q: [ask_here(q, DEVICES[backend])]
    )
    real = as_rlaunch_has_it(real, asked)
    if len(nodes) == 1 and options.get("started_port") is None and not means_cloud(asked):
        real, mine = without_ports(real, None), without_ports(mine, None)
    same(real, mine, asked)


def options_of(**values: list[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: st.sampled_from(each) for name, each in values.items()})


several = st.lists(st.sampled_from(NODES), min_size=2, max_size=4, unique=True).map(",".join)
odd = st.one_of(
    st.none(),
    st.lists(st.sampled_from(NODES), min_size=1, max_size=3).map(",".join),
    several.map(lambda text: f" {text.replace(',', ' , ')}\t"),
    several.map("{},".format),
)
lists = st.one_of(
    several.map(lambda text: {"ips": text}),
    several.map(lambda text: {"cluster_node_ips": text, "ips": None}),
    st.tuples(several, odd).map(lambda pair: {"ips": pair[0], "cluster_node_ips": pair[1]}),
    st.fixed_dictionaries({}, optional={"ips": odd, "cluster_node_ips": odd}),
)
here = st.tuples(
    st.sampled_from([*NODES, "127.0.1.1", None]),
    st.lists(st.sampled_from([*NODES, "10.9.9.9", "fe80::1"]), max_size=3, unique=True),
).map(lambda pair: [pair[0], *pair[1]])
CLOUD = {
    "PADDLE_TRAINERS": "10.0.0.1,10.0.0.2",
    "POD_IP": "10.0.0.2",
    "PADDLE_TRAINER_ID": "1",
    "TRAINER_PORTS_NUM": "2",
}

CLOUD_OF_TWO = {**CLOUD, "PADDLE_TRAINERS_NUM": "2"}

many = settings(
    max_examples=cases(150, 1200),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
backends, numbers = st.sampled_from([*DEVICES]), st.sampled_from([1, 2, 2, 4])
ports = [*[None, PORT] * 3, 0, -1, 65535, 70000]


@seed(SEED)
@many
@given(
    backends,
    numbers,
    lists,
    options_of(
        node_ip=[None, *NODES, *NODES, "10.9.9.9", ""],
        started_port=ports,
        use_paddlecloud=[None, False, True],
        print_config=[True, False],
    ),
    options_of(
        PADDLE_TRAINERS_NUM=[*["1"] * 6, "x", ""], CUDA_VISIBLE_DEVICES=["3,2,1,0"], FLAGS_START_PORT=["7"]
    ),
    here,
)
def test_fixed_nodes(
    oracle: Oracle, backend: str, n: int, ips: Any, more: Any, environ: Any, here: Any
) -> None:
    ask_both(oracle, backend, n, {**ips, **more}, environ, here)


endpoints = st.sampled_from(
    [
        f"10.0.0.1:{PORT + 1}",
        f"10.0.0.2:{PORT + 2}",
        f"node-b:{PORT + 3}",
        f"fd00::2:{PORT + 4}",
        f"[::1]:{PORT + 5}",
        ":1",
        "x",
    ]
)
good = st.integers(2, 8).map(lambda n: ",".join(f"10.0.0.1:{LISTED + i}" for i in range(n)))


@seed(SEED)
@many
@given(
    backends,
    numbers,
    options_of(
        ips=[None, "127.0.0.1", CLOUD["PADDLE_TRAINERS"], "10.0.0.3", "10.0.0.3,10.0.0.4"],
        node_ip=[None, "10.0.0.2", "10.0.0.3"],
        started_port=ports,
        use_paddlecloud=[None, None, True, True, False],
        print_config=[True, False],
    ),
    st.one_of(
        st.just(CLOUD),
        st.just({**CLOUD, "PADDLE_TRAINERS": "10.0.0.2,node-b,fd00::2", "PADDLE_TRAINER_ID": "0"}),
        options_of(**{name: [value] for name, value in CLOUD.items()}),
        options_of(
            PADDLE_TRAINERS=[
                "10.0.0.1",
                "10.0.0.1,10.0.0.2,node-b",
                "fd00::2,fd00::3",
                "10.0.0.2,10.0.0.2",
                "10.0.0.2,",
                "",
            ],
            POD_IP=["10.0.0.2", "10.0.0.1", "fd00::2", "127.0.0.1", "it", ""],
            PADDLE_TRAINER_ID=["0", "1", " 1", "2", "-1", "-9", "x", ""],
            TRAINER_PORTS_NUM=["0", "1", "2", "4", "-2", "x", "", "9" * 30],
        ).map(lambda some: {**CLOUD, **some}),
    ),
    st.fixed_dictionaries(
        {"PADDLE_TRAINERS_NUM": st.sampled_from(["2"] * 6 + ["3", "0", "1", "x"])},
        optional={
            "PADDLE_PORT": st.sampled_from(
                [*[str(LISTED)] * 3, f" {LISTED:_}", str(PORT), "0", "70000", "-5", "x", "", "1.5"]
            ),
            "DISTRIBUTED_TRAINER_ENDPOINTS": st.one_of(
                good, good, st.lists(endpoints, max_size=4).map(",".join)
            ),
        },
    ),
    here,
)
def test_paddlecloud(
    oracle: Oracle, backend: str, n: int, options: Any, cloud: Any, more: Any, here: Any
) -> None:
    ask_both(oracle, backend, n, options, {**cloud, **more}, here)


# One each of what the tests above have found.
@pytest.mark.parametrize(
    ("options", "environ", "here"),
    [
        ({"use_paddlecloud": True}, {}, ["127.0.0.1"]),
        ({"use_paddlecloud": True}, {"PADDLE_TRAINERS_NUM": "2"}, ["127.0.0.1"]),
        ({"use_paddlecloud": True}, {**CLOUD_OF_TWO, "TRAINER_PORTS_NUM": None}, ["127.0.0.1"]),
        ({"use_paddlecloud": False}, CLOUD_OF_TWO, ["127.0.0.1"]),
        ({"ips": "10.0.0.1,10.0.0.2", "print_config": True}, CLOUD_OF_TWO, [None, "10.0.0.1"]),
        ({"ips": "10.0.0.1,10.0.0.2", "print_config": True}, {}, ["127.0.1.1", "10.0.0.2"]),
        ({}, {**CLOUD_OF_TWO, "PADDLE_PORT": ""}, ["127.0.0.1"]),
        ({}, {**CLOUD_OF_TWO, "PADDLE_PORT": "9000", "TRAINER_PORTS_NUM": "1"}, ["127.0.0.1"]),
        ({"started_port": PORT}, {**CLOUD_OF_TWO, "PADDLE_PORT": str(PORT)}, ["127.0.0.1"]),
        ({}, {**CLOUD_OF_TWO, "PADDLE_TRAINER_ID": "-1"}, ["127.0.0.1"]),
        ({}, {**CLOUD_OF_TWO, "PADDLE_TRAINER_ID": "2"}, ["127.0.0.1"]),
    ],
)
@pytest.mark.parametrize("backend", [*DEVICES])
def test_case_by_case(oracle: Oracle, backend: str, options: Any, environ: Any, here: Any) -> None:
    ask_both(oracle, backend, 2, options, {n: v for n, v in environ.items() if v is not None}, here)


# --- Which node this is ----------------------------------------------------------------------------------


def answer(
    options: dict[str, Any], environ: dict[str, str] | None = None, here: list[Any] | None = None
) -> Answer:
    asked = {
        **question(1, {"backend": "nccl", "started_port": PORT, **options}, environ or {}),
        "here": here,
    }
    (mine,) = settled(asked, lambda q: [ask_here(q, DEVICES["nccl"])])
    return mine


def variables(*args: Any) -> dict[str, str]:
    return dict(answer(*args)["rows"][0])


LIST = "10.0.0.1,10.0.0.2,fd00::3"


@pytest.mark.parametrize(
    ("here", "rank"),
    [
        (["10.0.0.2"], 1),
        # The name beats the interfaces, as with Paddle.
        (["10.0.0.2", "10.0.0.1", "127.0.0.1"], 1),
        (["127.0.1.1", "10.9.9.9", "10.0.0.2", "127.0.0.1", "::1"], 1),
        (["127.0.0.1", "fd00:0:0::3"], 2),
        ([None, "10.0.0.1"], 0),
    ],
)
def test_a_node_knows_itself_by_its_name_or_its_interfaces(here: list[str], rank: int) -> None:
    assert variables({"ips": LIST}, {}, here)["PADDLE_TRAINER_ID"] == str(rank)


@pytest.mark.parametrize(
    ("here", "text"),
    [
        (
            ["127.0.1.1", "10.9.9.9", "127.0.0.1"],
            "'127.0.1.1' is not in list\nthis machine has 10.9.9.9, 127.0.0.1, none of which is in the list; "
            "give this node's address in node_ip",
        ),
        (
            ["127.0.1.1", "10.0.0.2", "10.9.9.9", "fd00::3"],
            "'127.0.1.1' is not in list\nthis machine has 10.0.0.2, fd00::3, all of them in the list; give "
            "this node's address in node_ip",
        ),
        (
            [None, "10.9.9.9"],
            "'node-x' is not in list\nthis machine has 10.9.9.9, none of which is in the list; give "
            "this node's address in node_ip",
        ),
    ],
)
def test_a_node_that_is_in_doubt_is_never_the_first(here: list[str], text: str) -> None:
    kinds, said = answer({"ips": LIST}, {}, here)["error"]
    assert (kinds[0], said) == ("ValueError", text)


def test_without_a_name_that_helps_the_machine_itself_is_asked() -> None:
    own = rlaunch._lib.addresses()
    assert "127.0.0.1" in own
    (row,) = answer({"ips": f"192.0.2.77,{own[0]}"}, {}, ["192.0.2.99", *own])["rows"]
    assert dict(row)["PADDLE_TRAINER_ID"] == "1"


@pytest.mark.parametrize("ips", ["fd00::1,fd00::2", "[fd00::1],[fd00::2]", " [fd00::1] , fd00::2"])
@pytest.mark.parametrize("node_ip", ["fd00::2", "[fd00::2]", "fd00:0::2"])
def test_ipv6_addresses_bare_or_in_brackets(ips: str, node_ip: str) -> None:
    # Unlike Paddle, whose fd00::1:6070 cannot be distinguished from an address.
    env = variables({"ips": ips, "node_ip": node_ip})
    assert env["PADDLE_CURRENT_ENDPOINT"] == f"[fd00::2]:{PORT}"
    assert env["PADDLE_TRAINER_ENDPOINTS"] == f"[fd00::1]:{PORT},[fd00::2]:{PORT}"


def test_one_ipv6_address_in_brackets() -> None:
    for node_ip in (None, "::1", "[::1]"):
        assert variables({"ips": "[::1]", "node_ip": node_ip})["PADDLE_CURRENT_ENDPOINT"] == f"[::1]:{PORT}"


def test_whitespace_around_the_addresses_of_the_platform_is_stripped() -> None:
    # Unlike Paddle, for which it is part of them.
    cloud = {**CLOUD_OF_TWO, "PADDLE_TRAINERS": "10.0.0.1, 10.0.0.2 ", "POD_IP": " 10.0.0.2"}
    assert variables({}, cloud)["PADDLE_TRAINER_ENDPOINTS"] == f"10.0.0.1:{PORT},10.0.0.2:{PORT}"
    cloud["DISTRIBUTED_TRAINER_ENDPOINTS"] = f"10.0.0.1:1, 10.0.0.1:2, 10.0.0.2:{PORT}, 10.0.0.2:3"
    assert variables({}, cloud)["PADDLE_TRAINER_ENDPOINTS"] == f"10.0.0.1:1,10.0.0.2:{PORT}"


# --- Ports -----------------------------------------------------------------------------------------------


def test_only_this_nodes_ports_are_leased() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        busy, free = server.getsockname()[1], free_ports(1)
        cloud = {**CLOUD_OF_TWO, "TRAINER_PORTS_NUM": "1"}
        cloud["DISTRIBUTED_TRAINER_ENDPOINTS"] = f"10.0.0.1:{busy},10.0.0.2:{free}"
        rows, leases, *_ = rlaunch._lib.plan_spawn(1, {"backend": "nccl"}, cloud, 1)
        assert dict(rows[0])["PADDLE_CURRENT_ENDPOINT"] == f"10.0.0.2:{free}"
        # It is kept from sockets that set no option of reuse.
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("", free))
        leases.release()
        cloud["PADDLE_TRAINER_ID"] = "0"
        with pytest.raises(RuntimeError, match=f"port {busy} is in use by pid {os.getpid()} "):
            rlaunch._lib.plan_spawn(1, {"backend": "nccl"}, cloud, 1)
