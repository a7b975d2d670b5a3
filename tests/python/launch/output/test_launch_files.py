"""The files of a launch in its log folder, and ``--dry_run``, which leaves none."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launching import TELL, Place, environment

BESIDE = re.compile(r"default\.[a-z]{6}\.log")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.script("print('rank', rank)")
    return place


def open_umask() -> None:
    os.umask(0)


def test_the_folder_holds_the_ranks_logs_and_one_more_file(place: Place) -> None:
    assert place.run("--nproc_per_node=3", "--log_dir=a/b", "train.py", preexec_fn=open_umask).status == 0
    modes = place.modes("a/b")
    assert modes.pop("rlaunch") == 0o700
    assert place.modes("a/b/rlaunch") == {"events.jsonl": 0o600, "result.json": 0o600}
    (beside,) = set(modes) - {"workerlog.0", "workerlog.1", "workerlog.2"}
    assert BESIDE.fullmatch(beside)
    assert len(modes) == 4
    assert set(modes.values()) == {0o600}
    assert [place.log(rank, "a/b") for rank in range(3)] == [b"rank 0\n", b"rank 1\n", b"rank 2\n"]
    for folder in ("a", "a/b"):
        assert (place.folder / folder).stat().st_mode & 0o7777 == 0o700


def test_the_file_beside_the_logs_names_the_endpoints_and_no_secret(place: Place) -> None:
    secret = "hunter2-hunter2"
    env = environment(API_TOKEN=secret, PADDLE_ENV_LIMIT_LEN="10")
    assert place.run("--nproc_per_node=2", "--job_id=default", "train.py", env=env).status == 0
    (beside,) = (path for path in (place.folder / "log").iterdir() if BESIDE.fullmatch(path.name))
    assert re.fullmatch(
        r"rank 0 local_rank 0 endpoint 127\.0\.0\.1:\d+\nrank 1 local_rank 1 endpoint 127\.0\.0\.1:\d+\n",
        beside.read_text(),
    )
    for path in place.folder.rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes(), path


def test_a_folder_that_is_there_keeps_its_mode_and_old_logs_become_private(place: Place) -> None:
    folder = place.folder / "log"
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "workerlog.0").write_text("before\n")
    (folder / "workerlog.0").chmod(0o644)
    assert place.run("train.py").status == 0
    assert place.log() == b"before\nrank 0\n"
    assert place.modes()["workerlog.0"] == 0o600
    assert folder.stat().st_mode & 0o7777 == 0o755


def test_logs_are_appended_to_across_runs_unless_asked_otherwise(place: Place) -> None:
    two = ["--nproc_per_node=2"]
    for _ in range(2):
        assert place.run(*two, "train.py").stdout == b"rank 0\n"
    assert [place.log(rank) for rank in range(2)] == [b"rank 0\nrank 0\n", b"rank 1\nrank 1\n"]
    assert place.run(*two, "--log_overwrite", "true", "train.py").stdout == b"rank 0\n"
    assert [place.log(rank) for rank in range(2)] == [b"rank 0\n", b"rank 1\n"]
    env = environment(PADDLE_LOG_OVERWRITE="True")
    assert place.run(*two, "train.py", env=env).status == 0
    assert place.log(1) == b"rank 1\n"


@pytest.mark.parametrize("overwrite", ["true", "false"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_log_that_is_a_link_is_not_followed(place: Place, rank: int, overwrite: str) -> None:
    target = place.folder / "target"
    target.write_text("precious")
    (place.folder / "log").mkdir()
    (place.folder / "log" / f"workerlog.{rank}").symlink_to(target)
    ended = place.run("--nproc_per_node=2", f"--log_overwrite={overwrite}", "train.py")
    assert target.read_text() == "precious"
    (line,) = ended.error_lines()
    assert f"log/workerlog.{rank}" in line
    assert (ended.status, ended.stdout) == (66, b""), ended.stderr


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_log_that_is_no_file_is_refused_before_any_rank_starts(
    place: Place, rank: int, make: Callable[[Path], None]
) -> None:
    place.script("tell('started')")
    (place.folder / "log").mkdir()
    make(place.folder / "log" / f"workerlog.{rank}")
    ended = place.run("--nproc_per_node=2", "train.py")
    (line,) = ended.error_lines()
    assert f"log/workerlog.{rank}" in line
    assert ended.status == 66, ended.stderr
    assert place.names() == {"log", "train.py"}


def test_the_backup_file_is_replaced_where_a_link_stands(place: Place) -> None:
    target = place.folder / "target"
    target.write_text("precious")
    (place.folder / "log").mkdir()
    (place.folder / "log" / "backup_env.0.json").symlink_to(target)
    assert place.run("train.py", env=environment(PADDLE_ENV_LIMIT_LEN="5")).status == 0
    assert target.read_text() == "precious"
    assert not (place.folder / "log" / "backup_env.0.json").is_symlink()


TWO_ENDPOINTS = len("127.0.0.1:35100,127.0.0.1:35101")


def test_lists_that_are_too_long_for_the_environment_are_in_a_file(place: Place) -> None:
    variables = {"PADDLE_ENV_LIMIT_LEN": str(TWO_ENDPOINTS), "TRAINER_IP_PORT_LIST": "1.2.3.4:5," * 9}
    place.script("""
        import json
        from rlaunch import ParallelEnv
        tell("backup", open(os.environ["PADDLE_BACKUP_ENV_PATH"]).read())
        tell("read", json.dumps(ParallelEnv().trainer_endpoints))
        tell("own", os.environ["PADDLE_CURRENT_ENDPOINT"])
        assert "PADDLE_TRAINER_ENDPOINTS" not in os.environ
        assert "TRAINER_IP_PORT_LIST" not in os.environ
        assert os.environ["PADDLE_BACKUP_ENV_PATH"].endswith(f"/log/backup_env.{rank}.json")
    """)
    ended = place.run("--nproc_per_node=2", "train.py", env=environment(**variables), preexec_fn=open_umask)
    assert ended.status == 0, ended.stderr
    endpoints = [place.text(f"own.{rank}") for rank in range(2)]
    for rank in range(2):
        # Nothing but what its readers look for.
        assert json.loads(place.text(f"backup.{rank}")) == {
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "TRAINER_IP_PORT_LIST": variables["TRAINER_IP_PORT_LIST"],
        }
        assert json.loads(place.text(f"read.{rank}")) == endpoints
    modes = place.modes()
    assert modes.pop("rlaunch") == 0o700
    backups = {"backup_env.0.json", "backup_env.1.json"}
    assert {name for name in modes if not BESIDE.fullmatch(name)} == {"workerlog.0", "workerlog.1", *backups}
    assert set(modes.values()) == {0o600}


def test_lists_that_fit_are_in_no_file(place: Place) -> None:
    env = environment(PADDLE_ENV_LIMIT_LEN=str(TWO_ENDPOINTS + 1), TRAINER_IP_PORT_LIST="1.2.3.4:5")
    ranks = place.tell("--nproc_per_node=2", env=env)
    for seen in ranks:
        assert len(seen["env"]["PADDLE_TRAINER_ENDPOINTS"]) == TWO_ENDPOINTS
        assert seen["env"]["TRAINER_IP_PORT_LIST"] == "1.2.3.4:5"
        assert "PADDLE_BACKUP_ENV_PATH" not in seen["env"]
    assert not {name for name in place.names("log") if "backup" in name}


# --- --dry_run. ------------------------------------------------------------------------------------------


def dry(place: Place, *args: str, env: dict[str, str] | None = None) -> str:
    """The plan, once it is certain that nothing ran and nothing was made."""
    (place.folder / "tell.py").write_text(TELL)
    before = place.names()
    ended = place.run(*args, env=env)
    assert (ended.status, place.names()) == (0, before), ended.stderr
    assert not ended.error_lines()
    return ended.stdout.decode()


def test_the_plan_as_json_matches_the_environment_of_the_ranks(place: Place) -> None:
    env = environment(CUDA_VISIBLE_DEVICES="4,5", http_proxy="http://a:1", PADDLE_JOB_ID="j")
    job = ["--nproc_per_node=2", "--log_dir=logs", "tell.py", "a b"]
    plan: dict[str, Any] = json.loads(dry(place, "--dry_run=json", *job, env=env))
    assert place.run(*job, env=env).status == 0
    ranks = place.seen()
    shown = ("version", "job_id", "nnodes", "world_size", "log_dir")
    assert [plan[key] for key in shown] == [1, "j", 1, 2, str(place.folder / "logs")]
    run_specific = re.compile(r"127\.0\.0\.1:\d+")
    for rank, (row, seen) in enumerate(zip(plan["ranks"], ranks, strict=True)):
        assert (row["rank"], row["local_rank"], row["devices"]) == (rank, rank, str(rank))
        assert row["log"] == f"{place.folder}/logs/workerlog.{rank}"
        assert row["argv"] == seen["command"]
        assert row["endpoint"] == row["env"]["PADDLE_CURRENT_ENDPOINT"]
        assert row["unset"] == ["http_proxy"]
        differs = {"POD_NAME", "RLAUNCH_EXPORTED"}
        expected = {name: value for name, value in {**env, **row["env"]}.items() if name != "http_proxy"}
        # A rank's environment has nothing more.
        of_a_start = {"RLAUNCH_RANK_KEY", "RLAUNCH_EXCEPTION_FILE", "RLAUNCH_ROUND", "RLAUNCH_STOP_SLOT"}
        assert set(seen["env"]) == {*expected, *of_a_start}
        for name in set(expected) - differs:
            assert run_specific.sub("E", seen["env"][name]) == run_specific.sub("E", expected[name]), name


def test_the_plan_as_a_table(place: Place) -> None:
    table = dry(place, "--dry_run", "--nproc_per_node=2", "tell.py", "a b")
    lines = table.splitlines()
    assert re.match(rf"job default: 2 rank\(s\) on 1 node, logs in {place.folder}/log$", lines[0])
    assert re.split(r" {2,}", lines[2]) == ["rank", "devices", "endpoint", "log"]
    for rank in range(2):
        row = re.split(r" {2,}", lines[3 + rank])
        assert [row[0], row[1], row[3]] == [str(rank), "cpu", f"workerlog.{rank}"]
        assert f"  PADDLE_CURRENT_ENDPOINT={row[2]}" in lines
    assert any(line.startswith("command ") and line.endswith("-u tell.py 'a b'") for line in lines)
    for shared in ("  PADDLE_NNODES=1", "  PADDLE_DISTRI_BACKEND=gloo"):
        assert lines.count(shared) == 1
    for own in ("  PADDLE_TRAINER_ID=0", "  PADDLE_TRAINER_ID=1"):
        assert lines.count(own) == 1


def test_a_table_shows_a_command_that_a_shell_reads_back(place: Place) -> None:
    table = dry(place, "--dry_run=table", "tell.py", "it's", "")
    assert r"tell.py 'it'\''s' ''" in table


@pytest.mark.parametrize(("form", "args"), [("--dry_run", []), ("--dry_run=json", ["--no_python"])])
def test_a_plan_that_cannot_run_is_refused(place: Place, form: str, args: list[str]) -> None:
    ended = place.run(form, *args, "missing.py")
    assert (ended.status, ended.stdout, len(ended.error_lines())) == (66, b"", 1)
    assert place.names() == {"train.py"}


def test_a_job_id_of_any_length_names_its_files(place: Place) -> None:
    place.script("pass")
    # The longest name of an object of Kubernetes.
    for last in "ab":
        ended = place.run(f"--job_id={'j' * 252}{last}", "train.py")
        assert ended.status == 0, ended
    logs = [name for name in place.names("log") if name.startswith("jjj")]
    assert len({name.split(".")[0] for name in logs}) == 2, logs


def test_a_deleted_current_folder_is_said(place: Place) -> None:
    script = place.folder / place.script("pass")
    command = 'mkdir gone; cd gone; rmdir ../gone; exec "$@"'
    words = [sys.executable, "-m", "rlaunch", str(script)]
    launcher = subprocess.Popen(
        ["sh", "-ec", command, "sh", *words],
        cwd=place.folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with place.cleaned(launcher):
        ended = place.wait(launcher)
    assert ended.status == 66
    (error,) = ended.error_lines()
    assert "the current folder, which has been deleted" in error, error
