"""``rlaunch doctor`` on this machine: faults that are set up for real, and a sound machine."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hanging_folder import hanging_folder
from launching import LIMIT, environment

DOCTOR = [sys.executable, "-m", "rlaunch.control", "doctor"]
# Mounts and names of its own, as a plain user too.
ALONE = ["unshare", "--user", "--map-root-user", "--mount"]


@dataclass(frozen=True)
class Fault:
    """A fault, and what the command says about it."""

    check: str
    level: str
    text: str
    hint: str
    # Shell commands in a mount namespace that set it up.
    setup: str = ""
    # The command that starts the command.
    prefix: list[str] = field(default_factory=list)
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    # The definitions of the fake driver.
    driver: list[str] | None = None


FAULTS = {
    "hard limit of open files": Fault(
        "open files", "error", "the hard limit is 30", "LimitNOFILE", prefix=["prlimit", "--nofile=30:30"]
    ),
    "soft limit of open files": Fault(
        "open files", "warning", "the soft limit is 500", "ulimit -Sn", prefix=["prlimit", "--nofile=500:"]
    ),
    "small /dev/shm": Fault(
        "/dev/shm", "warning", "1.0 MiB in all", "--shm-size", "mount -t tmpfs -o size=1m none /dev/shm"
    ),
    "full log_dir": Fault(
        "log_dir",
        "error",
        "is full (tmpfs)",
        "--log_dir",
        "mkdir log; mount -t tmpfs -o size=64k none log; head -c 1m /dev/zero > log/old 2> log/error || true",
    ),
    "read-only log_dir": Fault(
        "log_dir", "error", "mounted read-only", "--log_dir", "mkdir log; mount -t tmpfs -o ro none log"
    ),
    "log_dir below a file": Fault(
        "log_dir", "error", "is not a folder", "--log_dir", args=["--log_dir", f"{__file__}/log"]
    ),
    "no /proc": Fault(
        "procfs", "warning", "/proc is not mounted", "mount -t proc", "mount -t tmpfs none /proc"
    ),
    "host name that is loopback": Fault(
        "host name",
        "warning",
        "node9 resolves to 127.0.1.1",
        "/etc/hosts",
        "hostname node9; echo 127.0.1.1 node9 > hosts; mount --bind hosts /etc/hosts",
        prefix=["unshare", "--user", "--map-root-user", "--mount", "--uts"],
        args=["--master", "node9:6768"],
    ),
    "no network": Fault(
        "interfaces", "error", "not even loopback", "ip link set lo up", prefix=["unshare", "-Urn"]
    ),
    "an interface that is not there": Fault(
        "NCCL_SOCKET_IFNAME",
        "error",
        "names no interface",
        "unset NCCL_SOCKET_IFNAME",
        env={"NCCL_SOCKET_IFNAME": "=eth77"},
    ),
    "another launcher's variables": Fault(
        "variables",
        "warning",
        "RANK=5 is not below WORLD_SIZE=2",
        "unset RANK WORLD_SIZE",
        env={"RANK": "5", "WORLD_SIZE": "2"},
    ),
    "endpoints of other nodes": Fault(
        "variables",
        "warning",
        "has 2 endpoints, but PADDLE_TRAINERS_NUM=3",
        "unset PADDLE_TRAINER_ENDPOINTS",
        env={"PADDLE_TRAINER_ENDPOINTS": "a:1,b:1", "PADDLE_TRAINERS_NUM": "3"},
    ),
    "a proxy that catches the master": Fault(
        "proxies",
        "warning",
        "http_proxy would catch requests to 192.0.2.7",
        "no_proxy=192.0.2.7",
        args=["--master", "192.0.2.7:6768"],
        env={"http_proxy": "http://proxy.invalid:3128", "no_proxy": "localhost"},
    ),
    "hidden GPUs": Fault(
        "CUDA_VISIBLE_DEVICES",
        "warning",
        "'' hides all 4 GPUs",
        "unset CUDA_VISIBLE_DEVICES",
        env={"CUDA_VISIBLE_DEVICES": ""},
        driver=[],
    ),
    "a GPU that is not there": Fault(
        "CUDA_VISIBLE_DEVICES",
        "error",
        "there is no GPU 9",
        "numbers below 4",
        env={"CUDA_VISIBLE_DEVICES": "0,9"},
        driver=[],
    ),
    "a GPU twice": Fault(
        "CUDA_VISIBLE_DEVICES",
        "error",
        "'0' occurs twice",
        "name each device once",
        env={"CUDA_VISIBLE_DEVICES": "0,0"},
        driver=[],
    ),
    "GPUs in use": Fault(
        "GPU memory",
        "warning",
        "GPU 0: 87.9 GiB of 140.4 GiB in use by python4000 (pid 4000) with 512.0 MiB",
        "choose other GPUs",
        driver=["-DUSED=90000"],
    ),
    "memory errors": Fault(
        "GPU fault", "warning", "GPU 2 has 7 memory errors", "--gpu-reset -i 2", driver=["-DFAULTY"]
    ),
    "a lost GPU": Fault(
        "GPU fault", "error", "the driver has lost GPU 3", "leave it out", driver=["-DFAULTY"]
    ),
    "a driver that hangs": Fault(
        "GPUs", "error", "driver does not answer", "state D", driver=["-DHANGS_AT_FIRST"]
    ),
    "a driver that is not loaded": Fault(
        "GPUs", "warning", "kernel module is not loaded", "modprobe nvidia", driver=["-DUNLOADED"]
    ),
}


def examine(
    folder: Path, *args: str, prefix: list[str] | None = None, env: dict[str, str] | None = None
) -> tuple[int, str]:
    """The exit status of the command, and what it prints."""
    command = [*(prefix or []), *DOCTOR, *args]
    done = subprocess.run(
        command,
        cwd=folder,
        env=env or environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.stderr == "", done.stderr
    return done.returncode, done.stdout


def findings(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)["findings"]
    return found


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_way_out(
    name: str, tmp_path: Path, driver: Callable[..., dict[str, str]]
) -> None:
    fault = FAULTS[name]
    env = {**environment(), **fault.env}
    if fault.driver is not None:
        env["LD_LIBRARY_PATH"] = driver(*fault.driver)["LD_LIBRARY_PATH"]
    prefix = fault.prefix
    if fault.setup:
        prefix = [*(prefix or ALONE), "sh", "-ec", f'{fault.setup}\nexec "$@"', "sh"]
    status, text = examine(tmp_path, *fault.args, "--json", prefix=prefix, env=env)
    found = [one for one in findings(text) if one["check"] == fault.check and fault.text in one["text"]]
    assert [one["level"] for one in found] == [fault.level], text
    assert fault.hint in found[0]["hint"]
    assert status == int(json.loads(text)["level"] == "error")


@pytest.mark.parametrize(("strict", "status"), [((), 0), (("--strict",), 1)])
def test_a_warning_fails_by_an_option(
    strict: tuple[str, ...], status: int, tmp_path: Path, driver: Callable[..., dict[str, str]]
) -> None:
    path = driver("-DUSED=90000")["LD_LIBRARY_PATH"]
    found, text = examine(tmp_path, *strict, env=environment(LD_LIBRARY_PATH=path))
    assert (found, "in use by python4000 (pid 4000)" in " ".join(text.split())) == (status, True), text


def test_one_cpu_of_several_is_named(tmp_path: Path) -> None:
    cpu = str(min(os.sched_getaffinity(0)))
    _, text = examine(tmp_path, "--json", prefix=["taskset", "--cpu-list", cpu])
    (found,) = (one for one in findings(text) if one["check"] == "CPUs")
    assert found["level"] == "warning"
    assert f"may use 1 of {os.cpu_count()} CPUs" in found["text"]
    assert "--cpus-per-task" in found["hint"]


def test_a_port_in_use_is_named_with_its_process(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = f"127.0.0.1:{server.getsockname()[1]}"
        _, text = examine(tmp_path, "--master", at, "--json")
    (found,) = (one for one in findings(text) if one["check"] == "master")
    assert found["level"] == "warning"
    assert f"in use by pid {os.getpid()}" in found["text"]


def test_a_log_folder_that_hangs_is_named(tmp_path: Path) -> None:
    with hanging_folder(subprocess.Popen, tmp_path / "log") as folder, folder.hangs():
        status, text = examine(tmp_path, "--json", prefix=folder.prefix)
    (found,) = (one for one in findings(text) if one["check"] == "log_dir")
    assert (status, found["level"]) == (1, "error")
    assert "does not answer" in found["text"]


def test_two_versions_of_a_framework_in_one_folder_are_named(tmp_path: Path) -> None:
    for version in ("1.0", "2.0"):
        (tmp_path / f"torch-{version}.dist-info").mkdir()
    _, text = examine(tmp_path, "--json", env=environment(PYTHONPATH=str(tmp_path)))
    found = [one for one in findings(text) if one["check"] == "frameworks"]
    assert [one["level"] for one in found] == ["ok", "warning"]
    assert f"torch is there as 1.0 and 2.0 in {tmp_path}" in found[1]["text"]
    # The first folder of the path counts.
    assert "torch 1.0 (before" in found[0]["text"]


SOUND = """
mount -t tmpfs -o size=2g none /dev/shm
mkdir log
mount -t tmpfs -o size=2g none log
"""


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_sound_machine_has_no_warning(
    gpus: int, tmp_path: Path, driver: Callable[..., dict[str, str]]
) -> None:
    # What this machine may lack is mounted; the rest is as it is.
    prefix = [*ALONE, "sh", "-ec", f'{SOUND}\nexec "$@"', "sh"]
    env = environment()
    if gpus:
        env["LD_LIBRARY_PATH"] = driver(f"-DGPUS={gpus}")["LD_LIBRARY_PATH"]
    status, text = examine(tmp_path, "--strict", prefix=prefix, env=env)
    assert status == 0
    assert text.splitlines()[-1].startswith("no errors, no warnings"), text
    assert not [line for line in text.splitlines() if line.startswith(("warning", "error", "         ->"))]


def test_this_machine_has_no_error_and_nothing_is_written(tmp_path: Path) -> None:
    status, text = examine(tmp_path)
    assert status == 0, text
    assert list(tmp_path.iterdir()) == []


def test_text_and_json_say_the_same(tmp_path: Path) -> None:
    env = environment(CUDA_VISIBLE_DEVICES="0,0", RANK="5", http_proxy="http://me:hidden@proxy.invalid:1")
    status, text = examine(tmp_path, "--master", "192.0.2.7:6768", env=env)
    other, as_json = examine(tmp_path, "--master", "192.0.2.7:6768", "--json", env=env)
    assert status == other == 1
    assert "hidden" not in text + as_json

    def shown(text: str) -> str:
        """In one line, without the free space, which other programs change between the two runs."""
        return re.sub(r"[\d.]+ (?=[KMGT]iB free)", "", " ".join(text.split()))

    words = shown(text)
    for one in findings(as_json):
        assert shown(f"{one['level']} {one['check']}: {one['text']}") in words
        assert (one["hint"] is None) == (one["level"] in ("ok", "unknown"))
        assert one["hint"] is None or f"-> {one['hint']}" in words


def test_a_framework_is_not_imported(tmp_path: Path) -> None:
    for name in ("torch", "paddle", "jax", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')\n")
    status, _ = examine(tmp_path, env=environment(PYTHONPATH=str(tmp_path)))
    assert status == 0
