"""Who is to blame, in jobs of real torch: a rank that only lost its connection to another is a victim."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import ATTEMPT, Ended, Place
from torch_launching import TorchPlace

GLOO = """
import datetime, json, sys, time, traceback
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
"""
# The traceback is printed and the connections are closed, then the rank takes its time to exit, as with a
# handler of atexit that uploads something.
STILL_EXITING = """
if rank == 0:
    try:
        raise ValueError("loss is nan")
    except ValueError:
        traceback.print_exc()
        dist.destroy_process_group()
        tell("printed")
        sleep()
dist.barrier()
"""
# Its own error, then that of the connection that it closed.
CHAINED = """
if rank == 0:
    try:
        raise KeyError("step")
    finally:
        dist.destroy_process_group()
dist.barrier()
"""
EXITED_EARLY = """
if rank == 1:
    sys.stdout.flush()
    os._exit(0)
dist.barrier()
"""
# A rank that answers the stop with an exception, and logged one that it had handled before.
ANSWERS = """
import signal, traceback

def refuse(*_):
    raise ValueError("stopped in the midst of a step")

if rank == 1:
    signal.signal(signal.SIGTERM, refuse)
    try:
        raise KeyError("handled")
    except KeyError:
        traceback.print_exc()
    for step in range(30):
        print("step", step, file=sys.stderr)
    tell("runs")
    sleep()
await_file("runs.1")
raise RuntimeError("[gloo/transport/tcp/pair.cc:545] Connection closed by peer [127.0.0.1]:1")
"""


def paddles(folder: Path, script: str, ranks: int, framework: str | None = "torch") -> Ended:
    place = Place(folder)
    place.script(script, framework=framework)
    return place.run(f"--nproc_per_node={ranks}", "--frameworks=paddle,torch", "train.py")


def torchs(folder: Path, script: str, ranks: int, framework: str | None = "torch") -> Ended:
    place = TorchPlace(folder)
    place.script(script, framework=framework)
    return place.run(f"--nproc-per-node={ranks}", "train.py")


LAUNCHERS = pytest.mark.parametrize("launch", [paddles, torchs])


@LAUNCHERS
def test_a_rank_that_failed_and_still_exits_is_the_culprit(launch: object, tmp_path: Path) -> None:
    assert callable(launch)
    ended = launch(tmp_path, GLOO + STILL_EXITING, 3)
    assert ended.status == 1
    if launch is paddles:
        assert "\nrank 0 failed: ValueError: loss is nan\n" in ended.stderr
    else:
        assert "exception : ValueError: loss is nan" in ended.stderr
    words = " ".join(ended.stderr.split())
    assert "it had failed, and was still exiting when rank" in words
    assert "another node" not in words
    assert "rank 0 was stopped" not in words


@LAUNCHERS
def test_the_first_of_chained_errors_counts(launch: object, tmp_path: Path) -> None:
    assert callable(launch)
    ended = launch(tmp_path, GLOO + CHAINED, 2)
    words = " ".join(ended.stderr.split())
    assert "KeyError: 'step'" in words
    assert "rank 0 failed" in words if launch is paddles else "rank : 0 (local_rank: 0)" in words
    assert "rank 0 lost its connection" not in words


@LAUNCHERS
def test_a_rank_that_exited_too_early_is_named(launch: object, tmp_path: Path) -> None:
    assert callable(launch)
    ended = launch(tmp_path, GLOO + EXITED_EARLY, 2)
    assert ended.status == 1
    words = " ".join(ended.stderr.split())
    assert "it lost its connection to a peer (gloo): rank 1 had exited with 0 before" in words
    assert "another node" not in words


@pytest.mark.parametrize("script", ["os.environ['RANK']", GLOO], ids=["os.environ", "torch"])
def test_a_script_of_torch_without_its_variables(place: Place, script: str) -> None:
    place.script(script, framework="torch" if script is GLOO else None)
    ended = place.run("--nproc_per_node=2", "train.py")
    way_out = "this job does not set torch's RANK: start it with --frameworks torch, or paddle,torch"
    assert way_out in " ".join(ended.stderr.split()), ended.stderr


def test_a_key_of_the_script_is_no_variable_of_torch(tmp_path: Path) -> None:
    ended = paddles(tmp_path, "{}['RANK']", 1, framework=None)
    assert "KeyError: 'RANK'" in ended.stderr
    assert "--frameworks torch" not in ended.stderr


def test_a_rank_that_answers_the_stop_is_not_to_blame(place: Place) -> None:
    ended = place.run("--nproc_per_node=2", place.script(ANSWERS))
    words = " ".join(ended.stderr.split())
    assert "rank 0 failed: exit code 1" in words
    silent = "it lost its connection to a peer (gloo); no other rank has printed an error: see their logs"
    assert silent in words


SAME = """
import time, traceback

try:
    import no_module_of_that_name
except ImportError:
    traceback.print_exc()
    tell("printed")
    for other in range(4):
        await_file(f"printed.{other}")
    # All have printed the same before the first exits.
    sys.exit(1)
"""


def test_ranks_that_fail_in_the_same_way_are_one_line(place: Place) -> None:
    ended = place.run("--nproc_per_node=4", place.script(SAME))
    (line,) = [line for line in ended.stderr.splitlines() if line.endswith("failed: exit code 1")]
    culprit = int(line.split()[1])
    others = ", ".join(str(rank) for rank in range(4) if rank != culprit)
    words = " ".join(ended.stderr.split())
    assert f"ranks {others} failed in the same way" in words.replace("1-3", "1, 2, 3").replace(
        "0-2", "0, 1, 2"
    )
    assert "stopped because of it" not in words


# Rank 0 has printed its error and is still exiting when rank 1, which lost its connection to it, exits.
BEHIND_VICTIM = (
    ATTEMPT
    + """
import traceback

if rank == 0 and attempt == 0:
    try:
        raise ValueError("loss is nan")
    except ValueError:
        traceback.print_exc()
    tell("printed")
    sleep()
if attempt == 0:
    await_file("printed.0")
    raise RuntimeError("[gloo/transport/tcp/pair.cc:545] Connection closed by peer [127.0.0.1]:1")
"""
)


def test_a_restart_names_the_failure_behind_the_victim(place: Place) -> None:
    ended = place.run(
        "--nproc_per_node=2", "--max_restart=1", "--restart_delay=0", place.script(BEHIND_VICTIM)
    )
    assert ended.status == 0, ended.stderr
    assert "rank 0 failed first: ValueError: loss is nan; restart 1 (at most 1) at once" in ended.stderr
    (restart,) = [event for event in place.events() if event["event"] == "restarting"]
    assert (restart["culprit"], restart["message"]) == (0, "ValueError: loss is nan")


def test_a_restart_names_the_error(place: Place) -> None:
    script = place.script(ATTEMPT + "if rank == 1 and attempt == 0:\n    raise KeyError('step')\n")
    ended = place.run("--nproc_per_node=2", "--max_restart=1", "--restart_delay=0", script)
    assert ended.status == 0, ended.stderr
    assert (
        "rank 1 failed first, with exit code 1: KeyError: 'step'; restart 1 (at most 1) at once"
        in ended.stderr
    )
