"""Impossible requests are refused before any rank starts: one line, a solution, a documented status."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rlaunch
from launching import LIMIT, Ended, Place, environment, free_ports, prctl

USAGE, UNMET = 2, 66


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.script("tell('started')")
    return place


def refused(ended: Ended, status: int, *words: str) -> str:
    """Checks that this is a refusal which says these words, and returns its line."""
    assert ended.status == status, ended.stderr
    assert b"LAUNCH" not in ended.stdout or b"overridden" in ended.stdout
    (line,) = (line for line in ended.stderr.splitlines() if not line.startswith("LAUNCH "))
    assert line.startswith("rlaunch: error: ")
    for word in words:
        assert word in line, line
    return line


def refuse(place: Place, status: int, args: list[str], *words: str, **options: Any) -> str:
    """Runs what has to be refused, and checks that nothing was started or made."""
    before = place.names()
    ended = place.run(*args, **options)
    line = refused(ended, status, *words)
    assert place.names() == before
    return line


# --- The command line. -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--gpus", "'0,1'", "train.py"], ["--gpus '0,1': ", "the quotes are part of the value"]),
        (["--gpus", "=", "0", "train.py"], ["--gpus=0"]),
        (["\u2013gpus", "0,1", "train.py"], ["\u2013gpus", "write --gpus"]),
        (["\u2014nproc-per-node=2", "train.py"], ["write --nproc-per-node"]),
        (["--nproc_per_node", "", "train.py"], ["--nproc_per_node ''"]),
        (["--nproc_per_node 2", "train.py"], ["write --nproc_per_node 2"]),
    ],
)
def test_a_copied_command_line_says_what_it_lost(place: Place, args: list[str], words: list[str]) -> None:
    refuse(place, USAGE, args, *words)


@pytest.mark.parametrize(
    ("args", "environ"),
    [
        (["--nnodes", ""], {}),
        (["--job_id", ""], {}),
        ([], {"PADDLE_NNODES": ""}),
        ([], {"PADDLE_JOB_ID": " "}),
        (["--job_id", "exp/1"], {}),
    ],
)
def test_an_empty_value_is_the_default_and_a_job_may_have_a_slash(
    place: Place, args: list[str], environ: dict[str, str]
) -> None:
    place.script("")
    ended = place.run(*args, "train.py", env=environment(**environ))
    assert ended.status == 0, ended.stderr


@pytest.mark.parametrize(
    ("option", "is_launchers"), [("--log_dir", True), ("--max-restarts", True), ("--foo", False)]
)
def test_a_launchers_option_that_the_script_refuses_is_named(
    place: Place, option: str, is_launchers: bool
) -> None:
    (place.folder / "parse.py").write_text("import argparse; argparse.ArgumentParser().parse_args()")
    ended = place.run("parse.py", option, "x")
    assert ended.status == 2
    hint = f"rlaunch: {option} is an option of the launcher: "
    assert any(line.startswith(hint) for line in str(ended.stderr).splitlines()) == is_launchers


@pytest.mark.parametrize("args", [[], ["--nproc_per_node=2"], ["--dry_run"], ["-m"]])
def test_a_script_is_required(place: Place, args: list[str]) -> None:
    text = "the following arguments are required: training_script, training_script_args (which may be none)"
    refuse(place, USAGE, args, text, "rlaunch --nproc_per_node 2 train.py")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--foo=3"], ["--foo"]),
        (["--nproc_pre_node", "2"], ["--nproc_pre_node", "did you mean --nproc_per_node?"]),
        (["--mlus", "0"], ["--mlus"]),
        (["-x"], ["-x"]),
        (["-n", "2"], ["unknown option -n; did you mean --nproc_per_node?"]),
        (
            ["--standalone"],
            ["unknown option --standalone; it is an option of torchrun; python -m rlaunch.run"],
        ),
        (["--rdzv-backend=c10d"], ["--rdzv-backend", "python -m rlaunch.run"]),
        (["--node_rank=0"], ["--node_rank; it is an option of torchrun; give --rank"]),
        (["--rdzv-id", "x"], ["--rdzv-id; it is an option of torchrun; give --job_id"]),
        (["--ips=10.0.0.1 10.0.0.2"], ["--ips 10.0.0.1 10.0.0.2", "separate addresses by commas"]),
        (["--ips=10.0.0.1;10.0.0.2"], ["separate addresses by commas"]),
        (["--ips=10.0.0.1:99 10.0.0.2"], ["--ips 10.0.0.1:99", "is not an address"]),
        (["--ips=10.0.0.1,,10.0.0.2"], ["--ips 10.0.0.1,,10.0.0.2: has an empty item", "by commas"]),
        (["--ips=10.0.0.1,10.0.0.1"], ["names 10.0.0.1 twice", "--nproc_per_node"]),
        (["--gpus=a,b"], ["--gpus a,b: a is not a device"]),
        (["--gpu", "a"], ["--gpus a: a is not a device"]),
        (["--gpus=0", "--devices=a"], ["--devices a: a is not a device"]),
        (["--xpus=a"], ["--xpus a: a is not a device; give numbers"]),
        (["--selected_gpus=0,x"], ["--selected_gpus 0,x: x is not a device"]),
        (["--zz\nzz"], ["--zz"]),
        (["--serv", "2"], ["ambiguous option: --serv could match --servers, --server_num"]),
        (["--np", "2"], ["--np 2: an elastic job needs --elastic_server", "--nproc_per_node"]),
        (["--elastic=1"], ["ambiguous", "--elastic_level", "--elastic_timeout"]),
        (["--no_python=1"], ["--no_python"]),
        (["--nproc_per_node="], ["--nproc_per_node"]),
        (["--nproc_per_node", "two"], ["--nproc_per_node two", "whole number"]),
        (["--nproc_per_node", "2.5"], ["--nproc_per_node 2.5"]),
        (["--nproc_per_node", "9" * 30], ["--nproc_per_node 999"]),
        (["--log_overwrite", "maybe"], ["--log_overwrite maybe", "true"]),
        (["--auto_cluster_config", "2"], ["--auto_cluster_config 2"]),
        (["--log_level", "FOO"], ["--log_level FOO", "DEBUG"]),
        (["--run_mode", "foo"], ["--run_mode foo", "collective"]),
        (["--nnodes", "one"], ["--nnodes one"]),
        (["--nnodes", "0"], ["--nnodes 0"]),
        (["--nnodes=-1"], ["--nnodes -1"]),
        (["--rank", "first"], ["--rank first"]),
        (["--grace_period", "-1"], ["--grace_period -1", "0 or more"]),
        (["--console_drain_timeout", "-1"], ["--console_drain_timeout -1", "0 or more"]),
        (["--grace_period", "nan"], ["--grace_period nan"]),
        (["--grace_period", "inf"], ["--grace_period inf"]),
        (["--max_restart=-1"], ["--max_restart -1", "0 or more"]),
        (["--restart_on", "1,SIGNOPE"], ["--restart_on 1,SIGNOPE", "'SIGNOPE'", "1,SIGKILL"]),
        (["--never_restart_on", "0"], ["--never_restart_on 0", "1 to 255"]),
        (["--restart_delay", "-1"], ["--restart_delay -1", "0 or more"]),
        (["--restart_delay=5", "--restart_delay_max=4"], ["--restart_delay_max 4", "--restart_delay"]),
        (["--restart_window", "0"], ["--restart_window 0", "more than 0"]),
        (["--same_failure_limit", "0"], ["--same_failure_limit 0", "1 or more"]),
        (["--restart_on=SIGKILL"], ["--restart_on SIGKILL", "no effect without --max_restart"]),
        (["--restart_delay=0", "--never_restart_on=3"], ["--never_restart_on 3", "without --max_restart"]),
        (["--dry_run=xml"], ["--dry_run xml", "json"]),
        (["--log_dir="], ["--log_dir", "name a folder"]),
        (["--master=nowhere"], ["--master nowhere", "ip:port"]),
        (["--ips=127.0.0.1", "--start_port=0"], ["--start_port 0"]),
        (["--ips=127.0.0.1", "--start_port=65536"], ["--start_port 65536"]),
        (["--devices=0,,1"], ["--devices 0,,1"]),
        (["--host=1.2.3.4,5.6.7.8"], ["--host 1.2.3.4,5.6.7.8", "several addresses"]),
        (["--host=1.2.3.4:99"], ["--host 1.2.3.4:99", "is not an address"]),
        (["--host=a.b c"], ["--host a.b c", "is not an address"]),
        (["--gpu_log=1"], ["--gpu_log", "--enable_gpu_log"]),
        (["--servers=127.0.0.1:7000"], ["--servers 127.0.0.1:7000", "without --trainers", "--server_num"]),
        (["--trainers=127.0.0.1:7000"], ["--trainers 127.0.0.1:7000", "without --servers"]),
        (["--server_num=-1"], ["--server_num -1", "1 to 65535"]),
        (["--server_num=1", "--workers=a:1,b"], ["--workers a:1,b", "with and without ports"]),
        (["--server_num=1", "--run_mode=rpc"], ["--server_num 1", "--run_mode is rpc"]),
        (["--server_num=1", "--nnodes=1:2"], ["--nnodes 1:2", "a fixed number of nodes"]),
        (["--server_num=1", "--ips=10.0.0.1"], ["--ips 10.0.0.1", "--servers and --trainers"]),
        (["--heter_devices=gpu", "--run_mode=ps"], ["--heter_devices gpu", "ps-heter"]),
        (["--module", "--no_python"], ["--module", "--no_python"]),
    ],
)
def test_a_command_line_that_cannot_be_read_is_refused(
    place: Place, args: list[str], words: list[str]
) -> None:
    refuse(place, USAGE, [*args, "train.py"], *words)


@pytest.mark.parametrize("option", ["--job_id", "--nproc_per_node", "--devices", "--log_dir"])
def test_an_option_without_its_value_is_refused(place: Place, option: str) -> None:
    refuse(place, USAGE, [option], option, "needs a value")
    refuse(place, USAGE, [option, "--log_level", "INFO", "train.py"], option, "needs a value")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"PADDLE_NPROC_PER_NODE": "two"}, ["PADDLE_NPROC_PER_NODE two"]),
        ({"PADDLE_LOG_OVERWRITE": "maybe"}, ["PADDLE_LOG_OVERWRITE maybe"]),
        ({"RLAUNCH_GRACE_PERIOD": "soon"}, ["RLAUNCH_GRACE_PERIOD soon"]),
        ({"PADDLE_MAX_RESTART": "often"}, ["PADDLE_MAX_RESTART often"]),
        ({"RLAUNCH_RESTART_ON": "1,,2"}, ["RLAUNCH_RESTART_ON 1,,2"]),
        ({"RLAUNCH_RESTART_DELAY": "soon"}, ["RLAUNCH_RESTART_DELAY soon"]),
        ({"FLAGS_FIXED_PORT": "http"}, ["FLAGS_FIXED_PORT http", "unset it"]),
        ({"PORT_RANGE": "64000:35100"}, ["PORT_RANGE 64000:35100", "low:high"]),
        ({"PORT_RANGE": "1"}, ["PORT_RANGE 1"]),
        ({"PADDLE_SERVER_NUM": "x"}, ["PADDLE_SERVER_NUM x"]),
        ({"PADDLE_SERVERS_ENDPOINTS": "a:1"}, ["PADDLE_SERVERS_ENDPOINTS a:1", "--trainers"]),
    ],
)
def test_a_variable_that_cannot_be_read_is_refused(
    place: Place, variables: dict[str, str], words: list[str]
) -> None:
    refuse(place, USAGE, ["train.py"], *words, env=environment(**variables))


@pytest.mark.parametrize(
    ("option", "value", "variable"),
    [
        ("--nnodes", "0", "PADDLE_NNODES"),
        ("--nnodes", "2:1", "PADDLE_NNODES"),
        ("--nnodes", "two", "PADDLE_NNODES"),
        ("--master", "etcd://", "PADDLE_MASTER"),
        ("--master", "etcd://a:b", "PADDLE_MASTER"),
        ("--master", "nowhere", "PADDLE_MASTER"),
        ("--elastic_level", "high", "PADDLE_ELASTIC_LEVEL"),
        ("--elastic_timeout", "soon", "PADDLE_ELASTIC_TIMEOUT"),
        ("--join_timeout", "-1", "RLAUNCH_JOIN_TIMEOUT"),
        ("--heartbeat_timeout", "1", "RLAUNCH_HEARTBEAT_TIMEOUT"),
        ("--etcd_loss_timeout", "x", "RLAUNCH_ETCD_LOSS_TIMEOUT"),
        ("--join_timeout", "0", "RLAUNCH_JOIN_TIMEOUT"),
        ("--elastic_level", "2", "PADDLE_ELASTIC_LEVEL"),
        ("--elastic_timeout", "9223372036854775807", "PADDLE_ELASTIC_TIMEOUT"),
        ("--master", "ectd://127.0.0.1:1", "PADDLE_MASTER"),
        ("--etcd_cert", "a", "RLAUNCH_ETCD_CERT"),
    ],
)
def test_an_impossible_rendezvous_is_refused(place: Place, option: str, value: str, variable: str) -> None:
    others = ["--nnodes=2", "--master=etcd://127.0.0.1:1"]
    others = [other for other in others if not other.startswith(option)]
    refuse(place, USAGE, [*others, option, value, "train.py"], f"{option} {value}")
    env = environment(**{variable: value})
    refuse(place, USAGE, [*others, "train.py"], f"{variable} {value}", env=env)


def test_a_plan_marks_values_that_are_known_only_after_the_rendezvous(place: Place) -> None:
    words = "this node's 1 rank(s) of a job of 2 to 3 nodes that rendezvous at 127.0.0.1:1; rank numbers, "
    for form in ("table", "json"):
        planned = place.run("--nnodes=2:3", "--master=127.0.0.1:1", f"--dry_run={form}", "train.py")
        assert words in planned.stdout.decode(), planned
    assert json.loads(planned.stdout)["meeting"].startswith(words)


def test_secrets_are_never_shown(place: Place) -> None:
    env = environment(RLAUNCH_JOB_SECRET="s3cret-of-the-job", RLAUNCH_ETCD_USER="me:s3cret")
    args = ["--nnodes=2", "--join_timeout=1", "--log_level=DEBUG", "train.py"]
    for master in ("127.0.0.1:1", "etcd://127.0.0.1:1"):
        ended = place.run(f"--master={master}", *args, env=env)
        assert ended.status != 0
        assert "s3cret" not in ended.stderr + ended.stdout.decode()
        assert b"overridden" not in ended.stdout


def test_options_without_effect_on_one_node_are_accepted(place: Place) -> None:
    args = (
        "--nnodes=1:1 --rank=0 --master=10.0.0.1:99 --sort_ip=1 --enable_gpu_log=0 --max_restart=0 --legacy=0"
    )
    args += " --elastic_level=-1 --elastic_timeout=9 --gloo_port=1 --with_gloo=0 --run_mode=collective"
    assert place.run(*args.split(), "train.py").status == 0
    assert (place.folder / "started.0").exists()


@pytest.mark.parametrize(
    ("variables", "args", "words"),
    [
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, ["--gpus=0"], ["--gpus 0", "CUDA_VISIBLE_DEVICES (4,5)"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, ["--gpus=0"], ["--gpus 0", "CUDA_VISIBLE_DEVICES"]),
        ({"XPU_VISIBLE_DEVICES": "4"}, ["--xpus=4,5"], ["device 5", "XPU_VISIBLE_DEVICES (4)"]),
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, ["--nproc_per_node=3"], ["--nproc_per_node 3", "2 device"]),
        (
            {"CUDA_VISIBLE_DEVICES": "4,5"},
            ["--gpus=5", "--nproc_per_node=2"],
            ["--nproc_per_node 2", "--gpus 5"],
        ),
    ],
)
def test_devices_that_are_not_there_are_refused(
    place: Place, variables: dict[str, str], args: list[str], words: list[str]
) -> None:
    refuse(place, USAGE, [*args, "train.py"], *words, env=environment(**variables))


# --- The script and its arguments. -----------------------------------------------------------------------


def test_a_script_that_is_not_there_is_refused(place: Place) -> None:
    for name in ("missing.py", "no/such/folder.py", "missing.pyxes", "./missing", "a\nb.py", ""):
        refuse(place, UNMET, [name], "training_script")
    refuse(place, UNMET, ["missing.py"], "training_script missing.py: does not exist")
    refuse(place, UNMET, ["missing"], "not a program in PATH")
    refuse(place, UNMET, ["--no_python", "train.py"], "not a program in PATH", "./")


def test_a_directory_is_refused(place: Place) -> None:
    for name in ("pkg", "pkg.py"):
        (place.folder / name).mkdir()
        refuse(place, UNMET, [name], f"training_script {name}: is a directory", "--module")
    refuse(place, UNMET, ["."], "is a directory")
    refuse(place, UNMET, ["--no_python", "./pkg"], "training_script ./pkg")


def without_root_powers() -> None:
    """Permissions of files count for root as well, from the next exec on."""
    if os.geteuid() == 0:
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            prctl(24, capability)  # PR_CAPBSET_DROP


def test_a_script_that_cannot_be_read_or_run_is_refused(place: Place) -> None:
    (place.folder / "train.py").chmod(0)
    line = "training_script train.py: cannot be read: Permission denied"
    refuse(place, UNMET, ["train.py"], line, preexec_fn=without_root_powers)
    (place.folder / "job.sh").write_text("#!/bin/sh\n")
    refuse(place, UNMET, ["./job.sh"], "training_script ./job.sh: cannot be executed", "chmod +x")


def called(place: Place, *args: str) -> Ended:
    """Calls the entry point, which takes what no command line can hold."""
    code = (
        "import sys; from rlaunch import _lib; "
        "from rlaunch._launch.single_thread import describe_interpreter; "
        "sys.exit(_lib.main(eval(input()), describe_interpreter(), -1))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=repr(list(args)).encode(),
        cwd=place.folder,
        env=environment(),
        capture_output=True,
        timeout=LIMIT,
    )
    return Ended(done.returncode, done.stdout, done.stderr.decode())


def test_an_argument_longer_than_linux_takes_is_refused(place: Place) -> None:
    for size in (1 << 17, 1 << 20):
        line = refused(called(place, "train.py", "a", "x" * size), UNMET, str(size), "131071", "file")
        assert len(line) < 500
    refused(called(place, "x" * (1 << 20)), UNMET, str(1 << 20), "131071")
    assert place.names() == {"train.py"}


@pytest.mark.parametrize(
    "args",
    [
        ["tr\0ain.py"],
        ["train.py", "a\0b"],
        ["--job_id=a\0b", "train.py"],
        ["--log_dir=a\0b", "train.py"],
        ["--host=127.0.\0.1", "train.py"],
        ["--devices=a\0b", "train.py"],
    ],
)
def test_nul_bytes_are_refused(place: Place, args: list[str]) -> None:
    ended = called(place, *args)
    refused(ended, ended.status)
    assert ended.status in (USAGE, UNMET)
    assert place.names() == {"train.py"}


# --- The machine. ----------------------------------------------------------------------------------------


def test_a_log_folder_that_cannot_be_made_is_refused(place: Place) -> None:
    (place.folder / "file").write_text("")
    for folder, why in (
        ("file", "is a file, not a folder"),
        ("file/log", f"{place.folder / 'file'} is a file, not a folder"),
        ("/proc/nowhere", "cannot be created"),
        ("/dev/null", "is not a folder"),
    ):
        refuse(place, UNMET, [f"--log_dir={folder}", "train.py"], f"--log_dir {place.folder / folder}", why)


def test_a_log_folder_that_may_not_be_written_is_refused(place: Place) -> None:
    (place.folder / "locked").mkdir(mode=0o500)
    for folder in ("locked", "locked/log"):
        words = [f"--log_dir {place.folder / folder}", "Permission denied", "name a folder"]
        refuse(place, UNMET, [f"--log_dir={folder}", "train.py"], *words, preexec_fn=without_root_powers)
    assert place.names("locked") == set()


def test_more_ranks_than_descriptors_are_refused(place: Place) -> None:
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    args = ["--nproc_per_node=100", "train.py"]
    refuse(place, UNMET, args, "--nproc_per_node 100", "limit is 64", "ulimit -Hn", preexec_fn=few_files)


@pytest.mark.parametrize("ranks", [10**6, 10**9, 10**11, 2**63 - 1])
def test_absurd_numbers_of_ranks_are_refused(place: Place, ranks: int) -> None:
    def little_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    args = [f"--nproc_per_node={ranks}", "train.py"]
    refuse(place, UNMET, args, f"--nproc_per_node {ranks}", preexec_fn=little_memory)


def test_a_soft_limit_of_descriptors_is_raised_for_the_launcher_alone(place: Place) -> None:
    def soft() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    place.script("import resource; tell('limit', resource.getrlimit(resource.RLIMIT_NOFILE)[0])")
    assert place.run("--nproc_per_node=12", "train.py", preexec_fn=soft).status == 0
    assert [place.text(f"limit.{rank}") for rank in range(12)] == ["40"] * 12


def fixed_by_option(port: int) -> tuple[list[str], dict[str, str]]:
    return ["--ips=127.0.0.1", f"--start_port={port}"], {}


def fixed_by_variable(port: int) -> tuple[list[str], dict[str, str]]:
    return [], {"FLAGS_FIXED_PORT": str(port)}


@pytest.mark.parametrize("fixed", [fixed_by_option, fixed_by_variable])
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1"])
def test_a_port_in_use_is_refused_by_the_name_of_its_holder(
    place: Place, fixed: Callable[[int], tuple[list[str], dict[str, str]]], address: str
) -> None:
    first = free_ports(2)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    program = Path("/proc/self/comm").read_text().strip()
    with socket.create_server((address, first + 1), family=family):
        args, variables = fixed(first)
        words = [f"port {first + 1} is in use by pid {os.getpid()} ({program})", f"uid {os.getuid()}"]
        job = [*args, "--nproc_per_node=2", "train.py"]
        line = refuse(place, UNMET, job, *words, env=environment(**variables))
        assert "--start_port" in line or "FLAGS_FIXED_PORT" in line
        # One port lower there is room for one.
        assert place.run(*args, "train.py", env=environment(**variables)).status == 0


def test_a_port_that_is_bound_and_not_listening_is_in_use_too(place: Place) -> None:
    port = free_ports(1)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        refuse(place, UNMET, [*fixed_by_option(port)[0], "train.py"], f"port {port} is in use")


def test_ports_that_do_not_fit_are_refused(place: Place) -> None:
    args = [*fixed_by_option(65535)[0], "--nproc_per_node=2", "train.py"]
    refuse(place, UNMET, args, "--start_port 65535", "2 ports")
    port = free_ports(1)
    env = environment(PORT_RANGE=f"{port}:{port}")
    refuse(place, UNMET, ["train.py"], f"PORT_RANGE {port}:{port}", "2 are needed", "widen", env=env)


# --- Help. -----------------------------------------------------------------------------------------------

OPTIONS = """
    nproc_per_node devices gpus npus xpus log_dir log_overwrite log_level job_id host ips start_port
    grace_period module no_python dry_run
    auto_cluster_config master rank nnodes run_mode sort_ip enable_gpu_log legacy
    max_restart restart_on never_restart_on restart_delay restart_delay_max restart_window
    same_failure_limit elastic_level elastic_timeout auto_parallel_config auto_tuner_json servers trainers
    server_num trainer_num gloo_port with_gloo elastic_server np elastic_pre_hook scale force help version
"""


@pytest.mark.parametrize("spelling", ["--help", "-h", "--hel"])
def test_help_lists_every_option_and_status(place: Place, spelling: str) -> None:
    ended = place.run("--nproc_per_node=2", spelling, "all", "train.py")
    text = ended.stdout.decode()
    assert (ended.status, ended.stderr) == (0, "")
    for name in OPTIONS.split():
        assert re.search(rf"--{name}\b", text), name
    statuses = text.partition("Exit status:")[2]
    assert re.findall(r"^  (\S+) ", statuses, re.MULTILINE) == [
        "0",
        "N",
        "128+N",
        "2",
        "66",
        "70",
        "71",
        "72",
        "73",
        "74",
        "75",
        "76",
        "77",
        "78",
    ]
    assert place.names() == {"train.py"}


def test_version(place: Place) -> None:
    ended = place.run("--version")
    assert (ended.status, ended.stdout.decode(), ended.stderr) == (0, f"rlaunch {rlaunch.__version__}\n", "")
