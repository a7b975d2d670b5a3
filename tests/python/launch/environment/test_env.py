"""rlaunch.env against the real paddle.distributed, under torch's variables, and against broken ones."""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import rlaunch.env as ours
from env_oracle import Answer, RealPaddle, described, valued
from framework_stubs import environment, stub_torch, torch_rank
from hypothesis import given, settings
from hypothesis import strategies as st

ENDPOINTS = "PADDLE_TRAINER_ENDPOINTS"
BACKUP = "PADDLE_BACKUP_ENV_PATH"


@pytest.fixture(scope="module")
def paddle() -> Iterator[RealPaddle]:
    """One process for the whole module."""
    with RealPaddle() as real:
        yield real


# In the order in which rlaunch reads them.
NUMBERS = [
    "PADDLE_TRAINER_ID",
    "PADDLE_TRAINERS_NUM",
    "PADDLE_PG_TIMEOUT",
    "FLAGS_nccl_nrings",
    "FLAGS_selected_npus",
    "FLAGS_selected_gpus",
    "FLAGS_selected_xpus",
]


def broken_number(env: dict[str, str]) -> str | None:
    """The first variable that is not the integer it must be, in the order in which rlaunch reads them."""
    for name in NUMBERS:
        text = env.get(name, "0")
        try:
            int(text.split(",")[0] if name.startswith("FLAGS_selected_") else text)
        except ValueError:
            return name
    return None


def check(paddle: RealPaddle, env: dict[str, str], build: str = "cpu") -> None:
    """Ours gives the real one's answers, but for the differences that rlaunch.env documents."""
    real = paddle.ask(env, build)
    broken = broken_number(env)
    with environment(**env):
        functions = {name: valued(getattr(ours, name)) for name in ("get_rank", "get_world_size")}
        try:
            got: Any = ours.ParallelEnv()
        except Exception as error:
            failure = described(error)
        else:
            # A device's number may be broken until it is read; Paddle fails at once or, on CPU, never.
            failure = {} if build == "cpu" else valued(lambda: got.device_id)

    if real["constructed"] is not None:
        assert failure["error"] == real["constructed"]["error"]
        start = f"{broken}=" if broken else real["constructed"]["text"]
        assert failure["text"].startswith(start)
        return

    assert "error" not in failure
    assert functions == real["functions"]
    for name, expected in real["properties"].items():
        answer = valued(partial(getattr, got, name))
        if build == "cpu" and name in ("device_id", "dev_id"):
            assert "AttributeError" in expected["error"]
            check_device_on_cpu(answer, env)
        else:
            assert answer == expected, name


def check_device_on_cpu(answer: Answer, env: dict[str, str]) -> None:
    name = next((name for name in ("FLAGS_selected_gpus", "FLAGS_selected_xpus") if name in env), None)
    if name is None:
        assert answer == {"type": "int", "value": 0}
    elif broken_number({name: env[name]}):
        assert "ValueError" in answer["error"]
        assert answer["text"].startswith(f"{name}=")
    else:
        assert answer == {"type": "int", "value": int(env[name].split(",")[0])}


SELECTED = {"cpu": ["gpus", "xpus"], "gpu": ["gpus"], "xpu": ["xpus"], "npu": ["npus"]}

integers = st.one_of(
    st.integers(-3, 40).map(str), st.sampled_from([" 7 ", "+2", "1_0", "\u0663", "9" * 25, "007"])
)
not_integers = st.sampled_from(
    ["", " ", "x", "1.0", "0x1", "1,2", "None", "1 2", "--1", "9" * 5000, "\u00e9"]
)
texts = st.text(st.sampled_from("abc019.:,[] \t\u00e9/=\n"), max_size=30)
endpoints = st.one_of(texts, st.lists(st.sampled_from(["127.0.0.1:6170", "h:1", "[::1]:2"])).map(",".join))
torch_noise = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"], texts)
)


@st.composite
def paddle_environments(draw: st.DrawFn) -> tuple[str, dict[str, str]]:
    build = draw(st.sampled_from(sorted(SELECTED)))
    number = dict.fromkeys(NUMBERS[:3], integers)
    env: dict[str, str] = draw(st.fixed_dictionaries({}, optional={**number, ENDPOINTS: endpoints}))
    env |= draw(st.fixed_dictionaries({}, optional={"PADDLE_CURRENT_ENDPOINT": texts}))
    env |= draw(st.fixed_dictionaries({}, optional={"FLAGS_nccl_nrings": st.integers(-1, 10).map(str)}))
    for kind in SELECTED[build]:
        # A custom device's type can be known from its variable only.
        if build == "npu" or draw(st.booleans()):
            rest = draw(st.sampled_from(["", ",", ",3", ",x"]))
            env[f"FLAGS_selected_{kind}"] = draw(integers) + rest
    # At most one number is broken, so that there is one error to compare.
    broken = draw(st.none() | st.sampled_from(NUMBERS[:4] + [f"FLAGS_selected_{k}" for k in SELECTED[build]]))
    if broken:
        env["FLAGS_nccl_nrings"] = "1"
        env[broken] = draw(not_integers.filter(lambda t: not broken.startswith("FLAGS_sel") or t != "1,2"))
    if ours_speaks_paddle(env):
        env |= draw(torch_noise)
    return build, env


def ours_speaks_paddle(env: dict[str, str]) -> bool:
    return "PADDLE_TRAINER_ID" in env or "PADDLE_TRAINERS_NUM" in env


class TestAgainstPaddle:
    def test_has_every_public_property_and_no_other_public_name(self, paddle: RealPaddle) -> None:
        assert set(paddle.kinds.values()) == {"property"}
        assert len(paddle.kinds) >= 11
        public = {
            name: type(value).__name__ for name, value in vars(ours.ParallelEnv).items() if name[0] != "_"
        }
        assert public == paddle.kinds

    @settings(max_examples=400, deadline=None)
    @given(case=paddle_environments())
    def test_any_environment(self, paddle: RealPaddle, case: tuple[str, dict[str, str]]) -> None:
        build, env = case
        check(paddle, env, build)

    @pytest.mark.parametrize("build", sorted(SELECTED))
    def test_variables_that_spawn_sets_in_each_rank(self, paddle: RealPaddle, build: str) -> None:
        hosts = ["127.0.0.1:6070", "127.0.0.1:6071", "10.0.0.2:6070", "10.0.0.2:6071"]
        for rank, host in enumerate(hosts):
            env = {
                "PADDLE_TRAINER_ID": str(rank),
                "PADDLE_CURRENT_ENDPOINT": host,
                "PADDLE_TRAINERS_NUM": "4",
                ENDPOINTS: ",".join(hosts),
            }
            env |= (
                {"PADDLE_DISTRI_BACKEND": "gloo"}
                if build == "cpu"
                else {f"FLAGS_selected_{build}s": str(rank % 2)}
            )
            check(paddle, env, build)
            with environment(**env):
                got = ours.ParallelEnv()
            assert (got.rank, got.local_rank, got.nranks, got.current_endpoint) == (rank, rank, 4, host)
            assert got.trainer_endpoints == hosts
            assert got.device_id == got.dev_id == (0 if build == "cpu" else rank % 2)
            assert got.device_type == ("npu" if build == "npu" else "")

    def test_an_empty_environment(self, paddle: RealPaddle) -> None:
        check(paddle, {})
        with environment():
            got = ours.ParallelEnv()
            assert (ours.get_rank(), ours.get_world_size()) == (0, 1)
        assert {name: getattr(got, name) for name in paddle.kinds} == {
            "rank": 0,
            "local_rank": 0,
            "world_size": 1,
            "nranks": 1,
            "device_id": 0,
            "dev_id": 0,
            "device_type": "",
            "current_endpoint": "",
            "trainer_endpoints": [""],
            "nrings": 1,
            "pg_timeout": 1800000,
        }

    @pytest.mark.parametrize("variable", [None, "", "a:1,b:2"])
    @pytest.mark.parametrize(
        "stored", [{ENDPOINTS: "c:3,d:4"}, {ENDPOINTS: ""}, {"PADDLE_TRAINER_ID": "5"}, {}]
    )
    def test_backup_file(
        self, paddle: RealPaddle, tmp_path: Path, stored: dict[str, str], variable: str | None
    ) -> None:
        path = tmp_path / "backup.json"
        path.write_text(json.dumps(stored))
        check(paddle, {BACKUP: str(path)} | ({} if variable is None else {ENDPOINTS: variable}))

    @pytest.mark.parametrize(
        ("rank", "ranks"), [(0, [0, 1]), (1, [0, 1]), (1, [3, 5, 7]), (-1, [0, 1]), (0, [4])]
    )
    def test_groups(self, paddle: RealPaddle, rank: int, ranks: list[int]) -> None:
        env = {"PADDLE_TRAINER_ID": "3", "PADDLE_TRAINERS_NUM": "8"}
        real = paddle.ask(env, group=[rank, 9, ranks])["functions"]
        group = types.SimpleNamespace(
            rank=rank, world_size=len(ranks) if rank >= 0 else -1, nranks=len(ranks), ranks=ranks
        )
        with environment(**env):
            assert valued(lambda: ours.get_rank(group)) == real["get_rank"]
            assert valued(lambda: ours.get_world_size(group)) == real["get_world_size"]

    def test_the_snapshot_does_not_follow_the_environment_but_the_functions_do(self) -> None:
        with environment(PADDLE_TRAINER_ID="1", PADDLE_TRAINERS_NUM="2", FLAGS_selected_gpus="3"):
            got = ours.ParallelEnv()
            os.environ.update(PADDLE_TRAINER_ID="5", PADDLE_TRAINERS_NUM="8", FLAGS_selected_gpus="7")
            assert (got.rank, got.world_size, got.device_id) == (1, 2, 3)
            assert (ours.get_rank(), ours.get_world_size()) == (5, 8)


class TestDevices:
    """Without a framework, the variables alone tell the device."""

    @pytest.mark.parametrize(
        ("flags", "device_type", "device_id"),
        [
            ({"gpus": "2"}, "", 2),
            ({"xpus": "3,4"}, "", 3),
            ({"gpus": "1", "xpus": "2"}, "", 1),
            ({"npus": "5"}, "npu", 5),
            ({"npus": "5", "gpus": "1"}, "npu", 5),
            ({"npus": "5", "mlus": "6"}, "mlu", 6),
            ({"custom_cpus": "1"}, "custom_cpu", 1),
            ({"cpus": "4"}, "", 0),
            ({"devices": "4"}, "", 0),
            ({"s": "4", "npu": "3"}, "", 0),
        ],
    )
    def test_type_and_id(self, flags: dict[str, str], device_type: str, device_id: int) -> None:
        with environment(**{f"FLAGS_selected_{kind}": value for kind, value in flags.items()}):
            got = ours.ParallelEnv()
        assert (got.device_type, got.device_id, got.dev_id) == (device_type, device_id, device_id)


class TestTorchVariables:
    @pytest.mark.parametrize("rank", range(4))
    def test_each_rank(self, rank: int) -> None:
        with environment(**torch_rank(rank)):
            got = ours.ParallelEnv()
            assert (ours.get_rank(), ours.get_world_size()) == (rank, 4)
        assert (got.rank, got.world_size, got.nranks) == (rank, 4, 4)
        assert (got.local_rank, got.device_id, got.dev_id) == (rank % 2,) * 3
        assert (got.device_type, got.nrings, got.pg_timeout) == ("", 1, 1800000)
        assert got.trainer_endpoints == ["node0:40819"]
        assert got.current_endpoint == ("node0:40819" if rank == 0 else "")

    def test_defaults(self) -> None:
        with environment(RANK="5"):
            got = ours.ParallelEnv()
        assert (got.rank, got.world_size, got.local_rank, got.device_id) == (5, 1, 5, 0)
        assert (got.trainer_endpoints, got.current_endpoint) == ([""], "")
        with environment(WORLD_SIZE="6"):
            got = ours.ParallelEnv()
        assert (got.rank, got.world_size, got.local_rank, got.device_id) == (0, 6, 0, 0)

    def test_local_rank_alone_is_no_torch_environment(self) -> None:
        with environment(LOCAL_RANK="3", MASTER_ADDR="node0", MASTER_PORT="1"):
            got = ours.ParallelEnv()
        assert (got.rank, got.local_rank, got.device_id, got.trainer_endpoints) == (0, 0, 0, [""])

    @pytest.mark.parametrize(
        ("address", "port", "endpoint"),
        [
            ("10.0.0.1", "29500", "10.0.0.1:29500"),
            ("fe80::1", "29500", "[fe80::1]:29500"),
            ("[::1]", "29500", "[::1]:29500"),
            ("", "29500", ""),
            ("node0", "", ""),
            ("node0", None, ""),
        ],
    )
    def test_the_masters_endpoint(self, address: str, port: str | None, endpoint: str) -> None:
        with environment(RANK="0", MASTER_ADDR=address, **({} if port is None else {"MASTER_PORT": port})):
            got = ours.ParallelEnv()
        assert (got.trainer_endpoints, got.current_endpoint) == ([endpoint], endpoint)

    @pytest.mark.parametrize(
        ("paddle_variables", "rank", "world_size"),
        [
            ({"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2"}, 1, 2),
            ({"PADDLE_TRAINER_ID": "1"}, 1, 1),
            ({"PADDLE_TRAINERS_NUM": "2"}, 0, 2),
        ],
    )
    def test_paddles_variables_win_as_a_whole(
        self, paddle_variables: dict[str, str], rank: int, world_size: int
    ) -> None:
        with environment(**torch_rank(3, **paddle_variables)):
            got = ours.ParallelEnv()
            assert (ours.get_rank(), ours.get_world_size()) == (rank, world_size)
        assert (got.rank, got.world_size, got.local_rank, got.device_id) == (rank, world_size, rank, 0)
        assert (got.trainer_endpoints, got.current_endpoint) == ([""], "")

    def test_paddles_endpoints_and_devices_are_known_better(self) -> None:
        more = {ENDPOINTS: "a:1,b:2", "PADDLE_CURRENT_ENDPOINT": "b:2", "FLAGS_selected_gpus": "6"}
        with environment(**torch_rank(0, **more)):
            got = ours.ParallelEnv()
        assert (got.rank, got.world_size, got.local_rank, got.device_id) == (0, 4, 0, 6)
        assert (got.trainer_endpoints, got.current_endpoint) == (["a:1", "b:2"], "b:2")

    @pytest.mark.parametrize(("member", "rank", "size"), [(True, 1, 2), (False, -1, -1)])
    def test_groups(self, monkeypatch: pytest.MonkeyPatch, member: bool, rank: int, size: int) -> None:
        torch = stub_torch(monkeypatch)
        group = types.SimpleNamespace(rank=lambda: 1, size=lambda: 2) if member else -100
        assert torch.GroupMember.NON_GROUP_MEMBER == -100
        assert (ours.get_rank(group), ours.get_world_size(group)) == (rank, size)


class TestErrors:
    @pytest.mark.parametrize("value", ["", "two", "1.5", "1,2"])
    @pytest.mark.parametrize(
        ("name", "read"),
        [
            ("PADDLE_TRAINER_ID", ours.ParallelEnv),
            ("PADDLE_TRAINER_ID", ours.get_rank),
            ("PADDLE_TRAINERS_NUM", ours.ParallelEnv),
            ("PADDLE_TRAINERS_NUM", ours.get_world_size),
            ("PADDLE_PG_TIMEOUT", ours.ParallelEnv),
            ("FLAGS_nccl_nrings", ours.ParallelEnv),
            ("RANK", ours.ParallelEnv),
            ("RANK", ours.get_rank),
            ("WORLD_SIZE", ours.ParallelEnv),
            ("WORLD_SIZE", ours.get_world_size),
        ],
    )
    def test_not_an_integer(self, name: str, value: str, read: Callable[[], Any]) -> None:
        with environment(**{name: value}), pytest.raises(ValueError, match="unset it") as caught:
            read()
        assert str(caught.value).startswith(f"{name}={value!r}: it is not an integer.")
        assert caught.value.__suppress_context__ or caught.value.__context__ is None

    def test_torchs_local_rank(self) -> None:
        with environment(RANK="0", LOCAL_RANK="x"), pytest.raises(ValueError, match=r"^LOCAL_RANK='x'"):
            ours.ParallelEnv()

    @pytest.mark.parametrize(
        ("value", "what"), [("x", "it"), ("GPU-aa,GPU-bb", "its first item"), (",1", "its first item")]
    )
    def test_devices_fail_only_when_read(self, value: str, what: str) -> None:
        with environment(FLAGS_selected_gpus=value):
            got = ours.ParallelEnv()
        for read in (lambda: got.device_id, lambda: got.dev_id):
            with pytest.raises(ValueError, match="unset it") as caught:
                read()
            assert str(caught.value).startswith(f"FLAGS_selected_gpus={value!r}: {what} is not an integer.")

    def test_a_long_value_is_cut(self) -> None:
        with (
            environment(PADDLE_TRAINER_ID="9" * 100_000),
            pytest.raises(ValueError, match=r"9\.\.\.'") as caught,
        ):
            ours.get_rank()
        assert len(str(caught.value)) < 400

    @pytest.mark.parametrize("value", ["0", "-1", "9"])
    def test_nrings_out_of_range(self, value: str) -> None:
        way_out = f"FLAGS_nccl_nrings={value}: set it to 1 to 8"
        with environment(FLAGS_nccl_nrings=value), pytest.raises(AssertionError, match=way_out):
            ours.ParallelEnv()

    def test_backup_file_missing(self, tmp_path: Path) -> None:
        path = str(tmp_path / "gone.json")
        with environment(**{BACKUP: path}), pytest.raises(FileNotFoundError) as caught:
            ours.ParallelEnv()
        assert caught.value.filename == path
        assert path in str(caught.value)
        assert BACKUP in str(caught.value)
        assert f"set {ENDPOINTS}" in str(caught.value)

    def test_backup_file_is_a_directory(self, tmp_path: Path) -> None:
        with environment(**{BACKUP: str(tmp_path)}), pytest.raises(IsADirectoryError, match=BACKUP):
            ours.ParallelEnv()

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"{bad", "is not JSON"),
            (b"", "is not JSON"),
            (b"\xff\xfe\x00", "is not JSON"),
            (b"[" * 200_000, "is not JSON"),
            (b"[]", "holds a list"),
            (b'{"PADDLE_TRAINER_ENDPOINTS": 3}', f"{ENDPOINTS} is not a string"),
            (b'{"PADDLE_TRAINER_ENDPOINTS": null}', f"{ENDPOINTS} is not a string"),
        ],
    )
    def test_backup_file_broken(self, tmp_path: Path, content: bytes, says: str) -> None:
        path = tmp_path / "backup.json"
        path.write_bytes(content)
        with environment(**{BACKUP: str(path)}), pytest.raises(ValueError, match=BACKUP) as caught:
            ours.ParallelEnv()
        assert says in str(caught.value)
        assert str(path) in str(caught.value)

    def test_backup_file_is_not_opened_when_it_is_not_needed(self, tmp_path: Path) -> None:
        with environment(**{BACKUP: str(tmp_path / "gone.json"), ENDPOINTS: "a:1"}):
            assert ours.ParallelEnv().trainer_endpoints == ["a:1"]
            del os.environ[ENDPOINTS]
            assert (ours.get_rank(), ours.get_world_size()) == (0, 1)

    @pytest.mark.parametrize("group", [0, -100, "world", object()])
    def test_not_a_group(self, group: object, monkeypatch: pytest.MonkeyPatch) -> None:
        # To torch, which another test may have imported, -100 is a group that this process is not in.
        monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
        with pytest.raises(TypeError, match=r"get_rank\(\) takes None or a group object .* no rank"):
            ours.get_rank(group)
        with pytest.raises(TypeError, match=r"get_world_size\(\) .* no world_size or nranks or size"):
            ours.get_world_size(group)
