"""Jobs in containers as Kubernetes runs them: what docs/kubernetes.md says about them is seen here."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from pathlib import Path

import pytest
import yaml
from effort import each
from kubernetes_pods import Pod, pods
from launching import TALKING, await_line, await_none_marked, signals_in, until
from manifests import WITH_PODS
from multi_host import MultiHost
from paths import ROOT

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount the containers' root folders")

TWO_RANKS = {"PADDLE_NPROC_PER_NODE": "2", "PET_NPROC_PER_NODE": "2"}
# Where each rank imports a framework.
ONE_RANK = {"PADDLE_NPROC_PER_NODE": "1", "PET_NPROC_PER_NODE": "1"}
RANK = f"""
import os, signal, subprocess, sys, time
rank = int(os.environ.get("RANK") or os.environ["PADDLE_TRAINER_ID"])
{TALKING}"""

# What a rank sees of its container. The launcher is process 1, and this is the supervisor's child.
CONFINED = """
import pwd
assert os.getuid() == os.getgid() == 10001 and os.getgroups() == []
try:
    sys.exit(f"this user has a name: {pwd.getpwuid(os.getuid())}")
except KeyError:
    pass
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
assert {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}, status
assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"), status
assert b"rlaunch" in open("/proc/1/cmdline", "rb").read()
# The launcher could make no cgroup.
assert "rlaunch-" not in open("/proc/self/cgroup").read()
for path in ("/file", "/app/file", "/etc/file", "/dev/file", "/proc/sys/kernel/hostname"):
    try:
        open(path, "w")
        sys.exit(f"{path} was written")
    except OSError:
        pass
"""
PLAIN = """
tell("sum", 10)
"""
PADDLE = """
import paddle
import paddle.distributed as dist
dist.init_parallel_env()
number = paddle.to_tensor([float(rank + 1)])
dist.all_reduce(number)
tell("sum", int(number.item()))
"""
TORCH = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
number = torch.tensor([float(rank + 1)])
dist.all_reduce(number)
tell("sum", int(number.item()))
dist.destroy_process_group()
"""
# Saves at SIGTERM, and leaves a process that ignores it.
SAVES = """
def save(*_):
    tell("saved")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
deaf = ["sh", "-c", "trap '' TERM; echo; exec sleep 600"]
child = subprocess.Popen(deaf, stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
tell("ready", os.getpid())
sleep()
"""
WAITS = """
def load_batch():
    tell("ready", os.getpid())
    sleep()

load_batch()
"""


def await_ranks(started: list[Pod]) -> None:
    """Waits until each rank has written that it is ready."""
    for node, pod in enumerate(started):
        for rank in (2 * node, 2 * node + 1):
            path = pod.tmp / f"ready.{rank}"
            until(lambda path=path, pod=pod: path.exists() or pod.runtime.poll() is not None, str(path))
            assert path.exists(), pod.wait()


def start(made: list[Pod], command: list[str] | None = None) -> None:
    for pod in made:
        pod.start(command)


@pytest.mark.parametrize(
    ("file", "train", "ranks"),
    [
        ("job.yaml", PADDLE, ONE_RANK),
        ("jobset.yaml", PLAIN, TWO_RANKS),
        ("trainjob.yaml", TORCH, ONE_RANK),
    ],
    ids=WITH_PODS,
)
def test_two_pods_are_one_job(
    file: str, train: str, ranks: dict[str, str], tmp_path: Path, made: MultiHost
) -> None:
    script = RANK + CONFINED + train
    with pods(file, script, tmp_path, made.on, **ranks) as both:
        start(both)
        ended = [pod.wait() for pod in both]
        assert [end.status for end in ended] == [0, 0], ended
        for end in ended:
            assert "not permitted" not in end.stderr, end.stderr
        sums = {path.name: path.read_text() for pod in both for path in pod.tmp.glob("sum.*")}
        size = 2 * int(ranks["PET_NPROC_PER_NODE"])
        assert sums == {f"sum.{rank}": str(sum(range(size + 1))) for rank in range(size)}


def test_a_pod_waits_for_the_name_of_pod_0(tmp_path: Path, made: MultiHost) -> None:
    """Which the Service has as soon as that pod has an address."""
    with pods("job.yaml", RANK, tmp_path, made.on, **TWO_RANKS) as both:
        names = both[1].hosts_file.read_text()
        both[1].hosts_file.write_text("127.0.0.1 localhost\n")
        both[1].start()
        assert both[1].runtime is not None
        line = await_line(both[1].runtime.stderr, b"waiting for the master at train-0.train:6768 ")
        both[1].hosts_file.write_text(names)
        both[0].start()
        ended = [pod.wait() for pod in both]
        assert [end.status for end in ended] == [0, 0], (line, ended)


@each("file", WITH_PODS)
def test_sigterm_to_one_pod_ends_the_job(file: str, tmp_path: Path, made: MultiHost) -> None:
    with pods(file, RANK + SAVES, tmp_path, made.on, **TWO_RANKS) as both:
        start(both)
        await_ranks(both)
        both[1].terminate()
        ended = [pod.wait() for pod in both]
        assert [end.status for end in ended] == [77, 143], ended
        assert sorted(path.name for pod in both for path in pod.tmp.glob("saved.*")) == [
            f"saved.{rank}" for rank in range(4)
        ]
        # The launcher has ended what was left, not the container's end.
        for pod in both:
            (result,) = pod.tmp.glob("log/**/result.json")
            assert [rank["swept"] for rank in json.loads(result.read_text())["ranks"]] == [1, 1]
        await_none_marked(both[0].mark)


@each("file", WITH_PODS)
def test_one_failed_rank_fails_one_pod(file: str, tmp_path: Path, made: MultiHost) -> None:
    script = RANK + "if rank == 3: sys.exit(7)\nsleep()\n"
    with pods(file, script, tmp_path, made.on, **TWO_RANKS) as both:
        start(both)
        ended = [pod.wait() for pod in both]
        assert [end.status for end in ended] == [76, 7], ended
        for end in ended:
            assert re.search(r"rank( +:)? 3", end.stderr), end.stderr
        await_none_marked(both[0].mark)


def test_process_1_reaps_orphans(tmp_path: Path, made: MultiHost) -> None:
    orphans = """
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()

def states():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            yield open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
        except OSError:
            pass  # It has ended meanwhile.

until(lambda: "Z" not in states(), "the end of the last zombie")
"""
    with pods("job.yaml", RANK + orphans, tmp_path, made.on, **TWO_RANKS) as both:
        start(both)
        assert [pod.wait().status for pod in both] == [0, 0]


@pytest.mark.parametrize("victim", ["launcher", "supervisor"])
def test_a_killed_launcher_leaves_nothing(victim: str, tmp_path: Path, made: MultiHost) -> None:
    """By the OOM killer, for instance. Without capabilities too the other half ends all ranks."""
    with pods("job.yaml", RANK + WAITS, tmp_path, made.on, **TWO_RANKS) as both:
        start(both)
        await_ranks(both)
        pid = both[1].pid
        if victim == "supervisor":
            (pid,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        os.kill(pid, signal.SIGKILL)
        ended = [pod.wait() for pod in both]
        assert [end.status for end in ended] == [75, {"launcher": 137, "supervisor": 72}[victim]], ended
        await_none_marked(both[0].mark)


def test_one_can_look_into_the_containers(tmp_path: Path, made: MultiHost) -> None:
    """Without process_vm_readv and ptrace, stacks are read from /proc/PID/mem."""
    with pods("job.yaml", RANK + WAITS, tmp_path, made.on, **TWO_RANKS) as both:
        start(both)
        await_ranks(both)
        status = both[0].exec("rlaunch", "status")
        assert status.returncode == 0, status
        for rank in range(4):
            assert f"rank {rank} " in status.stdout, status.stdout
        stacks = both[1].exec("rlaunch", "stacks")
        assert stacks.returncode == 0, stacks
        assert "ranks 0-3 (4 of 4): in sleep" in stacks.stdout, stacks.stdout
        assert "load_batch (/app/train.py:" in stacks.stdout, stacks.stdout


def test_a_hook_stops_a_launcher_that_is_not_process_1(tmp_path: Path, made: MultiHost) -> None:
    """The kernel drops a signal for which process 1 has no handler."""
    (hook,) = re.findall(r"^ *command: (\[rlaunch, stop\])$", (ROOT / "docs/kubernetes.md").read_text(), re.M)
    with pods("job.yaml", RANK + SAVES, tmp_path, made.on, **TWO_RANKS) as both:
        for pod in both:
            pod.start(["sh", "-c", f"{shlex.join(pod.container.command)}; exit $?"])
        await_ranks(both)
        assert signal.SIGTERM not in signals_in(both[0].pid, "SigCgt")
        both[0].terminate()
        # The end of the container may end the hook first.
        both[0].exec(*yaml.safe_load(hook))
        ended = [pod.wait() for pod in both]
        assert [end.status for end in ended] == [143, 77], ended
        assert sum(len(list(pod.tmp.glob("saved.*"))) for pod in both) == 4


def test_a_log_folder_that_cannot_be_written_is_named(tmp_path: Path, made: MultiHost) -> None:
    with pods("job.yaml", RANK, tmp_path, made.on, **TWO_RANKS, PADDLE_LOG_DIR="/app/log") as both:
        start(both)
        ended = [pod.wait() for pod in both]
        assert [end.status for end in ended] == [66, 66], ended
        assert "/app/log" in ended[0].error_lines()[0]
