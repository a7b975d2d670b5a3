"""Jobs in containers that share a folder or a cgroup with others: what belongs to others is not touched."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hosts import AS_USER
from launching import LIMIT, Place, environment, gone, runs, until
from own_memory import SHARES_AS_PADDLE

# The launcher is process 1, and /dev/shm is that of this machine (`docker run --ipc=host`).
CONTAINER = ["unshare", *AS_USER, "--pid", "--fork", "--mount-proc", "--kill-child"]
ENDINGS = ["os._exit(0)", "os._exit(3)", "sys.exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"]


@pytest.fixture
def others() -> Iterator[list[Path]]:
    """Shared memory of processes of another container, whose numbers are those of all processes here."""
    token = uuid.uuid4().hex
    files = [
        Path(f"/dev/shm/{kind}_{pid}_0_{token}") for kind in ("paddle", "torch") for pid in range(1, 400)
    ]
    for file in files:
        file.touch()
    yield files
    for file in files:
        file.unlink(missing_ok=True)


def run_in_container(place: Place, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CONTAINER, sys.executable, "-m", "rlaunch", *args],
        cwd=place.folder, env=environment(), capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS)
def test_shared_memory_of_another_container_is_left(place: Place, others: list[Path], ending: str) -> None:
    script = place.script(f"{SHARES_AS_PADDLE}\n{ending}\n")
    try:
        done = run_in_container(place, "--nproc_per_node=2", script)
        assert [file for file in others if not file.exists()] == []
        assert done.returncode == {"os._exit(0)": 0, ENDINGS[3]: 137}.get(ending, 3), done.stderr
        workers = [
            Path(place.text(f"worker.{rank}"))
            for rank in range(2)
            if (place.folder / f"worker.{rank}").exists()
        ]
        assert workers
        assert [file for file in workers if file.exists()] == [], "its processes were seen to have them"
        assert "left " in done.stderr
        assert "file(s) in /dev/shm" in done.stderr
    finally:
        for name in place.folder.glob("*.[01]"):
            if (path := name.read_text()).startswith("/dev/shm/paddle_"):
                Path(path).unlink(missing_ok=True)


# A child of the shell that becomes the launcher leaves an orphan, which becomes the launcher's child.
SHELL = """
(
    while [ ! -e go ]; do sleep 0.02; done
    setsid sleep 1000 > /dev/null 2>&1 &
    echo $! > orphan.tmp
    mv orphan.tmp orphan
) &
exec "$@"
"""
LEAVES = """
import subprocess
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
tell("daemon", subprocess.Popen(["sleep", "1000"], **quiet).pid)
tell("bare", subprocess.Popen(["sleep", "1000"], env={}, **quiet).pid)
tell("ready", os.getpid())
sleep()
"""


@pytest.mark.parametrize("loss", ["killed", "stopped"])
def test_an_orphan_of_an_earlier_child_is_not_swept(place: Place, loss: str) -> None:
    """The launcher process ends the processes of the job when it has lost its supervisor, and no others.

    A stopped supervisor shows which processes are below it. Of a killed one, only those with the key or in
    the job's cgroup are known.
    """
    place.script(LEAVES)
    launch = [sys.executable, "-m", "rlaunch", "--cgroup=false", "--grace_period=1", "train.py"]
    command = ["sh", "-c", SHELL, "sh", *launch]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    launcher = subprocess.Popen(command, cwd=place.folder, env=environment(), **pipes)
    place.launcher = launcher
    orphan = None
    with place.cleaned(launcher):
        try:
            place.ready(1)
            rank = psutil.Process(int(place.text("ready.0")))
            (place.folder / "go").touch()
            until((place.folder / "orphan").exists, "the orphan")
            orphan = psutil.Process(int(place.text("orphan")))
            until(lambda: orphan.ppid() == launcher.pid, "the launcher as its parent")
            supervisor = psutil.Process(rank.ppid())
            if loss == "killed":
                supervisor.kill()
            else:
                supervisor.suspend()
                launcher.terminate()
            ended = place.wait(launcher)
            assert ended.status == 72, ended.stderr
            assert orphan.is_running(), ended.stderr
            until(lambda: gone(rank), "the rank's end")
            for name in ["daemon.0"] if loss == "killed" else ["daemon.0", "bare.0"]:
                pid = int(place.text(name))
                until(lambda pid=pid: not runs(pid, "sleep"), "its processes' end")
        finally:
            for pid in [place.text(name) for name in ("orphan", "bare.0") if (place.folder / name).exists()]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
