"""Notices of preemption on one node: all ranks stop at one step, and others are stopped as by SIGTERM."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import rlaunch
from launching import Place, free_ports, insist, until
from steps import PREEMPTED, STEPS, TERMINATED, ask, checkpoints, events, state_after, variables

# Ranks that have asked once, and then do something that takes long.
ASKED_ONCE = """
import rlaunch
signal.signal(signal.SIGTERM, lambda *_: (tell("terminated", rlaunch.time_left()), sys.exit(0)))
assert not rlaunch.should_stop(0)
assert rlaunch.time_left() is None
tell("ready", os.getpid())
sleep()
"""


def test_without_a_launcher_nothing_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLAUNCH_STOP_SLOT", raising=False)
    monkeypatch.setattr("rlaunch._rank.identity._opened", None)
    assert not rlaunch.should_stop(3)
    assert rlaunch.time_left() is None


def test_a_launcher_that_cannot_be_seen_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLAUNCH_STOP_SLOT", f"{tmp_path}/gone:0")
    monkeypatch.setattr("rlaunch._rank.identity._opened", None)
    with pytest.raises(FileNotFoundError):
        rlaunch.should_stop(3)


@pytest.mark.parametrize("how", ["rlaunch preempt", "SIGTERM", "file", "time limit"])
def test_a_notice_ends_all_ranks_at_one_step(how: str, place: Place, tmp_path: Path) -> None:
    place.script(STEPS)
    env = variables(tmp_path / "run")
    if how == "time limit":
        env["SLURM_JOB_END_TIME"] = str(int(time.time()) + 40)
    options = ["--nproc_per_node=3", "--max_restart=2", f"--preempt_file={tmp_path / 'notice'}"]
    with place.start(*options, "train.py", env=env) as launcher:
        place.ready(3)
        if how == "rlaunch preempt":
            asked = ask(tmp_path / "run", "preempt")
            assert asked.status == 0, asked.stderr
            assert b"exit status 78" in asked.stdout
        elif how == "SIGTERM":
            launcher.send_signal(signal.SIGTERM)
        elif how == "file":
            (tmp_path / "notice").touch()
        ended = place.wait(launcher)
    assert ended.status == PREEMPTED, ended.stderr
    saved = checkpoints(tmp_path)
    assert len(saved) == 3
    ((step, state),) = set(saved)
    assert (step > 0, state) == (True, state_after(step))
    line = f"rlaunch: preempted at step {step}; exit status {PREEMPTED}; the logs are in {tmp_path / 'log'}"
    assert ended.stderr.splitlines().count(line) == 1, ended.stderr
    assert not (tmp_path / "terminated.0").exists()
    assert 0 < float(place.text("left.1")) < 60
    result = place.result()
    assert (result["outcome"], result["exit_status"], result["restarts"]) == ("preempted", PREEMPTED, 0)
    causes = {"rlaunch preempt": "user", "SIGTERM": "signal", "time limit": "time_limit"}
    (notice,) = events(tmp_path / "log", "preempt_notice")
    assert notice["cause"] == causes.get(how, how)
    assert [event["step"] for event in events(tmp_path / "log", "stop_step")] == [step]
    place.script(STEPS)
    last = str(step + 5)
    done = place.run("--nproc_per_node=3", "train.py", env=variables(tmp_path / "run", LAST_STEP=last))
    assert done.status == 0, done.stderr
    assert set(checkpoints(tmp_path, "finished")) == {(step + 5, state_after(step + 5))}


@pytest.mark.parametrize("how", ["rlaunch preempt", "SIGTERM"])
def test_ranks_that_never_ask_get_sigterm_at_once(how: str, place: Place, tmp_path: Path) -> None:
    place.script(
        """
        signal.signal(signal.SIGTERM, lambda *_: (tell("terminated"), sys.exit(0)))
        tell("ready", os.getpid())
        sleep()
        """
    )
    with place.start("--nproc_per_node=2", "train.py", env=variables(tmp_path / "run")) as launcher:
        place.ready(2)
        if how == "SIGTERM":
            launcher.send_signal(signal.SIGTERM)
        else:
            ask(tmp_path / "run", "preempt", "--no-wait")
        ended = place.wait(launcher)
    assert ended.status == TERMINATED, ended.stderr
    assert {"terminated.0", "terminated.1"} <= place.names()
    assert place.result()["outcome"] == "stopped"


def test_ranks_that_do_not_stop_in_time_get_sigterm_before_the_grace_period_ends(
    place: Place, tmp_path: Path
) -> None:
    place.script(ASKED_ONCE)
    with place.start("--grace_period=4", "--nproc_per_node=2", "train.py") as launcher:
        place.ready(2)
        launcher.send_signal(signal.SIGTERM)
        until(lambda: events(tmp_path / "log", "preempt_notice"), "the notice")
        assert not events(tmp_path / "log", "stopping")
        ended = place.wait(launcher)
    assert ended.status == TERMINATED, ended.stderr
    # They end by themselves: they were not killed.
    assert [float(place.text(f"terminated.{rank}")) for rank in range(2)] == [0, 0]
    assert [rank["killed"] for rank in place.result()["ranks"]] == [False, False]


def test_a_second_sigterm_kills(place: Place, tmp_path: Path) -> None:
    place.script(ASKED_ONCE)
    with place.start("--nproc_per_node=2", "train.py") as launcher:
        place.ready(2)
        launcher.send_signal(signal.SIGTERM)
        until(lambda: events(tmp_path / "log", "preempt_notice"), "the notice")
        insist(launcher)
        ended = place.wait(launcher)
    assert ended.status == TERMINATED, ended.stderr
    assert events(tmp_path / "log", "forced")


@pytest.mark.parametrize("before", ["nothing", "SIGTERM"])
def test_rlaunch_stop_is_no_preemption(before: str, place: Place, tmp_path: Path) -> None:
    """A user who stops a job does not want Slurm to queue it again."""
    hold = tmp_path / "hold"
    pause = "    time.sleep(random"
    place.script(STEPS.replace(pause, f"    while os.path.exists({str(hold)!r}): time.sleep(0.01)\n{pause}"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/scontrol").write_text(f"#!/bin/sh\necho $* >> {tmp_path}/scontrol.txt\n")
    (tmp_path / "bin/scontrol").chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    env = variables(tmp_path / "run", SLURM_JOB_ID="17", PATH=path)
    with place.start("--requeue=3", "--nproc_per_node=2", "train.py", env=env) as launcher:
        place.ready(2)
        # The ranks reach their next step once the stop has come.
        hold.touch()
        if before == "SIGTERM":
            launcher.send_signal(signal.SIGTERM)
        stopped = ask(tmp_path / "run", "stop", "--no-wait")
        assert stopped.status == 0, stopped.stderr
        until(lambda: "user" in [event["origin"] for event in events(tmp_path / "log", "signal")], "the stop")
        hold.unlink()
        ended = place.wait(launcher)
    assert ended.status == TERMINATED, ended.stderr
    assert len(set(checkpoints(tmp_path))) == 1, "all ranks have stopped at one step"
    assert place.result()["outcome"] == "stopped"
    assert not (tmp_path / "scontrol.txt").exists()


def test_a_failure_after_a_notice_is_followed_by_no_restart(place: Place) -> None:
    place.script(STEPS.replace("sys.exit(0)\n    if", "sys.exit(3)\n    if"))
    with place.start("--max_restart=2", "--restart_delay=0", "train.py") as launcher:
        place.ready(1)
        launcher.send_signal(signal.SIGTERM)
        ended = place.wait(launcher)
    assert ended.status == 3, ended.stderr
    assert (place.result()["outcome"], place.result()["restarts"]) == ("failed", 0)


def test_a_failure_after_a_notice_is_followed_by_no_further_round(place: Place) -> None:
    place.script(STEPS.replace("sys.exit(0)\n    if", "sys.exit(3)\n    if"))
    nodes = [
        "--nnodes=1:2",
        "--elastic_level=1",
        "--elastic_timeout=1",
        f"--master=127.0.0.1:{free_ports(1)}",
    ]
    with place.start(*nodes, "--host=127.0.0.1", "--nproc_per_node=2", "train.py") as launcher:
        place.ready(2)
        launcher.send_signal(signal.SIGTERM)
        ended = place.wait(launcher)
    assert ended.status == 3, ended.stderr
    assert len(events(place.folder / "log", "round_started")) == 1


def test_the_sigterm_of_a_restart_is_no_notice(place: Place) -> None:
    place.script(
        """
        import rlaunch
        assert not rlaunch.should_stop(0)
        assert rlaunch.time_left() is None
        if os.path.exists("failed.0"):
            sys.exit(0)
        tell("asked")
        if rank == 0:
            await_file("asked.1")
            tell("failed")
            sys.exit(5)
        sleep()
        """
    )
    ended = place.run("--nproc_per_node=2", "--max_restart=1", "--restart_delay=0", "train.py")
    assert ended.status == 0, ended.stderr


def test_sigterm_from_slurm_to_every_process_is_one_notice(place: Place, tmp_path: Path) -> None:
    # Without a handler of its own, and with a fork that keeps the one of rlaunch.
    script = STEPS.replace("signal.signal(signal.SIGTERM, on_term)", "").replace(
        'tell("ready", os.getpid())',
        """pid = os.getpid()
        child = os.fork() or sleep()
        tell("child", child)
        tell("ready", pid)""",
    )
    place.script(script)
    env = variables(tmp_path / "run", SLURM_JOB_ID="17")
    with place.start("--nproc_per_node=2", "train.py", env=env) as launcher:
        ranks = place.ready(2)
        for process in [*ranks, launcher]:
            process.send_signal(signal.SIGTERM)
        ended = place.wait(launcher)
    assert ended.status == PREEMPTED, ended.stderr
    assert len(set(checkpoints(tmp_path))) == 1


def test_ranks_end_by_the_sigterm_of_the_launcher_in_a_slurm_job(place: Place, tmp_path: Path) -> None:
    place.script(
        """
        import ctypes, rlaunch
        assert not rlaunch.should_stop(0)
        tell("ready", os.getpid())
        if rank == 0:
            await_file("ready.1")
            sys.exit(5)
        # In C code that a signal does not interrupt, as in a collective: handlers of Python do not run.
        mutex = ctypes.create_string_buffer(64)
        while True:
            ctypes.CDLL(None).pthread_mutex_lock(mutex)
        """
    )
    ended = place.run("--nproc_per_node=2", "train.py", env=variables(tmp_path / "run", SLURM_JOB_ID="17"))
    assert ended.status == 5, ended.stderr
    assert place.result()["ranks"][1]["exit"] == {"signal": {"number": 15, "name": "SIGTERM"}}


def test_ranks_that_end_before_the_step_have_completed(place: Place, tmp_path: Path) -> None:
    place.script(
        """
        import rlaunch
        assert not rlaunch.should_stop(5)
        tell("ready", os.getpid())
        until(lambda: rlaunch.time_left() is not None, "the notice")
        """
    )
    with place.start("--nproc_per_node=2", "train.py") as launcher:
        place.ready(2)
        launcher.send_signal(signal.SIGTERM)
        ended = place.wait(launcher)
    assert ended.status == 0, ended.stderr
    assert place.result()["outcome"] == "completed"


def test_launch_raises_an_error_after_such_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The rank makes the file itself, once it has asked.
    body = STEPS.replace('tell("ready", os.getpid())', 'tell("ready", os.getpid())\n        tell("notice")')
    Place(tmp_path).script(body)
    with pytest.raises(rlaunch.WorkerError, match="the job was preempted: its ranks stopped at ") as caught:
        rlaunch.launch("train.py", preempt_file=str(tmp_path / "notice.0"))
    report = caught.value.report
    assert (report.outcome, report.exit_status) == ("preempted", PREEMPTED)
    assert (caught.value.rank, [rank.exitcode for rank in report.ranks]) == (None, [0])


@pytest.mark.parametrize("option", ["--preempt_file=folder/", "--preempt_time=-1", "--requeue=-1"])
def test_a_bad_value_is_refused(option: str, place: Place) -> None:
    place.script("")
    ended = place.run(option, "train.py")
    assert ended.status == 2
    assert option.split("=")[0] in ended.error_lines()[0]
