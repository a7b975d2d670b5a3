"""The environment of ranks of ``python -m rlaunch``, against the facts and against the real launcher."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from effort import each
from launching import TELL, Place, environment, free_ports, until
from preloaded import python
from rlaunch._lib import gpu_count

OWN = re.compile(r"(PADDLE_|FLAGS_|POD_|RLAUNCH_)")
DEVICES = ("PADDLE_DISTRI_BACKEND", "FLAGS_selected_gpus", "FLAGS_selected_xpus")
FIRST_LINE = re.compile(r"LAUNCH (INFO|WARNING|ERROR) \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")


def variables_of(seen: dict[str, Any]) -> dict[str, str]:
    """The launcher's own variables in a rank's environment."""
    return {name: value for name, value in seen["env"].items() if OWN.match(name)}


def devices(seen: dict[str, Any]) -> dict[str, str]:
    return {name: seen["env"][name] for name in DEVICES if name in seen["env"]}


def test_two_ranks_on_the_cpu_have_their_identity(place: Place) -> None:
    first, second = ranks = place.tell("--nproc_per_node", "2")
    master = first["env"]["PADDLE_MASTER"]
    endpoints = first["env"]["PADDLE_TRAINER_ENDPOINTS"].split(",")
    ports = [int(re.fullmatch(r"127\.0\.0\.1:(\d+)", e)[1]) for e in [master, *endpoints]]  # type: ignore[index]
    assert len(set(ports)) == 3
    assert all(35100 <= port <= 64000 for port in ports)
    assert re.fullmatch("[a-z]{6}", first["env"]["POD_NAME"])
    for rank, seen in enumerate(ranks):
        env = variables_of(seen)
        exported = dict(entry.split("=") for entry in env.pop("RLAUNCH_EXPORTED").split(","))
        assert re.fullmatch(rf"\w{{16}}/0/{rank}", env.pop("RLAUNCH_RANK_KEY"))
        assert env.pop("RLAUNCH_OUTER_LOGS") == env["PADDLE_LOG_DIR"]
        assert re.fullmatch(r"/proc/\d+/fd/\d+", env.pop("RLAUNCH_EXCEPTION_FILE"))
        assert env.pop("RLAUNCH_ROUND") == "1"
        assert re.fullmatch(rf"/proc/\d+/fd/\d+:{rank}", env.pop("RLAUNCH_STOP_SLOT"))
        assert set(exported) == {*env, "PYTHONFAULTHANDLER"}
        assert env == {
            "PADDLE_MASTER": master,
            "PADDLE_GLOBAL_SIZE": "2",
            "PADDLE_LOCAL_SIZE": "2",
            "PADDLE_TRAINERS_NUM": "2",
            "PADDLE_NNODES": "1",
            "PADDLE_GLOBAL_RANK": str(rank),
            "PADDLE_LOCAL_RANK": str(rank),
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_RANK_IN_NODE": str(rank),
            "PADDLE_AUTO_CLUSTER": "0",
            "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_DISTRI_BACKEND": "gloo",
            "PADDLE_LOG_DIR": str(place.folder / "log"),
            "POD_NAME": second["env"]["POD_NAME"],
        }


GPUS = "FLAGS_selected_gpus"
XPUS = "FLAGS_selected_xpus"
GLOO = {"PADDLE_DISTRI_BACKEND": "gloo"}
FOUR = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}


@pytest.mark.parametrize(
    ("variables", "args", "expected"),
    [
        (FOUR, [], [{GPUS: "0"}, {GPUS: "1"}, {GPUS: "2"}, {GPUS: "3"}]),
        (FOUR, ["--gpus", "6,7"], [{GPUS: "2"}, {GPUS: "3"}]),
        (FOUR, ["--devices=7,4"], [{GPUS: "3"}, {GPUS: "0"}]),
        (FOUR, ["--gpus", "6,7", "--nproc_per_node", "1"], [{GPUS: "2,3"}]),
        (FOUR, ["--nproc_per_node", "1"], [{GPUS: "0,1,2,3"}]),
        (FOUR, ["--nproc_per_node", "2"], [{GPUS: "0"}, {GPUS: "1"}]),
        ({"CUDA_VISIBLE_DEVICES": "4, 5"}, ["--gpus", "5 ,4"], [{GPUS: "1"}, {GPUS: "0"}]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5a,GPU-7b"}, ["--gpus", "GPU-7b"], [{GPUS: "1"}]),
        ({"XPU_VISIBLE_DEVICES": "2,3"}, [], [{XPUS: "0"}, {XPUS: "1"}]),
        ({"XPU_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "0"}, ["--xpus", "3"], [{XPUS: "1"}]),
        ({"XPULINK_VISIBLE_DEVICES": "8,9", "XPU_VISIBLE_DEVICES": "1"}, [], [{XPUS: "0"}, {XPUS: "1"}]),
        # An empty list hides the devices, as it does for CUDA itself. (Paddle: FLAGS_selected_gpus=0.)
        ({"CUDA_VISIBLE_DEVICES": ""}, ["--nproc_per_node", "2"], [GLOO, GLOO]),
    ],
)
def test_each_rank_gets_its_devices_as_indices_into_the_visible_list(
    place: Place, variables: dict[str, str], args: list[str], expected: list[dict[str, str]]
) -> None:
    ranks = place.tell(*args, env=environment(**variables))
    assert [devices(seen) for seen in ranks] == expected
    for seen in ranks:
        assert {name: seen["env"][name] for name in variables} == variables


def test_all_devices_are_those_of_the_driver(place: Place) -> None:
    ranks = place.tell(env=environment(CUDA_VISIBLE_DEVICES="all"))
    gpus = [{GPUS: str(index)} for index in range(gpu_count())]
    assert [devices(seen) for seen in ranks] == (gpus or [GLOO])


@pytest.mark.parametrize("option", ["--gpus", "--devices", "--selected_gpus", "PADDLE_DEVICES"])
@pytest.mark.skipif(gpu_count() > 0, reason="this machine has GPUs")
def test_gpus_of_a_machine_without_one_are_refused_with_the_way_out(place: Place, option: str) -> None:
    (place.folder / "tell.py").write_text(TELL)
    is_variable = not option.startswith("-")
    words = [] if is_variable else [f"{option}=0,1"]
    env = environment(CUDA_VISIBLE_DEVICES=None, **({option: "0,1"} if is_variable else {}))
    ended = place.run(*words, "tell.py", env=env)
    assert (ended.status, place.seen()) == (2, [])
    (line,) = ended.error_lines()
    assert line.startswith(f"rlaunch: error: {option} 0,1: the NVIDIA driver shows no GPU"), line
    assert "--nproc_per_node 2 " in line
    # A list is trusted.
    listed = {**env, "CUDA_VISIBLE_DEVICES": "0,1"}
    words = [] if is_variable or option == "--selected_gpus" else words
    assert place.run(*words, "tell.py", env=listed).status == 0


def test_lower_case_proxies_are_set_aside(place: Place) -> None:
    (place.folder / "tell.py").write_text(TELL)
    proxies = {"http_proxy": "http://a:1", "https_proxy": "http://b:2", "HTTP_PROXY": "http://c:3"}
    ended = place.run("tell.py", env=environment(**proxies))
    env = place.seen()[0]["env"]
    assert (env["http_proxy_original"], env["https_proxy_original"]) == ("http://a:1", "http://b:2")
    assert env["HTTP_PROXY"] == "http://c:3"
    assert not {"http_proxy", "https_proxy"} & set(env)
    for name in ("http_proxy", "https_proxy"):
        text = f"Unset '{name}' to ensure stable NCCL communication in distributed training "
        assert f"{text}(backed up as '{name}_original')." in ended.stderr


def test_a_variable_beats_an_option_with_a_notice(place: Place) -> None:
    (place.folder / "tell.py").write_text(TELL)
    variables = {
        "PADDLE_NPROC_PER_NODE": "2",
        "PADDLE_LOG_DIR": "elsewhere",
        "PADDLE_JOB_ID": "mine",
        "PADDLE_LOG_LEVEL": "error",
        "PADDLE_AUTO_CLUSTER": "True",
        "PADDLE_RANK": "0",
        "PADDLE_TRAINER_ID": "0",
        "POD_IP": "127.0.0.2",
    }
    options = ["--nproc_per_node", "3", "--log_dir", "log", "--job_id", "default", "--host", "127.0.0.3"]
    ended = place.run(*options, "tell.py", env=environment(**variables))
    attributes = {"PADDLE_AUTO_CLUSTER": "auto_cluster_config", "POD_IP": "host"}
    lines = {
        f"LAUNCH WARNING args {attributes.get(name, name[7:].lower())} will be overridden by env: "
        f"{name} value: {value}"
        for name, value in variables.items()
        if name != "PADDLE_TRAINER_ID"
    }
    assert set(ended.stdout.decode().splitlines()) == lines
    first, second = place.seen()
    assert first["env"]["PADDLE_LOG_DIR"] == str(place.folder / "elsewhere")
    assert first["env"]["PADDLE_AUTO_CLUSTER"] == "1"
    assert second["env"]["PADDLE_CURRENT_ENDPOINT"].startswith("127.0.0.2:")
    assert any(name.startswith("mine.") for name in place.names("elsewhere"))
    assert ended.stderr == ""


def test_options_may_be_cut_short_repeated_and_spelt_with_an_equals_sign(place: Place) -> None:
    ranks = place.tell(
        "--nproc=1", "--nproc_per_n", "2", "--nnode=1", "--log_d=short", "--auto_c", "yes", "--job-id=a"
    )
    assert [seen["env"]["PADDLE_TRAINERS_NUM"] for seen in ranks] == ["2", "2"]
    assert ranks[0]["env"]["PADDLE_AUTO_CLUSTER"] == "1"
    assert any(name.startswith("a.") for name in place.names("short"))


def test_everything_after_the_script_is_the_scripts(place: Place) -> None:
    (place.folder / "tell.py").write_text(TELL)
    args = ["--nproc_per_node", "7", "--", "--help", "-m", "", "a b", "é\n", "--x=1", "-1", "x" * 131071]
    args += ["y" * 10240] * 100
    assert place.run("--nproc_per_node", "1", "tell.py", *args).status == 0
    (seen,) = place.seen()
    assert seen["argv"] == ["tell.py", *args]
    assert seen["command"] == [sys.executable, "-u", "tell.py", *args]


def test_python_runs_under_coverage_where_asked(place: Place) -> None:
    place.script("tell('ran', sys.orig_argv)", "coverage.py")
    place.script("", "train.py")
    assert place.run("train.py", "a", env=environment(WITH_COVERAGE="ON")).status == 0
    command = [sys.executable, "-u", "-m", "coverage", "run", "--branch", "-p", "train.py", "a"]
    assert place.text("ran.0") == str(command)


@pytest.mark.parametrize(
    ("name", "options", "command"),
    [
        ("t.pyxes", [], [sys.executable, "t.pyxes"]),
        ("pkg/mod.py", ["-m"], [sys.executable, "-u", "-m", "pkg.mod"]),
        ("pkg/__main__.py", ["--module"], [sys.executable, "-u", "-m", "pkg"]),
        ("./t.py", ["--no_python"], ["link", "./t.py"]),
        ("./t", [], ["link", "./t"]),
    ],
)
def test_modules_and_programs_run_by_name(
    place: Place, name: str, options: list[str], command: list[str]
) -> None:
    path = place.folder / name
    path.parent.mkdir(exist_ok=True)
    # Not its own path: the first blank in that would end it.
    link = place.folder / "python"
    link.symlink_to(sys.executable)
    path.write_text(f"#!{link}\n{TELL}")
    path.chmod(0o755)
    ended = place.run(*options, command[-1], "-m", "x")
    assert ended.status == 0, ended.stderr
    (seen,) = place.seen()
    interpreter, *words = command
    assert seen["command"] == [str(link) if interpreter == "link" else interpreter, *words, "-m", "x"]
    assert seen["package"] in (None, "pkg", "")


@pytest.mark.parametrize("options", [[], ["--no_python"]])
def test_a_program_is_found_in_path(place: Place, options: list[str]) -> None:
    program = place.folder / "bin" / "trainer"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$0 $PADDLE_TRAINER_ID $*"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    ended = place.run("--nproc_per_node=2", *options, "trainer", "a b", env=environment(PATH=path))
    assert (ended.status, ended.stdout) == (0, f"{program} 0 a b\n".encode())
    assert place.log(1) == f"{program} 1 a b\n".encode()


def test_ranks_lead_sessions_of_their_own_and_inherit_the_rest(place: Place) -> None:
    read, write = os.pipe()
    (place.folder / "tell.py").write_text(TELL)
    ended = place.run("--nproc_per_node=2", "tell.py", stdin=read, pass_fds=[write], umask=0o027)
    assert ended.status == 0
    parents = {seen["ppid"] for seen in place.seen()}
    assert len(parents) == 1
    for seen in place.seen():
        assert seen["pid"] == seen["group"] == seen["session"]
        assert seen["cwd"] == str(place.folder)
        assert seen["stdin"] == [os.fstat(read).st_dev, os.fstat(read).st_ino]
        assert seen["umask"] == 0o027
        # stdin, stdout, stderr and the lifeline; nothing of the launcher's, nothing of its caller's.
        assert seen["fds"][:3] == [0, 1, 2]
        assert len(seen["fds"]) == 4
        assert write not in seen["fds"]
    os.close(read)
    os.close(write)


def test_a_rank_reads_the_launchers_stdin(place: Place) -> None:
    place.script("print(sys.stdin.read().upper())")
    assert place.run("train.py", input=b"one\ntwo").stdout == b"ONE\nTWO\n"


def test_messages_of_the_launcher_have_the_form_that_scripts_match_on(place: Place) -> None:
    place.script("sys.exit(rank * 3)")
    good = place.run("--job_id=j", "train.py")
    lines = [FIRST_LINE.sub(r"\1 ", line) for line in good.stderr.splitlines()]
    assert lines[0] == "INFO Job: j, mode collective, replicas 1[1:1], elastic False"
    assert re.match("INFO Run Pod: [a-z]{6}, replicas 1, status ready", lines[1])
    assert lines[-2:] == ["INFO Pod completed", "INFO Exit code 0"]
    bad = place.run("--nproc_per_node=2", "train.py")
    text = FIRST_LINE.sub(r"\1 ", bad.stderr)
    assert bad.status == 3
    container = "Container failed !!!\nContainer rank 1 status failed cmd ["
    for message in ("Pod failed", container, "Exit code 3"):
        assert message in text
    assert f"code 3 log {place.folder}/log/workerlog.1" in text


def test_every_port_handed_out_is_held_for_the_ranks_alone(place: Place) -> None:
    place.script("""
        import socket
        own = [os.environ["PADDLE_CURRENT_ENDPOINT"]] + [os.environ["PADDLE_MASTER"]] * (rank == 0)
        servers = [socket.create_server(("127.0.0.1", int(e.split(":")[1]))) for e in own]
        tell("ready", os.environ["PADDLE_MASTER"] + "," + os.environ["PADDLE_TRAINER_ENDPOINTS"])
        await_file("go")
        for server in servers:
            server.close()
        tell("closed")
        await_file("end")
    """)
    with place.start("--nproc_per_node=2", "train.py") as launcher:
        for event, next in (("ready", "go"), ("closed", "end")):
            for rank in range(2):
                until((place.folder / f"{event}.{rank}").exists, event)
            for endpoint in place.text("ready.0").split(","):
                with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
                    stranger.bind(("127.0.0.1", int(endpoint.split(":")[1])))
            (place.folder / next).touch()
        assert Place.wait(launcher).status == 0


def test_fixed_ports_are_consecutive(place: Place) -> None:
    first = free_ports(2)
    args = ["--ips=127.0.0.1", f"--start_port={first}", "--nproc_per_node=2"]
    env = place.tell(*args)[1]["env"]
    assert env["PADDLE_TRAINER_ENDPOINTS"] == f"127.0.0.1:{first},127.0.0.1:{first + 1}"
    assert env["PADDLE_MASTER"] == f"127.0.0.1:{first}"
    env = place.tell("--nproc_per_node=2", env=environment(FLAGS_FIXED_PORT=str(first)))[1]["env"]
    assert env["PADDLE_TRAINER_ENDPOINTS"] == f"127.0.0.1:{first},127.0.0.1:{first + 1}"
    assert env["PADDLE_MASTER"] not in env["PADDLE_TRAINER_ENDPOINTS"]


# --- Side by side with the real launcher. ----------------------------------------------------------------


def real_launcher() -> list[str]:
    return [*python("paddle"), "-m", "paddle.distributed.launch"]


def masked(seen: dict[str, Any]) -> dict[str, str]:
    """A rank's environment with what differs from run to run masked."""
    env = {name: re.sub(r"\d+(\.\d+){3}:\d+", "IP:PORT", value) for name, value in seen["env"].items()}
    return {**env, "POD_NAME": "POD", "PADDLE_LOG_DIR": Path(env["PADDLE_LOG_DIR"]).name}


@each(
    "options, variables",
    [
        (["--nproc_per_node", "2"], {"OMP_NUM_THREADS": " 03"}),
        (["--gpus=6,7", "--log_level=INFO"], {**FOUR, "PADDLE_JOB_ID": "j"}),
    ],
)
def test_ranks_have_the_environment_of_the_real_launcher(
    place: Place, options: list[str], variables: dict[str, str]
) -> None:
    ours = place.tell(*options, "--log_dir=ours", env=environment(**variables))
    # Not preloaded: its import of paddle sets OMP_NUM_THREADS.
    real_run = subprocess.run(
        [sys.executable, "-m", "paddle.distributed.launch", *options, "--log_dir=real", "tell.py"],
        cwd=place.folder,
        env=environment(**variables),
        capture_output=True,
        check=True,
    )
    real = place.seen()
    assert len(ours) == len(real) == 2
    for mine, theirs in zip(ours, real, strict=True):
        mine_env, their_env = masked(mine), masked(theirs)
        assert mine_env.pop("RLAUNCH_EXPORTED")
        assert mine_env.pop("RLAUNCH_RANK_KEY")
        assert mine_env.pop("RLAUNCH_OUTER_LOGS")
        assert mine_env.pop("RLAUNCH_EXCEPTION_FILE")
        assert mine_env.pop("RLAUNCH_ROUND")
        assert mine_env.pop("RLAUNCH_STOP_SLOT")
        assert mine_env.pop("PYTHONFAULTHANDLER")
        assert mine_env.pop("PADDLE_LOG_DIR") == "ours"
        assert their_env.pop("PADDLE_LOG_DIR") == "real"
        # Written only when it is needed; and a leftover of importing paddle into the launcher.
        for name in ("PADDLE_BACKUP_ENV_PATH", "CUSTOM_DEVICE_ROOT"):
            assert name in their_env
            del their_env[name]
        assert mine_env == their_env
        assert mine["command"] == theirs["command"]
        for same in ("argv", "cwd", "package", "umask"):
            assert mine[same] == theirs[same]
        assert (mine["session"], theirs["session"]) == (mine["pid"], theirs["pid"])
    # The text about overridden options is the same to the letter.
    again = place.run(*options, "--log_dir=ours", "tell.py", env=environment(**variables))
    assert again.stdout == real_run.stdout


def test_every_option_and_variable_of_the_real_launcher_is_known(place: Place) -> None:
    code = """
import argparse, json, sys
from paddle.distributed.launch.context import args_envs
actions = []
add = argparse._ActionsContainer.add_argument
def spy(self, *names, **options):
    actions.extend(name for name in names if name.startswith("--"))
    return add(self, *names, **options)
argparse._ActionsContainer.add_argument = spy
sys.argv = ["launch", "x.py"]
args_envs.parse_args()
print(json.dumps([actions, {k: v[0] for k, v in args_envs.env_args_mapping.items()}]))
"""
    real = subprocess.run(
        [*python("paddle"), "-c", code], env=environment(), capture_output=True, check=True, text=True
    )
    options, variables = json.loads(real.stdout.splitlines()[-1])
    text = place.run("--help", "all").stdout.decode()
    described = {entry.split()[0]: entry for entry in re.split(r"\n {2}(?:-\w, | {4})(?=--)", text)}
    aliases = {"--gpus", "--npus", "--xpus"}
    assert "--gpus, --npus, --xpus" in described["--devices"]
    assert set(options) - aliases - {"--help"} <= set(described)
    for variable, attribute in variables.items():
        assert variable in described[f"--{attribute}"], variable


def test_real_ranks_on_the_cpu_reduce(place: Place) -> None:
    place.script("""
        import paddle
        import paddle.distributed as dist
        dist.init_parallel_env()
        number = paddle.to_tensor([float(rank + 1)])
        dist.all_reduce(number)
        print("sum", number.item(), dist.get_world_size())
    """)
    ended = place.run("--nproc_per_node=2", "train.py")
    assert ended.status == 0, ended.stdout
    for rank in range(2):
        assert b"sum 3.0 2\n" in place.log(rank)
