"""Shared memory of ranks and of the workers of data loaders: nothing of it is left, however a rank ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from launching import LEFT_TO_A_TRACKER, LIMIT, Place, await_line, environment, until
from own_memory import OWN_MEMORY, SEES_ALL, SHARES_AS_PADDLE, needs_own_memory
from processes import alive

# As torch's DataLoader shares batches with this strategy: `torch_shm_manager` removes the memory 2 s after
# its last client has ended.
SHARES = """
import os, signal, sys
import torch.multiprocessing

torch.multiprocessing.set_sharing_strategy("file_system")
kept = torch.zeros(100_000).share_memory_()
own = [name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_")]
assert len(own) == 1, own
open("shared", "a").write(f"{own[0]}\\n")
"""
ENDINGS = {
    "exits": "",
    "raises": "raise ValueError('out')",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_shared_memory_of_torch_is_removed(place: Place, ending: str) -> None:
    script = place.script(f"{SHARES}\n{ENDINGS[ending]}\n")
    ended = place.run(script)
    assert (ended.status == 0) == (ending == "exits"), ended.stderr
    names = place.text("shared").split()
    assert names
    assert [name for name in names if Path("/dev/shm", name).exists()] == []
    assert "swept" not in ended.stderr


def test_a_launcher_that_is_killed_leaves_none(place: Place) -> None:
    script = place.script(f"{SHARES}\nopen('ready.0', 'w').write(str(os.getpid()))\nsignal.pause()\n")
    with place.start(script) as launcher:
        place.ready(1)
        launcher.kill()
        launcher.wait()
    (name,) = place.text("shared").split()
    until(lambda: not Path("/dev/shm", name).exists(), "the removal of torch's shared memory")


def test_a_stop_between_attempts_does_not_wait_for_torch(place: Place) -> None:
    """A process of that name stands for `torch_shm_manager`: it ends once the signal is answered."""
    os.mkfifo(place.folder / "end")
    (place.folder / "torch_shm_manager").write_text("#!/bin/sh\nread line < end\n")
    (place.folder / "torch_shm_manager").chmod(0o700)
    place.script("""
        import subprocess
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.Popen(["./torch_shm_manager"], start_new_session=True, **quiet)
        sys.exit(4)
    """)
    with place.start("--max_restart=1", "--restart_delay=0", "train.py") as launcher:
        await_line(launcher.stderr, b"restart 1 (at most 1)")
        launcher.terminate()
        await_line(launcher.stderr, b"SIGTERM: nothing runs")
        (place.folder / "end").write_text("\n")
        ended = Place.wait(launcher)
    assert ended.status == 143, ended.stderr
    attempts = [event["attempt"] for event in place.events() if event["event"] == "rank_started"]
    assert attempts == [0]
    assert "swept" not in ended.stderr


# As a worker of torch's DataLoader with the strategy file_descriptor, which is slow between the two steps.
CREATES = """
if os.fork() == 0:
    name = f"/dev/shm/torch_{os.getpid()}_1_0"
    kept = os.open(name, os.O_CREAT | os.O_RDWR)
    tell("creator", os.getpid())
    tell("creating", name)
    until(lambda: os.getppid() != own or os.path.exists("stopping"), "the end of the rank, or a stop")
    time.sleep(0.02)
    os.unlink(name)
    sleep()
await_file(f"creating.{rank}")
"""


def test_a_worker_that_creates_shared_memory_may_remove_its_name(place: Place) -> None:
    script = place.script(f"own = os.getpid()\n{CREATES}os.kill(own, signal.SIGKILL)\n")
    ended = place.run(script)
    assert ended.status == 137, ended.stderr
    assert not Path(place.text("creating.0")).exists()
    assert not alive(int(place.text("creator.0")))


def test_it_may_before_the_rank_is_asked_to_stop(place: Place) -> None:
    script = place.script(f"own = os.getpid()\n{CREATES}tell('ready', own)\nsleep()\n")
    with place.start(script) as launcher:
        place.ready(1)
        (supervisor,) = psutil.Process(launcher.pid).children()
        before = supervisor.num_ctx_switches().voluntary
        launcher.terminate()
        # Else the worker could be done before the supervisor waits for it, which looks every millisecond.
        until(lambda: supervisor.num_ctx_switches().voluntary > before + 10, "the wait for the worker")
        (place.folder / "stopping").touch()
        ended = Place.wait(launcher)
    assert ended.status == 143, ended.stderr
    assert not Path(place.text("creating.0")).exists()
    assert not alive(int(place.text("creator.0")))


@pytest.mark.parametrize("ending", ["os._exit(0)", "os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
@pytest.mark.parametrize("attempts", [1, 2])
def test_shared_memory_of_paddle_is_removed(place: Place, ending: str, attempts: int) -> None:
    script = place.script(f"{SHARES_AS_PADDLE}\n{ending}\n")
    mine = Path(f"/dev/shm/paddle_{os.getpid()}_0_123")
    mine.touch()
    try:
        place.run(f"--max_restart={attempts - 1}", "--restart_delay=0", script)
        assert not Path(place.text("worker.0")).exists()
        assert mine.exists(), "a process that lives has created it"
    finally:
        mine.unlink()
        Path(place.text("own.0")).unlink(missing_ok=True)


@pytest.mark.parametrize("ending", ["terminate", "kill"])
def test_it_is_removed_when_the_job_is_stopped(place: Place, ending: str) -> None:
    script = place.script(f"{SHARES_AS_PADDLE}\ntell('ready', os.getpid())\nsleep()\n")
    with place.start(script) as launcher:
        place.ready(1)
        getattr(launcher, ending)()
        launcher.wait()
    for name in ("worker.0", "own.0"):
        until(lambda name=name: not Path(place.text(name)).exists(), "the removal of Paddle's shared memory")


# Files that no process had when rlaunch looked: it had ended by itself, or handed the file on.
UNSEEN = {
    "the rank exits": "share(); os._exit(3)",
    "a worker exits": """
if os.fork() == 0:
    share()
    os._exit(0)
os.wait()
os._exit(0)
""",
    "handed on": """
if os.fork() == 0:
    share()
    kept.pop().close()
    tell("closed")
    sleep()
await_file(f"closed.{rank}")
sys.exit(3)
""",
    "the supervisor is killed": """
share()
os.kill(os.getppid(), signal.SIGKILL)
sleep()
""",
}


@needs_own_memory
@pytest.mark.parametrize("story", UNSEEN)
def test_files_that_no_process_was_seen_to_have_are_removed_only_where_they_are_certain(
    place: Place, story: str
) -> None:
    """A worker that its rank has reaped is no process that rlaunch has ended: its files stay."""
    shares = SHARES_AS_PADDLE.partition("own = share()")[0]
    script = place.script(f"{shares}{UNSEEN[story]}")
    command = [sys.executable, "-m", "rlaunch", script]
    wrapper = ["sh", "-c", '"$@"; ls /dev/shm/paddle_* > left 2> /dev/null; true', "sh"]
    options = {
        "cwd": place.folder,
        "env": environment(),
        "capture_output": True,
        "timeout": LIMIT,
        "text": True,
    }
    done = subprocess.run([*OWN_MEMORY, *wrapper, *command], check=True, **options)
    left = place.text("left").split()
    is_kept = story == "a worker exits" or not SEES_ALL
    assert len(left) == is_kept, (left, done.stderr)
    is_said = is_kept and story != "a worker exits"
    assert all((f"({name})" in done.stderr) == is_said for name in left), done.stderr


def test_the_resource_tracker_of_a_rank_outlives_a_killed_launcher(place: Place) -> None:
    """Also one whose terminal was closed: the tracker ignores SIGTERM and SIGINT, not SIGHUP."""
    script = place.script(f"{LEFT_TO_A_TRACKER}tell('deaf', os.getpid())\nsleep()\n")
    for stop in (signal.SIGKILL, signal.SIGHUP):
        with place.start(script) as launcher:
            until(lambda: (place.folder / "deaf.0").exists(), "the rank")
            memory = Path("/dev/shm", place.text("ready.0"))
            assert memory.exists()
            launcher.send_signal(stop)
            launcher.wait()
        try:
            until(
                lambda memory=memory: not memory.exists(),
                f"the removal of the shared memory after {stop!r}",
                5,
            )
        finally:
            memory.unlink(missing_ok=True)
        (place.folder / "deaf.0").unlink()
