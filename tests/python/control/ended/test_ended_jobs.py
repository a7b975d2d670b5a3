"""Jobs that have ended: ``rlaunch ps --all``, and what ``status``, ``logs`` and ``report`` show of them."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jobs import Jobs, TorchJobs
from launching import await_gone, supervisor_of, validate

QUIET = "tell('ready', os.getpid())\nawait_file('go')\n"
SAYS = "print('said by', rank, file=sys.stderr, flush=True)\nsys.exit(int(sys.argv[1]))\n"


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


@pytest.fixture
def torch_jobs(tmp_path: Path) -> TorchJobs:
    return TorchJobs(tmp_path)


@pytest.fixture(params=[Jobs, TorchJobs], ids=["paddle", "torch"])
def any_jobs(request: pytest.FixtureRequest, tmp_path: Path) -> Jobs:
    """Of each front end."""
    made: Jobs = request.param(tmp_path)
    return made


def end(jobs: Jobs, status: int, *args: str, env: Mapping[str, str] | None = None) -> int:
    """Runs a job that ends with this status. Returns the launcher's process id."""
    jobs.script(SAYS)
    ended = jobs.run("--nproc_per_node=1", *args, "train.py", str(status), env=env or jobs.env)
    assert ended.status == status, ended
    assert jobs.launcher is not None
    return jobs.launcher.pid


def elsewhere(jobs: Jobs, name: str = "elsewhere") -> Jobs:
    """Another folder of the same user."""
    other = Jobs(jobs.folder / name, jobs.runtime)
    other.folder.mkdir()
    return other


def launchers(jobs: Jobs, *args: str) -> list[int]:
    return [job["launcher"] for job in jobs.json("ps", *args)]


def test_ended_jobs_are_listed_with_how_they_ended(any_jobs: Jobs) -> None:
    jobs = any_jobs
    first, second = end(jobs, 0, "--log-dir=a"), end(jobs, 3, "--log-dir=b")
    assert jobs.json("ps") == []
    listed = jobs.json("ps", "--all")
    for job in listed:
        validate(job, "control", "ended")
    shown = [(job["launcher"], job["phase"], job["outcome"], job["exit_status"]) for job in listed]
    assert shown == [(second, "ended", "failed", 3), (first, "ended", "completed", 0)], "the latest first"
    assert {job["working_dir"] for job in listed} == {str(jobs.folder)}
    assert [Path(job["log_dir"]).relative_to(jobs.folder).parts[0] for job in listed] == ["b", "a"]
    assert all(job["logs_kept"] and job["started"] <= job["ended"] for job in listed)
    assert [job["command"][-2:] for job in listed] == [["train.py", "3"], ["train.py", "0"]]
    table = jobs.ask("ps", "--all").stdout.decode().splitlines()
    assert [line.split()[0] for line in table] == ["PID", str(second), str(first)]
    assert all(len(line) <= 80 for line in table)
    (one, other) = jobs.history.iterdir()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (jobs.history, one, other)]
    assert modes == [0o700, 0o600, 0o600]


def test_an_ended_job_is_found_by_each_of_its_names(any_jobs: Jobs) -> None:
    jobs = any_jobs
    named = "--rdzv-id=exp7" if isinstance(jobs, TorchJobs) else "--job_id=exp7"
    pid = end(jobs, 3, "--log-dir=mine/logs", named)
    (job,) = jobs.json("ps", "--all")
    folder = job["log_dir"]
    names = [[str(pid)], ["exp7"], ["train.py"], [folder], [f"{folder}/rlaunch"], [], ["mine/logs"]]
    for name in [
        *names,
        ["--log_dir", "mine/logs"],
        ["--log-dir=mine/../mine/logs"],
        [f"--log-dir={folder}"],
    ]:
        shown = jobs.json("status", *name)
        assert (shown["phase"], shown["result"]["exit_status"], shown["launcher"]) == ("ended", 3, pid), name
        logs = jobs.ask("logs", *name)
        assert (logs.status, logs.stdout) == (0, b"said by 0\n"), (name, logs)
        report = jobs.ask("report", *name)
        assert (report.status, report.stdout.decode()) == (0, f"{folder}/rlaunch/report.html\n"), (
            name,
            report,
        )
    table = jobs.ask("status").stdout.decode()
    assert table.splitlines()[-1].split()[:3] == ["rank", "0", "failed"], table
    for unknown in ("exp8", "mine2", str(1 << 22), "--log-dir=exp7"):
        assert [jobs.ask(command, unknown).status for command in ("status", "logs", "report")] == [1] * 3, (
            unknown
        )
    assert jobs.ask("logs", "--rank=1", "exp7").status == 1


def test_commands_for_running_jobs_name_the_one_that_has_ended(jobs: Jobs) -> None:
    pid = end(jobs, 3)
    for command in (["stop"], ["stacks"], ["restart"], ["preempt"], ["signal", "TERM"]):
        for name in ([], [str(pid)]):
            refused = jobs.ask(*command, *name)
            assert refused.status == 1
            assert "failed, exit status 3" in refused.stderr, refused


def test_without_a_name_the_job_of_the_folder_is_meant(jobs: Jobs) -> None:
    other = elsewhere(jobs)
    ended = end(other, 0)
    with jobs.job(script=QUIET, ranks=1) as running:
        assert jobs.json("status")["launcher"] == running.pid
        assert other.json("status")["launcher"] == ended, "that of this folder, though another one runs"
        assert elsewhere(jobs, "third").json("status")["launcher"] == running.pid, "the only one"
        assert other.ask("stacks").status == 0, "which shows running jobs only"
        assert launchers(jobs) == [running.pid]
        assert launchers(jobs, "--all") == [running.pid, ended]


def test_a_log_folder_above_the_working_folder_is_found(jobs: Jobs) -> None:
    there = elsewhere(jobs)
    pid = end(there, 3, "--log_dir=../out")
    assert there.json("status", "../out")["launcher"] == jobs.json("status", "out")["launcher"] == pid


def test_a_script_is_that_of_this_folder(jobs: Jobs) -> None:
    here = end(jobs, 0)
    there = end(elsewhere(jobs), 3)
    for name, launcher in (("train.py", here), ("./train.py", here), ("elsewhere/train.py", there)):
        assert jobs.json("status", name)["launcher"] == launcher, name


def test_status_says_which_attempts_had_failed(jobs: Jobs) -> None:
    jobs.script(
        "if not os.path.exists('again'):\n    open('again', 'w').close()\n    raise ValueError('once')\n"
    )
    ended = jobs.run("--nproc_per_node=1", "--max_restart=1", "train.py", env=jobs.env)
    assert ended.status == 0, ended
    text = jobs.ask("status").stdout.decode()
    assert "attempt 0 failed: rank 0, exit code 1: ValueError: once" in text.splitlines()


def test_the_latest_of_several_is_shown(torch_jobs: TorchJobs) -> None:
    jobs = torch_jobs
    pids = [end(jobs, status, "--log-dir=logs") for status in (3, 4)]
    for name in ("logs", "train.py", "--log-dir=logs"):
        shown = jobs.ask("status", name, "--json")
        assert json.loads(shown.stdout)["launcher"] == pids[1]
        assert "this is the latest" in shown.stderr
    assert [jobs.json("status", str(pid))["result"]["exit_status"] for pid in pids] == [3, 4]


def test_a_folder_that_a_later_job_uses_is_not_shown_as_the_earlier_jobs(jobs: Jobs) -> None:
    first = end(jobs, 3)
    second = end(jobs, 4)
    assert jobs.json("status", str(second))["result"]["exit_status"] == 4
    shown = jobs.json("status", str(first))
    assert (shown["exit_status"], shown["result"]) == (3, None)
    later = jobs.json("status", str(second))
    assert jobs.ask("logs", str(first)).status == 1
    # In containers of their own, both have the same process ids.
    for path in jobs.history.iterdir():
        job = json.loads(path.read_text())
        path.write_text(json.dumps({**job, "supervisor": later["supervisor"]}))
    assert jobs.json("status", str(first))["result"] is None
    assert jobs.json("status", str(second))["result"]["exit_status"] == 4
    with jobs.job(script=QUIET, ranks=1):
        assert jobs.json("status", str(second))["result"] is None
        assert jobs.ask("report", str(second)).status == 1


def test_logs_that_were_not_kept(torch_jobs: TorchJobs) -> None:
    pid = end(torch_jobs, 0)
    shown = torch_jobs.json("status", str(pid))
    assert (shown["outcome"], shown["logs_kept"], shown["result"]) == ("completed", False, None)
    assert torch_jobs.ask("status").status == 0
    assert torch_jobs.ask("logs").status == 1
    assert torch_jobs.ask("report").status == 1


def test_rdzv_id_names_a_running_job_of_one_node(torch_jobs: TorchJobs) -> None:
    args = ("--rdzv-id=exp7",)
    with torch_jobs.job(
        *args, script="tell('id', os.environ['TORCHELASTIC_RUN_ID'])\n" + QUIET, ranks=1
    ) as job:
        assert torch_jobs.json("status", "exp7")["launcher"] == job.pid
        assert torch_jobs.text("id.0") != "exp7", "ranks see what torchrun shows them"
        assert torch_jobs.ask("stop", "exp7").status == 0


def test_stopped_and_lost_launchers_are_in_the_history(jobs: Jobs) -> None:
    with jobs.job(script=QUIET, ranks=1) as launcher:
        assert jobs.ask("stop").status == 0
    stopped = launcher.pid
    (jobs.folder / "ready.0").unlink()
    with jobs.job(script=QUIET, ranks=1) as launcher:
        supervisor = supervisor_of(launcher)
        launcher.kill()
        await_gone(supervisor)
    killed = launcher.pid
    (jobs.folder / "ready.0").unlink()
    with jobs.job(script=QUIET, ranks=1) as launcher:
        supervisor_of(launcher).kill()
        launcher.wait()
    listed = {job["launcher"]: job["outcome"] for job in jobs.json("ps", "--all")}
    assert listed == {stopped: "stopped", killed: "front_lost", launcher.pid: "supervisor_lost"}


def test_a_job_whose_processes_were_all_killed_is_known_by_its_folder(jobs: Jobs) -> None:
    with jobs.job(script=QUIET, ranks=1) as launcher:
        supervisor, ranks = supervisor_of(launcher), jobs.ready(1)
        supervisor.suspend()
        launcher.kill()
        supervisor.kill()
        await_gone(*ranks)
    assert jobs.json("ps", "--all") == []
    assert jobs.json("status", "log")["phase"] == "unknown"
    assert jobs.ask("status", "log").status == 0
    assert jobs.ask("report", "log").status == 0


def test_secrets_of_a_command_line_are_masked(jobs: Jobs) -> None:
    jobs.script(SAYS)
    jobs.run(
        "--nproc_per_node=1", "train.py", "0", "--api-token", "hunter2", "--password=hunter2", env=jobs.env
    )
    assert "hunter2" not in "".join(path.read_text() for path in jobs.history.iterdir())
    assert "hunter2" not in jobs.ask("ps", "--all", "--json").stdout.decode()


@pytest.mark.parametrize("value", ["0", "off", "2"])
def test_the_history_is_bounded_and_can_be_turned_off(value: str, jobs: Jobs) -> None:
    pids = [end(jobs, 0, env={**jobs.env, "RLAUNCH_HISTORY": value}) for _ in range(3)]
    assert launchers(jobs, "--all") == (pids[:0:-1] if value == "2" else [])
    assert jobs.history.exists() == (value == "2")


def unusable(jobs: Jobs, how: str) -> dict[str, str | None]:
    if how == "no home":
        return {"XDG_STATE_HOME": None, "HOME": None}
    if how == "a relative one":
        return {"XDG_STATE_HOME": "state", "HOME": ""}
    if how == "read-only":
        return {"XDG_STATE_HOME": "/proc/self"}
    if how == "a file":
        (jobs.folder / "file").touch()
        return {"XDG_STATE_HOME": str(jobs.folder / "file")}
    jobs.history.mkdir(parents=True)
    (jobs.history / "1-x.json").write_text(json.dumps(entry(1)))
    if how == "another user's" and os.geteuid() == 0:
        os.chown(jobs.history, 12345, 12345)
    else:
        jobs.history.chmod(0o777)
    return {}


@pytest.mark.parametrize(
    "how", ["no home", "a relative one", "read-only", "a file", "not private", "another user's"]
)
def test_where_the_home_cannot_be_used_the_history_is_beside_the_sockets(how: str, jobs: Jobs) -> None:
    changes = unusable(jobs, how)
    merged = {name: value for name, value in {**jobs.env, **changes}.items() if value is not None}
    jobs.env = merged
    pid = end(jobs, 3)
    (found,) = (jobs.runtime / "jobs").iterdir()
    assert json.loads(found.read_text())["launcher"] == pid
    assert launchers(jobs, "--all") == [pid]
    assert not jobs.history.exists() or len(list(jobs.history.iterdir())) == 1


def test_a_job_ends_well_where_no_history_can_be_written(jobs: Jobs) -> None:
    (jobs.folder / "file").touch()
    paths = {name: str(jobs.folder / "file") for name in ("XDG_STATE_HOME", "RLAUNCH_RUNTIME_DIR")}
    end(jobs, 0, env={**jobs.env, **paths})


def test_xdg_state_home_is_the_place_else_the_home(jobs: Jobs) -> None:
    home = jobs.folder / "home"
    home.mkdir()
    del jobs.env["XDG_STATE_HOME"]
    jobs.env["HOME"] = str(home)
    pid = end(jobs, 0)
    assert len(list((home / ".local/state/rlaunch/jobs").iterdir())) == 1
    assert launchers(jobs, "--all") == [pid]


def entry(number: int, **fields: Any) -> dict[str, Any]:
    """A job as another version, or an attacker, could have written it."""
    host = socket.gethostname()
    own = {"version": 1, "job_id": f"job-{number}", "host": host, "launcher": number, "ended": float(number)}
    return {**own, **fields}


def test_a_hostile_history_stops_no_command(jobs: Jobs) -> None:
    jobs.history.mkdir(parents=True, mode=0o700)
    escapes = "\x1b[2J\r\n\u202e"
    entries: list[Any] = [
        entry(1, job_id=escapes, outcome=escapes, command=[escapes], working_dir=escapes),
        entry(2, started=-1e308, ended=1e308, exit_status=-(2**31)),
        entry(3, command=[], log_dir="", working_dir="", logs_kept=True),
        entry(4, log_dir="../../..", logs_kept=True),
        entry(5, log_dir="/dev/full", logs_kept=True),
        entry(6, working_dir=str(jobs.folder), log_dir="a\x00b", logs_kept=True),
        [],
        None,
        {"version": 1, "job_id": None},
        entry(7, version=2),
        entry(8, host=escapes),
    ]
    for number, value in enumerate(entries):
        (jobs.history / f"{number:013}-x.json").write_text(json.dumps(value))
    (jobs.history / "1-torn.json").write_text('{"version": 1, "job_id": "to')
    (jobs.history / "1-link.json").symlink_to("/etc/passwd")
    os.mkfifo(jobs.history / "1-fifo.json")
    assert sorted(launchers(jobs, "--all")) == [1, 2, 3, 4, 5, 6, 8]
    table = jobs.ask("ps", "--all").stdout.decode()
    assert len(table.split("\n")) == 9, table
    assert not {"\x1b", "\u202e"} & set(table), table
    for number in range(1, 7):
        for command in ("status", "logs", "report", "stop"):
            shown = jobs.ask(command, str(number))
            assert shown.status == (0 if command == "status" else 1), (command, number, shown)
            assert "\x1b" not in shown.stdout.decode() + shown.stderr, (command, number)
    assert jobs.json("status")["launcher"] == 6, "by the folder"


def test_ten_thousand_jobs_are_listed(jobs: Jobs) -> None:
    jobs.history.mkdir(parents=True, mode=0o700)
    for number in range(10_000):
        (jobs.history / f"{number:013}-x.json").write_text(json.dumps(entry(number)))
    assert launchers(jobs, "--all") == list(range(9_999, -1, -1))
    pid = end(jobs, 0, env={**jobs.env, "RLAUNCH_HISTORY": "5000"})
    assert launchers(jobs, "--all") == [pid, *range(9_999, 5_000, -1)]
    assert jobs.json("status", "job-7000")["launcher"] == 7000


def test_jobs_of_another_machine_have_no_process_ids_here(jobs: Jobs) -> None:
    jobs.history.mkdir(parents=True, mode=0o700)
    (jobs.history / "1-x.json").write_text(json.dumps(entry(4_194_304, host="another", job_id="there")))
    assert jobs.ask("status", "4194304").status == 1
    assert jobs.json("status", "there")["host"] == "another"
    assert " another:" in jobs.ask("ps", "--all").stdout.decode()
