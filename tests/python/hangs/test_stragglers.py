"""``--straggler_timeout``: ranks that still run when another one has exited successfully long ago."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest
from launching import Place, environment, until, validate

# Rank 1 has no more data, and the others wait for it.
LEFT_ALONE = "tell('ready', os.getpid())\nsys.exit() if rank == 1 else sleep()\n"
SAID = "rank(s) 0, 2 still run 0.5 s after rank 1 exited successfully (--straggler_timeout); they get SIGABRT"
WHY = "rlaunch sent it SIGABRT (--straggler_timeout): it still ran"


def test_they_are_named_and_fail(place: Place) -> None:
    place.script(LEFT_ALONE)
    ended = place.run("--nproc_per_node=3", "--straggler_timeout=0.5", "train.py")
    assert ended.status == 128 + signal.SIGABRT, ended.stderr
    assert f"rlaunch: {SAID}\n" in ended.stderr, ended.stderr
    said = re.sub(r"\s+", " ", place.result()["verdict"])
    assert f"{WHY} 0.5 s after rank 1 had exited successfully" in said, said
    (event,) = [one for one in place.events() if one["event"] == "stragglers"]
    validate(event, "events")
    assert (event["living"], event["first"], event["limit_seconds"]) == ([0, 2], 1, 0.5)
    assert place.result()["culprit"] in (0, 2)


def test_a_restart_follows(place: Place) -> None:
    place.script("""
        if os.path.exists("again") or rank == 1:
            sys.exit()
        open("again", "w").close()
        sleep()
    """)
    restarts = ("--max_restart=1", "--restart_delay=0", "--restart_on=134")
    ended = place.run("--nproc_per_node=2", "--straggler_timeout=0.5", *restarts, "train.py")
    assert ended.status == 0, ended.stderr
    assert place.result()["attempts"][0]["culprit"] == 0
    assert "rank 0 failed first, with signal SIGABRT (sent by rlaunch)" in ended.stderr, ended.stderr


def test_one_that_handles_sigabrt_is_killed_after_the_grace_period(place: Place) -> None:
    place.script("signal.signal(signal.SIGABRT, lambda *_: tell('asked'))\n" + LEFT_ALONE)
    options = ("--nproc_per_node=2", "--straggler_timeout=0.5", "--grace_period=0.5")
    ended = place.run(*options, "train.py")
    assert ended.status == 128 + signal.SIGKILL, ended.stderr
    assert "asked.0" in place.names()
    assert WHY in re.sub(r"\s+", " ", ended.stderr), ended.stderr
    assert "rank(s) 0 did not end by SIGABRT within the grace period: sending SIGKILL\n" in ended.stderr
    (event,) = [one for one in place.events() if one["event"] == "killing"]
    validate(event, "events")


def test_one_whose_handler_exits_is_reported_as_aborted(place: Place) -> None:
    place.script("signal.signal(signal.SIGABRT, lambda *_: sys.exit(7))\n" + LEFT_ALONE)
    ended = place.run("--nproc_per_node=2", "--straggler_timeout=0.5", "train.py")
    assert ended.status == 7, ended.stderr
    said = re.sub(r"\s+", " ", place.result()["verdict"])
    assert WHY in said, said
    assert "sent by rlaunch" not in said, said


def test_without_it_they_run_on(place: Place) -> None:
    place.script("tell('ready', os.getpid())\nif rank == 0: await_file('ready.1'), await_file('go')\n")
    with place.start("--nproc_per_node=2", "train.py") as launcher:
        until(lambda: {"ready.0", "ready.1"} <= place.names(), "the ranks")
        with pytest.raises(subprocess.TimeoutExpired):
            launcher.wait(timeout=2)
        (place.folder / "go").touch()
        assert place.wait(launcher).status == 0


def test_torchruns_command_line_has_it_too(place: Place) -> None:
    (place.folder / "train.py").write_text(
        "import os, time\nif os.environ['RANK'] == '0': time.sleep(1000)\n"
    )
    env = environment(RLAUNCH_STRAGGLER_TIMEOUT="0.5")
    command = [sys.executable, "-m", "rlaunch.run", "--nproc-per-node=2", "train.py"]
    done = subprocess.run(command, env=env, cwd=place.folder, capture_output=True, text=True, timeout=40)
    assert done.returncode == 128 + signal.SIGABRT
    assert "rank(s) 0 still runs 0.5 s after rank 1 exited successfully" in done.stderr, done.stderr
    assert f"\n  aborted   : {WHY} 0.5 s after rank 1 had exited successfully\n" in done.stderr, done.stderr
