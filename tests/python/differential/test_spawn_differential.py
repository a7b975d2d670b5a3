"""The environments of ranks: rlaunch's against those of the real Paddle, asked the same questions."""

from __future__ import annotations

import os
import socket
from typing import Any
from unittest import mock

import pytest
import rlaunch
from effort import cases
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from launching import free_ports
from oracle import SEED, Answer, Oracle, ask_here, imported, ours, paddle_with, question, settled
from oracle import without_ports as normal


def options_of(**values: list[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these, each with any of its values."""
    return st.fixed_dictionaries({}, optional={name: st.sampled_from(each) for name, each in values.items()})


many = settings(
    max_examples=cases(60, 300),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

# --- gloo -----------------------------------------------------------------------------------------------

ADDRESSES = [None, "127.0.0.1", " 127.0.0.1 ", "10.1.2.3", "localhost", "", ",", "a, b", ["127.0.0.1"], 7]
NUMBERS = ["1", " 1\n", "+1", "01", "2", "0", "-1", "1_0", "9" * 30]
NO_NUMBERS = ["", "x", "1.0", "0x1", "it's", 'a"b', "\u00e9"]
CLOUD = {
    "PADDLE_TRAINERS": "1.1.1.1",
    "POD_IP": "1.1.1.1",
    "PADDLE_TRAINER_ID": "0",
    "TRAINER_PORTS_NUM": "4",
}

gloo_options = options_of(
    backend=["auto", "gloo"],
    ips=ADDRESSES,
    cluster_node_ips=ADDRESSES,
    node_ip=[None, "127.0.0.1", "9.9.9.9", ""],
    started_port=[None, 0, 7000, -1, 99999, "x"],
    use_paddlecloud=[None, None, None, True, False, 0, ""],
    print_config=[True, False, None, 1, 0, "yes"],
    gpus=[None, "0,1", "", [0]],
    xpus=[None, "0", [0]],
    selected_devices=[None, "3", [0]],
    start_method=[None, "bogus"],
)
gloo_environ = options_of(
    FLAGS_START_PORT=["{}", "{}", " {}\t", "+{}", "0{}", "x", "", "1.5", "it's"],
    PADDLE_TRAINERS_NUM=["1", "1", "1", "1", *NUMBERS, *NO_NUMBERS],
    CUDA_VISIBLE_DEVICES=["", "0,1", "-1"],
    PADDLE_PORT=["9000"],
    DISTRIBUTED_TRAINER_ENDPOINTS=["1.1.1.1:1,2.2.2.2:2"],
)
cloud_environ = st.one_of(
    st.just({}),
    options_of(**{name: ["1", "1.1.1.1,2.2.2.2"] for name in CLOUD}),
    st.fixed_dictionaries({name: st.sampled_from(["1", "x", ""]) for name in CLOUD}),
)


def agree_on_gloo(oracle: Oracle, nprocs: int, options: dict[str, Any], environ: dict[str, str]) -> None:
    """Whether Paddle has been imported or not."""
    fixed = None
    if "{}" in environ.get("FLAGS_START_PORT", ""):
        fixed = free_ports(5)
        environ = {**environ, "FLAGS_START_PORT": environ["FLAGS_START_PORT"].format(fixed)}
    elif set(CLOUD) <= set(environ):
        fixed = 6070
    asked = question(nprocs, options, environ)
    answers = settled(asked, lambda q: oracle.ask(q, "paddle", "rlaunch"), lambda q: [ask_here(q)])
    real, beside_it, alone = (normal(answer, fixed) for answer in answers)
    assert beside_it == real
    assert alone == real


@many
@given(st.sampled_from([1, 2, 3, 5, 0, -2]), gloo_options, gloo_environ, cloud_environ)
def test_gloo(oracle: Oracle, nprocs: int, options: Any, environ: Any, cloud: Any) -> None:
    agree_on_gloo(oracle, nprocs, options, {**cloud, **environ})


# One each of what the test above, and the one of devices below, have found.
@pytest.mark.parametrize(
    ("options", "environ"),
    [
        ({}, {}),
        ({"started_port": 7000, "node_ip": "9.9.9.9", "gpus": [0], "xpus": [0], "selected_devices": [0]}, {}),
        ({"ips": "10.1.2.3"}, {"FLAGS_START_PORT": "{}"}),
        ({}, CLOUD),
        ({"ips": ["127.0.0.1"]}, {}),
        ({"ips": ["127.0.0.1"], "use_paddlecloud": True}, {}),
        ({"ips": "localhost", "cluster_node_ips": ["127.0.0.1"]}, {}),
        ({}, {"PADDLE_TRAINERS_NUM": "it's"}),
        ({}, {"PADDLE_TRAINERS_NUM": "\u00e9"}),
        ({}, {"PADDLE_TRAINERS_NUM": "1_0"}),
        ({}, {"PADDLE_TRAINERS_NUM": "9" * 30}),
        ({"print_config": True}, CLOUD),
        ({"print_config": 1}, {}),
        ({"print_config": True, "node_ip": ""}, {}),
        ({"print_config": True, "ips": ""}, {}),
    ],
)
def test_gloo_case_by_case(oracle: Oracle, options: dict[str, Any], environ: dict[str, str]) -> None:
    agree_on_gloo(oracle, 2, options, environ)


NAMES = [
    *("start_method", "ips", "gpus", "xpus", "print_config", "backend"),
    *("selected_devices", "started_port", "cluster_node_ips", "node_ip", "use_paddlecloud"),
    *("npus", "mlus", "bogus", "IPS", "it's"),
]


@many
@given(st.lists(st.sampled_from(NAMES), max_size=5, unique=True))
def test_the_names_of_options(oracle: Oracle, names: list[str]) -> None:
    asked = {"options": dict.fromkeys(names), "environ": {}}
    (real,) = oracle.ask(asked, "paddle")
    assert ask_here(asked) == real


@pytest.mark.parametrize("nprocs", [None, "2", 2.0, [2]])
@pytest.mark.parametrize("options", [{}, {"ips": "a,b"}])
def test_nprocs_that_is_no_number(oracle: Oracle, nprocs: Any, options: dict[str, Any]) -> None:
    asked = question(nprocs, {"backend": "gloo", **options}, {})
    real, beside_it = oracle.ask(asked, "paddle", "rlaunch")
    assert beside_it == real
    assert ask_here(asked) == real


BACKENDS = ["nccl", "bkcl", "flagcx", "cncl", "hccl", "mpi", "NCCL", "GLOO", "unknown", "", None, 1, ["gloo"]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_that_this_build_of_paddle_has_not(oracle: Oracle, backend: Any) -> None:
    real, beside_it = oracle.ask(question(2, {"backend": backend}, {}), "paddle", "rlaunch")
    assert real["error"][0][0] == "ValueError"
    assert beside_it == real


@pytest.mark.parametrize(
    ("backend", "paddles", "error", "text"),
    [
        # Unlike Paddle, which trips over what its CPU build has not.
        ("heter", "AttributeError", "ValueError", "backend must be one of 'gloo, nccl, bkcl'"),
        # Like Paddle, and with a way out.
        (
            "xccl",
            "IndexError",
            "IndexError",
            "list index out of range: backend 'xccl' needs a custom device, ",
        ),
    ],
)
def test_a_backend_that_paddle_cannot_serve(
    oracle: Oracle, backend: str, paddles: str, error: str, text: str
) -> None:
    asked = question(2, {"backend": backend}, {})
    real, beside_it = oracle.ask(asked, "paddle", "rlaunch")
    assert real["error"][0][0] == paddles
    for answer in (beside_it, ask_here(asked)):
        assert answer["error"][0][0] == error
        assert answer["error"][1].startswith(text)


def test_an_ipv6_address_stands_in_brackets() -> None:
    # Unlike Paddle, whose ::1:6070 cannot be distinguished from an address.
    (row,) = ask_here(question(1, {"ips": "::1"}, {}))["rows"]
    assert dict(row)["PADDLE_CURRENT_ENDPOINT"].startswith("[::1]:")


# --- Ports that cannot be had: unlike Paddle, which hands them out, and the ranks fail later --------------


def refusal(first_port: Any, nprocs: int = 1) -> tuple[str, str]:
    kind, text = ask_here(question(nprocs, {"backend": "gloo"}, {"FLAGS_START_PORT": str(first_port)}))[
        "error"
    ]
    return kind[0], text


@pytest.mark.parametrize("value", ["0", "-1", "65536", "9" * 30])
def test_a_start_port_that_is_no_port(value: str) -> None:
    assert refusal(value) == ("ValueError", f"{value} is not a port; give a number from 1 to 65535")


def test_ports_beyond_the_last_say_from_where() -> None:
    kind, text = refusal(65534, nprocs=3)
    assert kind == "RuntimeError"
    assert "65534" in text
    assert "3 ports" in text


def test_a_busy_start_port_is_refused_and_its_holder_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        kind, text = refusal(port)
    assert kind == "RuntimeError"
    assert text.startswith(f"port {port} is in use by pid {os.getpid()} (")


def test_a_port_is_free_again_once_the_plan_is_dropped() -> None:
    first = free_ports(3)
    environ = {"FLAGS_START_PORT": str(first)}
    rows, leases, *_ = rlaunch._lib.plan_spawn(3, {"backend": "gloo"}, environ, -1)
    assert [dict(row)["PADDLE_CURRENT_ENDPOINT"] for row in rows] == [
        f"127.0.0.1:{port}" for port in range(first, first + 3)
    ]
    for port in range(first, first + 3):
        assert refusal(port)[1].startswith(f"port {port} is in use")
    leases.release()
    assert "rows" in ask_here(question(3, {"backend": "gloo"}, environ))


# --- nccl, bkcl and xccl, on a Paddle that is made to believe in 4 devices of each kind ------------------

MACHINES = {
    "nccl": paddle_with(4, "gpu:0"),
    "bkcl": paddle_with(4, "xpu:0"),
    "xccl": paddle_with(4, "npu:0"),
}
LISTS = [
    *("0,1", "4,5,6,7", "7,4", "6,7", "2,3", "2,2", "9", "0", "-1", "", "0,1,2,3,4,5", ",", "0,", "0,x,2"),
    *("GPU-aa,GPU-bb", "GPU-bb", "MIG-aa,MIG-bb", "MIG-GPU-aa/1/0", "0,GPU-aa", "all", "none", "NoDevFiles"),
    *("01,1", "+1", "1gpu2", "0;1", "0,2,-1,1"),
]

device_options = options_of(
    gpus=[None, *LISTS, [0, 1]],
    xpus=[None, *LISTS, [0, 1]],
    selected_devices=[None, *LISTS],
    ips=[None, "127.0.0.1", " 127.0.0.1 ", "10.1.2.3"],
    cluster_node_ips=[None, "localhost"],
    node_ip=[None, "127.0.0.1", "10.1.2.3", "9.9.9.9"],
    started_port=[None, "{}"],
    use_paddlecloud=[None, False],
    print_config=[True, False],
)
device_environ = options_of(
    CUDA_VISIBLE_DEVICES=LISTS,
    XPU_VISIBLE_DEVICES=LISTS,
    FLAGS_selected_npus=LISTS,
    NPU_VISIBLE_DEVICES=["0"],
    FLAGS_selected_gpus=["3"],
    FLAGS_START_PORT=["7"],
    PADDLE_TRAINERS_NUM=["1", "2", "x"],
)


def agree_on_devices(
    oracle: Oracle, backend: str, nprocs: int, options: dict[str, Any], environ: dict[str, str]
) -> None:
    fixed = free_ports(5) if options.get("started_port") else 6070 if set(CLOUD) <= set(environ) else None
    given_port = {"started_port": fixed} if options.get("started_port") else {}
    asked = question(nprocs, {"backend": backend, **options, **given_port}, environ, devices=4)
    answers = settled(asked, lambda q: oracle.ask(q, "paddle"), lambda q: [ask_here(q, MACHINES[backend])])
    real, mine = (normal(answer, fixed) for answer in answers)
    if backend == "nccl":
        with_one_mig_device(real, environ)
        mine["logged"] = [line for line in mine["logged"] if not line.startswith("CUDA_VISIBLE_DEVICES ")]
    assert mine == real


def with_one_mig_device(real: Answer, environ: dict[str, str]) -> None:
    """CUDA shows a rank the first of several MIG devices: rlaunch cuts each list down to one."""
    listed = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    for row in real.get("rows", []):
        (flag, place), *_ = row
        if len(listed) > 1 and flag == "FLAGS_selected_gpus" and listed[int(place)].startswith("MIG-"):
            row[0][1] = "0"
            row.append(["CUDA_VISIBLE_DEVICES", listed[int(place)]])


@seed(SEED)
@settings(many, max_examples=cases(250, 2000), derandomize=False)
@given(st.sampled_from([*MACHINES]), st.sampled_from([1, 2, 2, 4, 5]), device_options, device_environ)
def test_devices(oracle: Oracle, backend: str, nprocs: int, options: Any, environ: Any) -> None:
    agree_on_devices(oracle, backend, nprocs, options, environ)


@pytest.mark.parametrize(
    ("backend", "nprocs", "options", "environ"),
    [
        ("nccl", 2, {"started_port": "{}"}, {}),
        ("nccl", 2, {"gpus": [0, 1]}, {}),
        ("nccl", 2, {}, {**CLOUD, "PADDLE_TRAINERS_NUM": "1"}),
        ("nccl", 5, {"node_ip": "9.9.9.9"}, {}),
        ("nccl", 2, {"node_ip": "9.9.9.9"}, {"PADDLE_TRAINERS_NUM": "x"}),
        ("nccl", 2, {}, {"PADDLE_TRAINERS_NUM": "x"}),
        ("nccl", 2, {"print_config": True, "gpus": "7,4"}, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}),
        ("bkcl", 1, {}, {"CUDA_VISIBLE_DEVICES": "2,3"}),
        ("xccl", 2, {"print_config": True}, {"FLAGS_selected_npus": "2,3,4"}),
        ("xccl", 2, {"print_config": True, "gpus": [0], "xpus": "7", "selected_devices": "9,9"}, {}),
        ("xccl", 5, {"started_port": "{}"}, {"NPU_VISIBLE_DEVICES": "0,1,2,3,4,5"}),
        ("xccl", 2, {}, {"CUDA_VISIBLE_DEVICES": "3,1", "FLAGS_selected_npus": "1,3"}),
        ("xccl", 1, {}, {"CUDA_VISIBLE_DEVICES": "3"}),
    ],
)
def test_devices_case_by_case(
    oracle: Oracle, backend: str, nprocs: int, options: dict[str, Any], environ: dict[str, str]
) -> None:
    agree_on_devices(oracle, backend, nprocs, options, environ)


CVD = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
XVD = {"XPU_VISIBLE_DEVICES": "2,3"}
FEW = (
    "the number of visible devices(4) is less than the number of spawn processes({}), please ensure that "
    "the correct `nprocs` argument is passed or the environment variable `{}` is correctly configured."
)
UNEQUAL = (
    "The number of selected devices(2) is not equal to the number of spawn processes(3), please ensure that "
    "the correct `nprocs` and `{}` arguments are passed."
)
MISSING = "The selected {} card {} cannot found in {} ({})."


# Seen with paddlepaddle 3.3.1 that was made to believe in four devices: what each rank is bound to.
@pytest.mark.parametrize(
    ("backend", "nprocs", "options", "environ", "expected"),
    [
        ("nccl", 2, {}, {}, "0 1"),
        ("nccl", 2, {}, CVD, "0 1"),
        ("nccl", 2, {"gpus": "6,7"}, CVD, "2 3"),
        ("nccl", 2, {"gpus": "7,4"}, CVD, "3 0"),
        ("nccl", 2, {"gpus": "0,1"}, CVD, MISSING.format("gpu", 0, "CUDA_VISIBLE_DEVICES", "4,5,6,7")),
        ("nccl", 2, {"gpus": "2,3"}, {}, "2 3"),
        ("nccl", 2, {"gpus": "2,9"}, {}, MISSING.format("gpu", 9, "CUDA_VISIBLE_DEVICES", "0,1,2,3")),
        ("nccl", 2, {"gpus": "2,2"}, {}, "2 2"),
        ("nccl", 3, {"gpus": "2,3"}, {}, UNEQUAL.format("gpus")),
        ("nccl", 8, {}, {}, FEW.format(8, "CUDA_VISIBLE_DEVICES")),
        ("nccl", 2, {"selected_devices": "1,2"}, {}, "1 2"),
        ("nccl", 2, {"xpus": "1,2"}, {}, "0 1"),
        ("nccl", 2, {}, {"CUDA_VISIBLE_DEVICES": ""}, "0 1"),
        ("nccl", 1, {}, {"CUDA_VISIBLE_DEVICES": "-1"}, "0"),
        ("nccl", 2, {}, {"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb"}, "0 1"),
        ("nccl", 2, {}, {"FLAGS_START_PORT": "7100"}, "0 1"),
        ("bkcl", 2, {}, {}, "0 1"),
        ("bkcl", 2, {}, XVD, "2 3"),
        ("bkcl", 2, {}, {**XVD, "CUDA_VISIBLE_DEVICES": "2,3"}, "0 1"),
        ("bkcl", 2, {"xpus": "8,9"}, XVD, MISSING.format("xpu", 8, "XPU_VISIBLE_DEVICES", "2,3")),
        ("bkcl", 5, {}, {}, FEW.format(5, "XPU_VISIBLE_DEVICES")),
        ("bkcl", 3, {"xpus": "1,2"}, {}, UNEQUAL.format("xpus")),
        ("xccl", 2, {}, {}, "0 1"),
        ("xccl", 2, {}, {"FLAGS_selected_npus": "2,3"}, "2 3"),
        ("xccl", 5, {}, {}, FEW.format(5, "FLAGS_selected_npus")),
        # Unlike Paddle, which takes whitespace at one step and refuses it at another: it is stripped.
        ("nccl", 2, {"gpus": "2, 3"}, {}, "2 3"),
        ("nccl", 2, {"gpus": " 2 ,3\t"}, {"CUDA_VISIBLE_DEVICES": "3 , 2"}, "1 0"),
        ("nccl", 2, {}, {"CUDA_VISIBLE_DEVICES": "4, 5"}, "0 1"),
        ("bkcl", 2, {"xpus": "3, 2"}, {"XPU_VISIBLE_DEVICES": " 2,3 "}, "3 2"),
        # Unlike Paddle, which makes one environment for no rank and does not use it.
        ("nccl", 0, {}, {}, ""),
    ],
)
def test_devices_as_seen(
    backend: str, nprocs: int, options: dict[str, Any], environ: dict[str, str], expected: str
) -> None:
    asked = question(nprocs, {"backend": backend, **options}, environ)

    def native(asked: dict[str, Any]) -> list[Answer]:
        try:
            rows, *_ = rlaunch._lib.plan_spawn(nprocs, asked["options"], environ, 4, "npu")
        except (ValueError, RuntimeError, AssertionError) as error:
            return [{"error": ["", str(error)]}]
        return [{"rows": rows}]

    for answer in settled(asked, native, lambda q: [ask_here(q, MACHINES[backend])]):
        if "error" in answer:
            assert answer["error"][1] == expected
            continue
        flag = "FLAGS_selected_" + {"nccl": "gpus", "bkcl": "xpus", "xccl": "npus"}[backend]
        rows = normal(answer, None)["rows"]
        endpoints = ",".join(f"127.0.0.1:p{rank}" for rank in range(nprocs))
        assert [[tuple(pair) for pair in row] for row in rows] == [
            [
                (flag, device),
                ("PADDLE_TRAINER_ID", str(rank)),
                ("PADDLE_CURRENT_ENDPOINT", f"127.0.0.1:p{rank}"),
                ("PADDLE_TRAINERS_NUM", str(nprocs)),
                ("PADDLE_TRAINER_ENDPOINTS", endpoints),
            ]
            for rank, device in enumerate(expected.split())
        ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,1", None),
        ("0,", None),
        ("", None),
        ("MIG-aa,MIG-bb", None),
        ("-1", "CUDA_VISIBLE_DEVICES -1: the driver shows no device"),
        ("0,2,-1,1", "CUDA_VISIBLE_DEVICES 0,2,-1,1: the driver shows only 0,2"),
        ("NoDevFiles", "CUDA_VISIBLE_DEVICES NoDevFiles: the driver shows no device"),
        ("all", "CUDA_VISIBLE_DEVICES all: CUDA does not support this value and hides every GPU"),
        (
            "0,0",
            "CUDA_VISIBLE_DEVICES 0,0: '0' occurs twice, and CUDA would find no device",
        ),
        (
            "0,x,2",
            "CUDA_VISIBLE_DEVICES 0,x,2: 'x' is not a device, and the driver would silently show only 0",
        ),
    ],
)
def test_lists_that_cuda_would_misread_warn(text: str, said: str | None) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": text}
    logged = ask_here(question(1, {"backend": "nccl"}, environ), MACHINES["nccl"])["logged"]
    assert len(logged) == (said is not None)
    assert said is None or logged[0].startswith(said)
    assert ask_here(question(1, {"backend": "gloo"}, environ))["logged"] == []


def test_each_rank_has_a_mig_device_of_its_own() -> None:
    def devices(**options: Any) -> list[tuple[str, str]]:
        listed = {"CUDA_VISIBLE_DEVICES": "MIG-aa,MIG-bb,MIG-cc"}
        rows, *_ = rlaunch._lib.plan_spawn(2, {"backend": "nccl", **options}, listed, 4)
        return [(dict(row)["FLAGS_selected_gpus"], dict(row)["CUDA_VISIBLE_DEVICES"]) for row in rows]

    assert devices() == [("0", "MIG-aa"), ("0", "MIG-bb")]
    assert devices(gpus="MIG-cc,MIG-aa") == [("0", "MIG-cc"), ("0", "MIG-aa")]


def test_without_paddle_the_system_and_the_variables_tell_of_custom_devices() -> None:
    def bound(environ: dict[str, str], nprocs: int = 2) -> list[tuple[str, str]]:
        rows, *_ = rlaunch._lib.plan_spawn(nprocs, {"backend": "xccl"}, environ, -1)
        return [row[0] for row in rows]

    flag = "FLAGS_selected_mlus"
    assert bound({flag: "3,4"}) == [(flag, "3"), (flag, "4")]
    with pytest.raises(RuntimeError, match=r"visible devices\(1\) .* `FLAGS_selected_npus`"):
        bound({"NPU_VISIBLE_DEVICES": "0,1", "FLAGS_selected_npus": "5"})
    with imported(None), mock.patch.object(rlaunch._lib, "devices_seen", return_value=("npu", 3)):
        assert (ours._get_default_backend(), ours._get_default_nprocs()) == ("xccl", 3)


def test_options_of_older_releases_are_refused_as_by_3_3_1(oracle: Oracle) -> None:
    for asked in (question(2, {"backend": "cncl"}, {}), *({"options": {n: "0"}, "environ": {}} for n in OLD)):
        real, beside_it = oracle.ask(asked, "paddle", "rlaunch")
        assert real["error"][0][0] == "ValueError"
        assert beside_it == ask_here(asked) == real


OLD = ("mlus", "npus")


def test_a_paddle_with_devices_decides_the_backend_and_the_number() -> None:
    machines = {**MACHINES, "gloo": paddle_with(0, "cpu")}
    for backend, paddle in machines.items():
        assert ask_here(question(1, {}, {}), paddle)["options"] == [["backend", backend]]
        with imported(paddle), mock.patch("os.cpu_count", return_value=7):
            assert ours._get_default_nprocs() == (7 if backend == "gloo" else 4)
    answer = ask_here(question(1, {}, {}), paddle_with(1, "tpu:0"))
    text = "`paddle.distributed.spawn` does not support parallel training on device `tpu:0` now."
    assert answer["error"] == [["RuntimeError", "Exception", "BaseException", "object"], text]
