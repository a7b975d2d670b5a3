"""``rlaunch restart``: another attempt that counts as no restart, and what refuses it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hosts import hosts
from jobs import Jobs
from launching import ATTEMPT, await_gone, await_line, until, validate

ATTEMPTS = ATTEMPT + "tell('ready', os.getpid())\nawait_file('go')\n"


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


def check_records(jobs: Jobs) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    result, events = jobs.result(), jobs.events()
    validate(result, "result")
    for event in events:
        validate(event, "events")
    return result, [event for event in events if event["event"] == "restart_requested"]


def test_restart_waits_for_the_next_attempt_and_counts_as_none(jobs: Jobs) -> None:
    with jobs.job("--max_restart=0", "--job_id=night", script=ATTEMPTS, ranks=2) as launcher:
        first = jobs.ready(2)
        restarted = jobs.ask("restart")
        assert (restarted.status, restarted.stdout) == (0, b"job night: attempt 1 runs\n"), restarted.stderr
        await_gone(*first)
        status = jobs.json("status")
        assert (status["phase"], status["attempt"]) == ("running", 1)
        assert [rank["attempt"] for rank in status["ranks"]] == [1, 1]
        for rank in range(2):
            until((jobs.folder / f"attempt-1.{rank}").exists, f"rank {rank} of the next attempt")
        assert jobs.ask("restart", "--no-wait").stdout == b""
        until((jobs.folder / "attempt-2.1").exists, "the attempt after that")
        (jobs.folder / "go").touch()
        assert launcher.wait() == 0
        assert b"`rlaunch restart`: waiting up to 30 s for rank(s) 0, 1 to stop" in launcher.stderr.read()
    result, requests = check_records(jobs)
    assert (result["outcome"], result["restarts"], result["requested_restarts"]) == ("completed", 2, 2)
    assert [attempt["culprit"] for attempt in result["attempts"]] == [None, None]
    assert [(event["attempt"], event["living"]) for event in requests] == [(1, [0, 1]), (2, [0, 1])]
    assert jobs.ask("report", "log").status == 0
    assert "`rlaunch restart` asked for attempt 1" in jobs.text("log/rlaunch/report.html")


def test_a_failure_after_a_restart_is_the_first_that_counts(jobs: Jobs) -> None:
    script = ATTEMPTS + "sys.exit(0 if attempt == 2 else 3)\n"
    with jobs.job("--max_restart=1", "--restart_delay=0", script=script, ranks=1) as launcher:
        assert jobs.ask("restart").status == 0
        (jobs.folder / "go").touch()
        assert launcher.wait() == 0
        assert b"restart 1 (at most 1) at once" in launcher.stderr.read()
    result, _ = check_records(jobs)
    assert [attempt["culprit"] for attempt in result["attempts"]] == [None, 0]
    (event,) = [one for one in jobs.events() if one["event"] == "restarting"]
    assert (event["attempt"], event["restart"], event["of"]) == (2, 1, 1)


def test_the_report_tells_restarts_after_failures_from_others(jobs: Jobs) -> None:
    script = ATTEMPTS + "sys.exit(3)\n"
    with jobs.job("--max_restart=1", "--restart_delay=0", script=script, ranks=1) as launcher:
        assert jobs.ask("restart").status == 0
        (jobs.folder / "go").touch()
        assert launcher.wait() == 3
        assert launcher.stderr.read().endswith(
            b"\nexit status 3 after 1 restart, and 1 at a user's request\n"
        )


def test_a_failed_attempt_that_ends_takes_no_request_and_a_stop_ends_it(jobs: Jobs) -> None:
    script = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ATTEMPTS + "sys.exit(3) if rank else sleep()\n"
    )
    options = ("--grace_period=500", "--max_restart=1", "--restart_delay=0")
    with jobs.job(*options, script=script, ranks=2) as launcher:
        jobs.ready(2)
        (jobs.folder / "go").touch()
        await_line(launcher.stderr, b"rank 1 failed first, with exit code 3; waiting up to")
        refused = jobs.ask("restart")
        assert refused.status == 1
        assert "the present attempt is ending, because a rank has failed" in refused.stderr, refused.stderr
        assert jobs.ask("stop", "--grace_period=0").status == 0
        assert launcher.wait() == 3
        assert b"SIGTERM: waiting up to 0 s for rank(s) 0 to stop" in launcher.stderr.read()
    result, _ = check_records(jobs)
    assert (result["requested_restarts"], result["restarts"]) == (0, 0)


def test_a_stop_without_a_grace_period_ends_a_restart_that_waits(jobs: Jobs) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ATTEMPTS
    with jobs.job("--grace_period=500", script=deaf, ranks=1) as launcher:
        assert jobs.ask("restart", "--no-wait").status == 0
        until(lambda: jobs.json("status")["phase"] == "restarting", "the stop")
        assert jobs.ask("stop", "--grace_period=0").status == 0
        assert launcher.wait() == 128 + signal.SIGTERM


def test_before_the_first_rank_nothing_is_restarted(jobs: Jobs) -> None:
    (jobs.folder / "slow_import.py").write_text(
        "import os, time\nopen('importing', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    )
    jobs.script("pass\n")
    env = {**jobs.env, "PYTHONPATH": str(jobs.folder)}
    with jobs.start("--nproc_per_node=1", "--preload=slow_import", "train.py", env=env) as launcher:
        until((jobs.folder / "importing").exists, "the import")
        refused = jobs.ask("restart")
        assert refused.status == 1
        assert "the launcher is preparing, so no rank runs that could be restarted" in refused.stderr
        (jobs.folder / "go").touch()
        assert launcher.wait() == 0


def test_an_attempt_that_ends_at_once_has_run(jobs: Jobs) -> None:
    script = ATTEMPT + "if attempt == 0: tell('ready', os.getpid()), sleep()\n"
    with jobs.job("--job_id=night", script=script, ranks=1) as launcher:
        jobs.ready(1)
        restarted = jobs.ask("restart")
        assert restarted.status == 0, restarted.stderr
        # The first where the command asks before the launcher has ended.
        assert restarted.stdout in (b"job night: attempt 1 runs\n", b"job night: attempt 1 has run\n")
        assert launcher.wait() == 0


def test_ranks_have_the_grace_period_that_the_command_gives(jobs: Jobs) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ATTEMPTS
    with jobs.job("--grace_period=500", script=deaf, ranks=1) as launcher:
        refused = jobs.ask("restart", "--grace_period=501")
        assert "give 0 to 500, the job's own" in refused.stderr, refused.stderr
        assert jobs.ask("restart", "--no-wait").status == 0
        until(lambda: jobs.json("status")["phase"] == "restarting", "the stop")
        assert jobs.ask("restart", "--grace_period=0").status == 0
        assert jobs.json("status")["attempt"] == 1
        # The job has its own grace period still, and a stop during a restart ends it.
        assert jobs.ask("restart", "--no-wait").status == 0
        until(lambda: jobs.json("status")["phase"] == "restarting", "the stop")
        os.kill(launcher.pid, signal.SIGTERM)
        until(lambda: jobs.json("status")["phase"] == "stopping", "the end")
        refused = jobs.ask("restart")
        assert "the launcher is stopping, so no rank runs that could be restarted" in refused.stderr
        assert jobs.ask("stop", "--grace_period=0").status == 0
        assert launcher.wait() == 128 + signal.SIGTERM
    result, requests = check_records(jobs)
    assert (result["outcome"], result["restarts"], result["requested_restarts"]) == ("stopped", 1, 2)
    assert [event["grace_seconds"] for event in requests] == [500, 500]


def test_a_job_that_ends_instead(jobs: Jobs) -> None:
    # Its ranks cannot be started again.
    script = "tell('ready', os.getpid())\nos.remove('interpreter')\nawait_file('go')\n"
    (jobs.folder / "interpreter").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (jobs.folder / "interpreter").chmod(0o755)
    jobs.script(script)
    command = ("--no_python", "--nproc_per_node=1", "./interpreter", "train.py")
    with jobs.start(*command, env=jobs.env) as launcher:
        jobs.ready(1)
        ended = jobs.ask("restart")
        assert ended.status == 1
        # The second, where it ends before the command has asked again.
        texts = ("has ended instead of starting again; its logs are in", "the job has ended")
        assert any(text in ended.stderr for text in texts), ended.stderr
        assert launcher.wait() != 0


def test_jobs_that_cannot_be_restarted_say_why(jobs: Jobs) -> None:
    servers = ("--server_num=1", "--trainer_num=1", "--run_mode=ps")
    (jobs.folder / "train.py").write_text("import time\ntime.sleep(1000)\n")

    def runs() -> bool:
        return jobs.ask("status").status == 0 and all(rank["pid"] for rank in jobs.json("status")["ranks"])

    with jobs.start(*servers, "train.py", env=jobs.env):
        until(runs, "the ranks")
        refused = jobs.ask("restart")
        assert refused.status == 1
        assert "has parameter servers, which would lose their parameters; stop it" in refused.stderr
        assert jobs.json("status")["phase"] == "running"


def test_nodes_of_a_fixed_list_cannot_agree_on_another_attempt(jobs: Jobs) -> None:
    jobs.script("tell('ready', os.getpid())\nsleep()\n")
    with hosts(2) as two:
        addresses = ",".join(host.ip for host in two)
        command = [sys.executable, "-m", "rlaunch", f"--ips={addresses}", "--nproc_per_node=1", "train.py"]
        with Jobs.cleaned(two[0].run(command, cwd=jobs.folder, env=jobs.env)) as launcher:
            until((jobs.folder / "ready.0").exists, "the rank")
            refused = jobs.ask("restart")
            assert refused.status == 1
            assert "no rendezvous that another attempt could be agreed by" in refused.stderr, refused.stderr
            assert launcher.poll() is None
