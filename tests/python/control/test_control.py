"""``rlaunch ps``, ``status``, ``stacks``, ``logs``, ``signal`` and ``stop``: what they show and do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import WAITING, Jobs, await_stacks
from launching import await_gone, environment, until, validate

QUIET = "tell('ready', os.getpid())\nawait_file('go')\n"


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


def check(answer: Any, kind: str) -> None:
    validate(answer, "control", kind)


def test_status_shows_each_rank(jobs: Jobs) -> None:
    with jobs.job("--job_id=night") as launcher:
        await_stacks(jobs, "child")
        status = jobs.json("status")
        check(status, "status")
        assert (status["job_id"], status["launcher"], status["phase"]) == ("night", launcher.pid, "running")
        assert status["log_dir"] == str(jobs.folder / "log")
        ranks = status["ranks"]
        assert [rank["pid"] for rank in ranks] == [int(jobs.text(f"ready.{n}")) for n in range(3)]
        assert [rank["processes"] for rank in ranks] == [1, 2, 1], (
            "a rank with the processes that it has started"
        )
        assert all(rank["memory_bytes"] > 1 << 20 and 0 <= rank["silent_seconds"] < 60 for rank in ranks), (
            ranks
        )
        table = jobs.ask("status").stdout.decode()
        assert re.search(r"^job night \(pid \d+\): running for ", table), table
        assert re.search(rf"^rank 1  running  .*  {ranks[1]['pid']} ", table, re.MULTILINE), table
        (listed,) = jobs.json("ps")
        assert listed["launcher"] == launcher.pid
        assert "3 of 3" in jobs.ask("ps").stdout.decode()


def test_a_rank_that_has_ended_and_a_busy_one(jobs: Jobs) -> None:
    script = "tell('ready', os.getpid())\nwhile rank and not os.path.exists('go'): pass\n"
    with jobs.job(script=script, ranks=2):
        ended, busy = until(
            lambda: (ranks := jobs.json("status")["ranks"])[0]["exit"] and ranks, "rank 0's end"
        )
        assert (ended["exit"], ended["succeeded"], ended["cpu_percent"]) == ("exit code 0", True, None)
        assert busy["exit"] is None
        until(lambda: jobs.json("status")["ranks"][1]["cpu_percent"] > 20, "CPU use")


def test_jobs_are_found_by_pid_id_and_folder(tmp_path: Path, jobs: Jobs) -> None:
    second = Jobs(tmp_path / "second", jobs.runtime)
    second.folder.mkdir()
    nothing = jobs.ask("status")
    assert nothing.status == 1
    assert "no job of this user runs on this machine" in nothing.stderr
    with jobs.job("--job_id=one", script=QUIET, ranks=1) as one, second.job(script=QUIET, ranks=1) as two:
        for name in (str(one.pid), "one", "log", str(jobs.folder / "log/../log")):
            assert jobs.json("status", name)["launcher"] == one.pid, name
        assert jobs.json("status", "default")["launcher"] == two.pid
        here = Jobs(tmp_path / "third", jobs.runtime)
        here.folder.mkdir()
        several = here.ask("stop")
        assert several.status == 1, several.stderr
        assert "2 jobs run" in several.stderr, several.stderr
        for job, name in ((one, "one"), (two, "default")):
            line = rf"^  {job.pid} \(train\.py in .*, id {name}\)$"
            assert re.search(line, several.stderr, re.MULTILINE), several
        unknown = jobs.ask("status", "three")
        assert unknown.status == 1
        assert "no job is three; `rlaunch ps --all` lists those" in unknown.stderr


@pytest.mark.parametrize("command", [["stop"], ["restart"], ["preempt"], ["signal", "KILL"]], ids=" ".join)
def test_a_job_of_another_folder_is_only_changed_by_name(command: list[str], jobs: Jobs) -> None:
    elsewhere = Jobs(jobs.folder / "elsewhere", jobs.runtime)
    elsewhere.folder.mkdir()
    with jobs.job(script=QUIET, ranks=1) as launcher:
        (rank,) = jobs.ready(1)
        refused = elsewhere.ask(*command)
        assert refused.status == 1, refused.stderr
        assert f"id default), was not started in this folder but in {jobs.folder}" in refused.stderr
        assert elsewhere.json("status")["ranks"][0]["pid"] == rank.pid
        assert elsewhere.ask("stop", str(launcher.pid), "--grace_period=0.2").status == 0


def test_stacks_name_what_each_rank_does(jobs: Jobs) -> None:
    with jobs.job():
        text = await_stacks(jobs, "child (<string>:1)")
        assert re.search(r"^ranks 0, 2 \(2 of 3\): in ", text, re.MULTILINE), text
        alone = text[text.index("rank 1 (1 of 3)") :]
        # Its main thread, its other thread, its child.
        for line in (r"    load \(.*train\.py:\d+\)", "  thread loader:", r"  process \S+ \(pid \d+\):"):
            assert re.search(f"^{line}$", alone, re.MULTILINE), (line, alone)
        assert re.search(r"^  last output, .* ago: rank 1 waits$", alone, re.MULTILINE), alone
        answer = jobs.json("stacks")
        check({"answer": "stacks", "status": answer["status"], "dump": answer["stacks"]}, "answer")
        functions = [
            frame["function"]
            for frame in answer["stacks"]["ranks"][0]["processes"][0]["threads"][0]["frames"]
        ]
        assert functions[-2:] == ["barrier", "<module>"]


def test_a_stopped_rank_and_one_without_python(jobs: Jobs) -> None:
    jobs.script(
        '[ $PADDLE_TRAINER_ID = 0 ] && exec sleep 1000\nexec python3 -c "import time; time.sleep(1000)"\n',
        name="run.sh",
    )
    with jobs.start("--nproc_per_node=2", "--no_python", "bash", "run.sh", env=jobs.env):
        until(jobs.sockets, "a socket")
        text = await_stacks(jobs, "no Python stack: it runs no Python")
        assert "rank 0 (1 of 2): sleep (pid " in text, text
    with jobs.job(script=QUIET, ranks=2):
        (rank, *_) = jobs.ready(2)
        os.kill(rank.pid, signal.SIGSTOP)
        text = await_stacks(jobs, "rank 0 is the odd one: stopped by a signal")
        assert "rank 0 (1 of 2): stopped by a signal\n" in text, text
        assert f"`kill -CONT {rank.pid}` continues" in text


def test_logs_follow_a_job_through_a_restart(jobs: Jobs) -> None:
    script = f"print('begin', flush=True)\n{QUIET}print('end', rank)\nsys.exit(not os.path.exists('again'))\n"
    with jobs.job("--max_restart=1", "--restart_delay=0", script=script, ranks=2) as launcher:
        shown = jobs.ask("logs", "--rank=1").stdout.decode()
        assert shown == "begin\n", "without a prefix, as it is one rank"
        command = [sys.executable, "-m", "rlaunch.control", "logs", "--follow"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=jobs.env, cwd=jobs.folder) as follower:
            assert follower.stdout is not None
            assert sorted(follower.stdout.readline() for _ in range(2)) == [
                b"[rank 0] begin\n",
                b"[rank 1] begin\n",
            ]
            (jobs.folder / "again").touch()
            os.kill(int(jobs.text("ready.0")), signal.SIGKILL)
            until(lambda: jobs.json("status")["attempt"] == 1, "the second attempt")
            (jobs.folder / "go").touch()
            rest = follower.stdout.read().decode()
            assert follower.wait() == 0, rest
            assert rest.count("begin") == 2, rest
            for line in ("[rank 0] end 0\n", "[rank 1] end 1\n"):
                assert line in rest
        assert launcher.wait() == 0


def test_a_signal_goes_to_one_rank_or_all(jobs: Jobs) -> None:
    script = "signal.signal(signal.SIGUSR2, lambda *_: tell('heard'))\n" + QUIET
    with jobs.job(script=script, ranks=2):
        assert jobs.ask("signal", "usr2", "--rank", "1").status == 0
        until(lambda: "heard.1" in jobs.names(), "the signal")
        assert "heard.0" not in jobs.names()
        assert jobs.ask("signal", "SIGUSR2").status == 0
        until(lambda: "heard.0" in jobs.names(), "the signal")
        wrong = jobs.ask("signal", "USR2", "--rank", "2")
        assert wrong.status == 1
        assert "has no rank 2 on this machine; it has ranks 0, 1" in wrong.stderr
        assert jobs.ask("signal", "XYZ").status == 2


def test_stop_waits_for_the_end(jobs: Jobs) -> None:
    with jobs.job(script=QUIET) as launcher:
        ranks = jobs.ready(3)
        stopped = jobs.ask("stop")
        assert (stopped.status, stopped.stderr) == (0, "")
        said = re.fullmatch(
            rf"job \S+ \(pid {launcher.pid}\): ranks 0-2 stopped after \d.*, exit status 143\n",
            stopped.stdout.decode(),
        )
        assert said, stopped.stdout
        assert launcher.wait(timeout=1) == 128 + signal.SIGTERM
        await_gone(*ranks)
        assert jobs.result()["outcome"] == "stopped"
        again = jobs.ask("stop", str(launcher.pid))
        assert again.status == 1
        assert "stopped, exit status 143" in again.stderr


def test_stop_says_what_it_waits_for(jobs: Jobs) -> None:
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN) if rank == 1 else None\n" + QUIET
    with jobs.job("--grace_period=2", script=script, ranks=2) as launcher:
        stopped = jobs.ask("stop")
        job = rf"job \S+ \(pid {launcher.pid}\)"
        waits, ends = (
            rf"rlaunch: waiting for rank 1 of {job} to stop\n",
            rf"{job}: ranks 0, 1 stopped after .*\n",
        )
        assert re.fullmatch(waits, stopped.stderr), stopped.stderr
        assert re.fullmatch(ends, stopped.stdout.decode()), stopped.stdout


def test_stop_with_a_shorter_grace_period(jobs: Jobs) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + QUIET
    with jobs.job("--grace_period=500", script=deaf, ranks=1) as launcher:
        refused = jobs.ask("stop", "--grace_period=501")
        assert refused.status == 1, refused.stderr
        assert "give 0 to 500, the job's own" in refused.stderr, refused.stderr
        for seconds in ("-1", "nan", "x"):
            assert jobs.ask("stop", f"--grace_period={seconds}").status == 2
        assert launcher.poll() is None
        assert jobs.ask("stop", "--grace_period=0.2").status == 0
        assert launcher.wait() == 128 + signal.SIGTERM
        assert "did not end when asked and was killed" in jobs.wait(launcher).stderr


@pytest.mark.parametrize("grace", ["0", "0.2"])
def test_a_second_stop_only_waits_unless_it_shortens_the_grace_period(grace: str, jobs: Jobs) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + QUIET
    with jobs.job("--grace_period=500", script=deaf, ranks=1) as launcher:
        assert jobs.ask("stop", "--no-wait").status == 0
        until(lambda: jobs.json("status")["phase"] == "stopping", "the stop")
        assert jobs.ask("stop", "--no-wait").status == 0
        assert jobs.json("status")["phase"] == "stopping"
        assert launcher.poll() is None
        assert jobs.ask("stop", f"--grace_period={grace}").status == 0
        assert launcher.wait() == 128 + signal.SIGTERM


def test_jobs_of_torchruns_command_line(jobs: Jobs) -> None:
    (jobs.folder / "train.py").write_text("import os, time\nopen('up', 'w').close()\ntime.sleep(1000)\n")
    command = [sys.executable, "-m", "rlaunch.control", "run", "--nproc-per-node=2", "train.py"]
    with subprocess.Popen(command, env=jobs.env, cwd=jobs.folder, stderr=subprocess.DEVNULL) as launcher:
        until(lambda: jobs.sockets() and "up" in jobs.names(), "the job")
        until(lambda: "ranks 0, 1 (2 of 2)" in jobs.ask("stacks").stdout.decode(), "both ranks at one place")
        assert jobs.json("status")["world_size"] == 2
        assert jobs.ask("stop").status == 0
        assert launcher.wait() != 0


def test_a_script_without_a_command_is_refused_with_the_way_out(jobs: Jobs) -> None:
    refused = jobs.ask("train.py")
    assert refused.status == 2
    assert "to start a script: `rlaunch launch SCRIPT`" in refused.stderr


@pytest.mark.parametrize("kind", ["launch", "run"])
def test_launch_and_run_start_jobs(kind: str, jobs: Jobs) -> None:
    (jobs.folder / "train.py").write_text("import sys\nsys.exit(7)\n")
    assert jobs.ask(kind, "--nproc_per_node", "1", "train.py").status == 7
    assert b"--nproc_per_node" in jobs.ask(kind, "--help").stdout.replace(b"-per-", b"_per_").replace(
        b"nproc-", b"nproc_"
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, jobs: Jobs) -> None:
    assert b"stacks" in jobs.ask("completion", shell).stdout


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).with_name("rlaunch")
    done = subprocess.run([command, "--help"], capture_output=True, env=environment(), check=True)
    assert b"stacks" in done.stdout
    assert WAITING
