"""The environment of ranks of `python -m rlaunch.run`. The tables were captured from torchrun 2.15."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launching import TALKING, await_line, free_ports
from torch_launching import TELL, TorchPlace

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
PORT = r"\d{4,5}"
OF_ALL = {
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "MASTER_PORT": PORT,
    "ROLE_NAME": "default",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_RUN_ID": UUID,
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}


def variables(rank: int, size: int, run_id: str = UUID, log_dir: str = "LOGS", **more: str) -> dict[str, str]:
    """Patterns of all that torchrun tells the ranks of a node that is alone, and PYTHONFAULTHANDLER."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank}
    sizes = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "ROLE_WORLD_SIZE": size}
    return {
        **OF_ALL,
        **{name: str(number) for name, number in {**numbers, **sizes}.items()},
        "MASTER_ADDR": "localhost",
        "PYTHONFAULTHANDLER": "1",
        "TORCHELASTIC_ERROR_FILE": rf"{log_dir}/{run_id}_[a-z0-9_]{{8}}/attempt_0/{rank}/error\.json",
        "TORCHELASTIC_RUN_ID": run_id,
        **({"OMP_NUM_THREADS": "1"} if size > 1 else {}),
        **more,
    }


ALONE = variables(0, 1)
PAIR = [variables(0, 2), variables(1, 2)]
JOB = ["--rdzv-backend=c10d", "--rdzv-id=JOB", "--local-addr=127.0.0.1", "--role=trainer", "--max-restarts=3"]
OF_JOB = {"MASTER_ADDR": "127.0.0.1", "ROLE_NAME": "trainer", "TORCHELASTIC_MAX_RESTARTS": "3"}
STATIC = ["--master-addr=127.0.0.1", "--master-port={port}"]
VIRTUAL = ["--nproc-per-node=2", "--virtual-local-rank"]


def virtual(*devices: str, name: str = "CUDA_VISIBLE_DEVICES") -> list[dict[str, str]]:
    seen = [{"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": device, name: device} for device in devices]
    return [{**pair, **more} for pair, more in zip(PAIR, seen, strict=True)]


@pytest.fixture
def place(tmp_path: Path) -> TorchPlace:
    return TorchPlace(tmp_path)


def new(place: TorchPlace, about: dict[str, Any], env: dict[str, str]) -> dict[str, str]:
    """The variables of a rank that the launcher did not have, without rlaunch's own; it has all others."""
    has = about["env"]
    assert all(name in has for name in env)
    return {n: v for n, v in has.items() if env.get(n) != v and not n.startswith("RLAUNCH_")}


@pytest.mark.parametrize(
    ("options", "given", "expected"),
    [
        ([], {}, [ALONE]),
        (["--standalone"], {}, [ALONE]),
        (["--rdzv-id=lost"], {}, [ALONE]),
        (["--nproc-per-node=2"], {}, PAIR),
        (["--run-path", "--nproc-per-node=2"], {}, PAIR),
        (JOB, {}, [variables(0, 1, "JOB", **OF_JOB)]),
        (STATIC, {}, [variables(0, 1, "none", MASTER_ADDR="127.0.0.1", MASTER_PORT="{port}")]),
        ([], {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, [{**ALONE, "TORCH_NCCL_ASYNC_ERROR_HANDLING": None}]),
        (["--signals-to-handle=SIGTERM"], {}, [{**ALONE, "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM"}]),
        (["--log-dir=/dev/null"], {}, [{**ALONE, "TORCHELASTIC_ERROR_FILE": ""}]),
        (VIRTUAL, {}, virtual("0", "1")),
        (VIRTUAL, {"CUDA_VISIBLE_DEVICES": "5,7"}, virtual("5", "7")),
        (VIRTUAL, {"HIP_VISIBLE_DEVICES": "3,GPU-a"}, virtual("3", "GPU-a", name="HIP_VISIBLE_DEVICES")),
        (["--nproc-per-node=2"], {"CUDA_VISIBLE_DEVICES": "5,7"}, PAIR),
    ],
)
def test_ranks_have_the_variables_that_torchrun_sets(
    place: TorchPlace, options: list[str], given: dict[str, str], expected: list[dict[str, str | None]]
) -> None:
    port = str(free_ports(1))
    # Python may change LC_CTYPE of an environment without a locale.
    env = place.environment(
        **{"LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": None, "CUDA_VISIBLE_DEVICES": None, **given}
    )
    log_dir = ["--log-dir=LOGS"] if not any("log-dir" in option for option in options) else []
    script = [str(place.folder)] if "--run-path" in options else []
    (place.folder / "tell.py").write_text(TELL)
    options = [option.format(port=port) for option in [*options, "--omp-compat"]]
    place.well(*options, *log_dir, "/".join([*script, "tell.py"]), env=env)
    seen = [new(place, about, env) for about in place.seen()]
    assert len(seen) == len(expected)
    for has, patterns in zip(seen, expected, strict=True):
        wanted = {name: text for name, text in patterns.items() if text is not None}
        assert has.keys() == wanted.keys()
        for name, pattern in wanted.items():
            text = has[name].replace(f"{place.folder}/", "")
            assert re.fullmatch(pattern.replace("{port}", port), text), (name, text)
    # One job, one store.
    assert len({(t["MASTER_PORT"], t["TORCHELASTIC_RUN_ID"]) for t in seen}) == 1


def test_a_device_list_that_is_too_short_for_virtual_ranks_is_refused(place: TorchPlace) -> None:
    place.script("tell('ran')")
    ended = place.run(*VIRTUAL, "train.py", env=place.environment(CUDA_VISIBLE_DEVICES="4"))
    assert ended.status == 2
    (line,) = ended.error_lines()
    assert "CUDA_VISIBLE_DEVICES" in line
    assert "local_rank 1" in line
    assert not place.names() & {"ran.0", "ran.1"}


@pytest.mark.parametrize(
    ("options", "given", "cpus", "expected", "said"),
    [
        (["--nproc-per-node=2"], "7", {0}, "7", False),
        (["--nproc-per-node=2"], "", {0}, "", False),
        ([], None, {0}, None, False),
        (["--nproc-per-node=3"], None, {0}, "1", True),
        (["--nproc-per-node=2"], None, None, "1", True),
        (["--nproc-per-node=2", "--share-cpus"], None, None, "share", True),
        (["--nproc-per-node=2", "--share-cpus"], "7", None, "7", False),
        (["--nproc-per-node=2", "--omp-compat"], None, None, "1", False),
    ],
)
def test_openmp_gets_one_thread_or_the_ranks_share_of_the_cpus(
    place: TorchPlace, options: list[str], given: str | None, cpus: set[int] | None, expected: str, said: bool
) -> None:
    cpus = cpus or os.sched_getaffinity(0)
    (place.folder / "tell.py").write_text(TELL)
    ended = place.well(
        *options,
        "tell.py",
        env=place.environment(OMP_NUM_THREADS=given),
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    )
    if expected == "share":
        expected = str(max(1, len(cpus) // 2))
    seen = place.seen()
    assert [about["env"].get("OMP_NUM_THREADS") for about in seen] == [expected] * len(seen)
    lines = ended.stderr.splitlines()
    assert len(lines) == said
    share = f"OMP_NUM_THREADS={expected} for each rank: {len(cpus)} allowed CPU"
    torchruns = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default"
    assert not said or (share if "--share-cpus" in options else torchruns) in lines[0]


def test_a_rank_leads_a_session_and_inherits_the_rest_from_the_launcher(place: TorchPlace) -> None:
    extra = os.open(place.folder, os.O_RDONLY)
    try:
        with open(place.folder / "input", "w+") as stdin:
            seen = place.tell("--nproc-per-node=2", stdin=stdin, pass_fds=[extra])
    finally:
        os.close(extra)
    expected = (place.folder / "input").stat()
    for about in seen:
        assert about["pid"] == about["group"] == about["session"]
        assert about["cwd"] == str(place.folder)
        assert about["stdin"] == [expected.st_dev, expected.st_ino]
        # The lifeline is the fourth; nothing of the launcher's, nothing of its caller's.
        assert about["fds"][:3] == [0, 1, 2]
        assert len(about["fds"]) == 4
        assert extra not in about["fds"]
    assert len({about["ppid"] for about in seen}) == 1


EXE = sys.executable


@pytest.mark.parametrize(
    ("words", "env", "command", "argv"),
    [
        (["tell.py", "-a", "--x=1"], {}, [EXE, "-u", "tell.py", "-a", "--x=1"], ["tell.py", "-a", "--x=1"]),
        (["-m", "pack.tell", "a"], {}, [EXE, "-u", "-m", "pack.tell", "a"], ["{folder}/pack/tell.py", "a"]),
        (["--pass-local-rank", "tell.py", "a"], {}, None, ["tell.py", "--local-rank=0", "a"]),
        (["-m", "--pass-local-rank", "pack.tell"], {}, None, ["{folder}/pack/tell.py", "--local-rank=0"]),
        (["--no-python", EXE, "tell.py", "a"], {}, [EXE, "tell.py", "a"], ["tell.py", "a"]),
        (
            ["--no-python", "mine", "a"],
            {"PATH": "{folder}/bin:/usr/bin:/bin"},
            None,
            ["{folder}/tell.py", "a"],
        ),
        (["--run-path", "{folder}/tell.py", "a"], {}, None, ["{folder}/tell.py", "a"]),
        (["--run-path", "--no-python", "{folder}/tell.py"], {}, None, ["{folder}/tell.py"]),
        (
            ["tell.py"],
            {"PYTHON_EXEC": "{folder}/bin/mypython"},
            [EXE, "-X", "dev", "-u", "tell.py"],
            ["tell.py"],
        ),
        (["tell.py", "--", "-x"], {}, None, ["tell.py", "-x"]),
        (
            ["tell.py", "${local_rank}", "$$x", "$other ${other} $"],
            {},
            None,
            ["tell.py", "0", "$x", "$other ${other} $"],
        ),
        (["--no-python", "bin/mypython", "tell.py", "--at=$local_rank"], {}, None, ["tell.py", "--at=0"]),
    ],
)
def test_the_command_of_a_rank(
    place: TorchPlace, words: list[str], env: dict[str, str], command: list[str] | None, argv: list[str]
) -> None:
    folder = str(place.folder)
    for name in ("bin", "pack"):
        (place.folder / name).mkdir()
    (place.folder / "pack/__init__.py").touch()
    for name in ("tell.py", "pack/tell.py"):
        (place.folder / name).write_text(TELL)
    for name, body in (
        ("mine", f'exec "{EXE}" "{folder}/tell.py" "$@"'),
        ("mypython", f'exec "{EXE}" -X dev "$@"'),
    ):
        (place.folder / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (place.folder / "bin" / name).chmod(0o755)
    put = lambda text: text.replace("{folder}", folder)  # noqa: E731
    place.well(*map(put, words), env=place.environment(**{name: put(text) for name, text in env.items()}))
    (about,) = place.seen()
    assert about["argv"] == [put(arg) for arg in argv]
    assert command is None or about["command"] == command
    assert about["main"][0] == "__main__"


def test_every_rank_finds_its_own_number_in_its_arguments(place: TorchPlace) -> None:
    (place.folder / "tell.py").write_text(TELL)
    place.well(
        "--nproc-per-node=2", "--virtual-local-rank", "--pass-local-rank", "tell.py", "at-${local_rank}"
    )
    # The real number, as in torchrun: only LOCAL_RANK is virtual.
    assert [about["argv"][1:] for about in place.seen()] == [[f"--local-rank={n}", f"at-{n}"] for n in (0, 1)]


def test_arguments_and_variables_may_be_no_text(place: TorchPlace) -> None:
    (place.folder / "tell.py").write_text(TELL)
    odd = b"\xff\xfe ${local_rank}"
    env: dict[bytes, bytes] = {os.fsencode(n): os.fsencode(v) for n, v in place.environment().items()}
    place.well("tell.py", odd, env={**env, b"ODD": b"\xfd"})
    (about,) = place.seen()
    assert os.fsencode(about["argv"][1]) == b"\xff\xfe 0"
    assert os.fsencode(about["env"]["ODD"]) == b"\xfd"


NEST = f"""
import os, subprocess, sys, time
rank = int(os.environ["RANK"])
{TALKING}
sys.exit(subprocess.call([sys.executable, *sys.argv[1:]], env=dict(os.environ, **{{"OUTER": str(rank)}})))
"""


def nest(place: TorchPlace, outer: list[str], inner: list[str], env: dict[str, str]) -> None:
    (place.folder / "nest.py").write_text(NEST)
    (place.folder / "tell.py").write_text(TELL)
    place.well(*outer, "nest.py", *inner, "tell.py", env=env)


def test_a_launch_inside_a_rank_is_a_job_of_its_own(place: TorchPlace) -> None:
    env = place.environment(OMP_NUM_THREADS=None)
    outer = ["--rdzv-backend=c10d", "--rdzv-id=OUT", "--role=out", "--max-restarts=2", "--log-dir=outer"]
    nest(place, outer, ["-m", "rlaunch.run", "--nproc-per-node=2", "--log-dir=inner", "--omp-compat"], env)
    for about, patterns in zip(place.seen(), PAIR, strict=True):
        for name, pattern in patterns.items():
            text = about["env"][name].replace(f"{place.folder}/inner", "LOGS")
            assert re.fullmatch(pattern, text), (name, text)


def test_a_launch_inside_a_rank_writes_its_cause_to_that_ranks_error_file(place: TorchPlace) -> None:
    place.script("raise ValueError('deep inside')")
    (place.folder / "nest.py").write_text(NEST)
    ended = place.run("--log-dir=outer", "nest.py", "-m", "rlaunch.run", "--log-dir=inner", "train.py")
    assert ended.status == 1
    own = (place.run_folder("outer") / "attempt_0/0/error.json").read_text()
    assert "deep inside" in own
    assert '"errorCode":1' in own.replace(" ", "")
    outer_report = ended.stderr[ended.stderr.rindex("nest.py FAILED") :]
    assert "ValueError: deep inside" in outer_report


INNER = """
import json, os
env = os.environ
with open("inner." + env["PADDLE_TRAINER_ID"], "w") as file:
    json.dump({name: env.get(name) for name in ("PADDLE_TRAINERS_NUM", "RANK", "MASTER_PORT", "OUTER")}, file)
"""


def test_a_launch_of_paddles_kind_inside_a_rank_is_a_job_of_its_own(place: TorchPlace) -> None:
    (place.folder / "nest.py").write_text(NEST)
    (place.folder / "inner.py").write_text(INNER)
    place.well(
        "--log-dir=outer", "nest.py", "-m", "rlaunch", "--nproc_per_node=2", "--log_dir=inner", "inner.py"
    )
    expected = {"PADDLE_TRAINERS_NUM": "2", "RANK": None, "MASTER_PORT": None, "OUTER": "0"}
    assert [json.loads(place.text(f"inner.{rank}")) for rank in (0, 1)] == [expected] * 2


def test_the_console_script_is_the_same_program(place: TorchPlace) -> None:
    (place.folder / "tell.py").write_text(TELL)
    script = Path(sys.executable).parent / "rlaunch-run"
    done = subprocess.run(
        [script, "tell.py"],
        cwd=place.folder,
        env=place.environment(),
        capture_output=True,
        timeout=40,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(place.seen()) == 1


# Connections to the store, each answered before the next is made; then more, for which there may be no room.
CONNECT = """
import resource, socket, struct
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
tell("limit", soft)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
ping = b"\\0" + struct.pack("<I", 0x3C85F7CE) + bytes([13]) + struct.pack("<I", 7)
def connect():
    client = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timeout=30)
    client.sendall(ping)
    return client
clients = []
for _ in range(int(sys.argv[1])):
    clients.append(connect())
    assert clients[-1].recv(4) == struct.pack("<I", 7)
more = [connect() for _ in range(int(sys.argv[2]))]
await_file("go")
clients.clear()
assert all(client.recv(4) == struct.pack("<I", 7) for client in more)
"""


def few_files(soft: int, hard: int) -> Any:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_soft_limit_of_open_files_is_no_limit_on_connections_to_the_store(place: TorchPlace) -> None:
    place.script(CONNECT)
    (place.folder / "go").touch()
    ended = place.well("--nproc-per-node=2", "train.py", "150", "0", preexec_fn=few_files(64, 1024))
    assert [(place.folder / f"limit.{rank}").read_text() for rank in range(2)] == ["64", "64"]
    assert "the store has no room" not in ended.stderr


def test_a_client_that_waits_for_a_full_store_is_reported_once(place: TorchPlace) -> None:
    place.script(CONNECT)
    with place.start("train.py", "16", "8", preexec_fn=few_files(64, 64)) as launcher:
        line = await_line(launcher.stderr, b"the store has no room")
        assert b"beside its 16 connections" in line
        assert b"ulimit -Hn" in line
        (place.folder / "go").touch()
        ended = place.wait(launcher)
    assert ended.status == 0, ended.stderr
    assert "the store has no room" not in ended.stderr


def test_a_loopback_endpoint_is_warned_of_once(place: TorchPlace) -> None:
    place.script("")
    rendezvous = ("--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_ports(1)}")
    ended = place.well(*rendezvous, "--rdzv-conf=last_call_timeout=1", "train.py")
    assert ended.stderr.count("is a loopback address") == 1, ended.stderr
    # All lines of the launcher have one form.
    assert {line.partition(": ")[0] for line in ended.stderr.splitlines()} == {"rlaunch"}, ended.stderr
