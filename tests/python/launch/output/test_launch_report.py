"""The reports of a job for programs: events.jsonl and result.json match their schemas and the job."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from launching import (
    ATTEMPT,
    LIMIT,
    RANK,
    Ended,
    Invalid,
    Place,
    await_line,
    environment,
    gone,
    insist,
    supervisor_of,
    until,
    validate,
)
from paths import ROOT

DOCS = ROOT / "docs"
READY = "tell('ready', os.getpid())\n"


def checked(place: Place) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events and the result of a job, once they have been checked."""
    events = place.events()
    assert [event["sequence"] for event in events] == list(range(len(events)))
    assert [event["monotonic"] for event in events] == sorted(event["monotonic"] for event in events)
    for event in events:
        validate(event, "events")
    result = place.result()
    validate(result, "result")
    if result["outcome"] != "supervisor_lost":
        last = events[-1]
        assert (last["event"], last["outcome"], last["exit_status"]) == (
            "job_ended", result["outcome"], result["exit_status"]
        )  # fmt: skip
    return events, result


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["event"] for event in events]


# --- The schemas. ----------------------------------------------------------------------------------------


def properties(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every property that a schema tells of, at whatever depth."""
    if isinstance(schema, dict):
        for name, one in schema.get("properties", {}).items():
            yield f"{path}.{name}", one
        for name, one in schema.items():
            yield from properties(one, f"{path}.{name}")
    elif isinstance(schema, list):
        for index, one in enumerate(schema):
            yield from properties(one, f"{path}.{index}")


@pytest.mark.parametrize("name", ["events", "result"])
def test_every_field_is_described(name: str) -> None:
    schema = json.loads((DOCS / f"{name}.schema.json").read_text())
    fields = dict(properties(schema))
    assert len(fields) > 20
    for path, field in fields.items():
        referred = schema["$defs"][field["$ref"].rpartition("/")[2]] if "$ref" in field else {}
        assert "description" in {**referred, **field} or path.endswith(".event"), path


@pytest.mark.parametrize(
    "spoil", [{"version": 2}, {"event": "nothing"}, {"more": 1}, {"rank": -1}, {"exit": {"code": 256}}]
)
def test_the_schema_of_events_refuses_other_documents(spoil: dict[str, Any]) -> None:
    common = {"version": 1, "sequence": 0, "time": "2026-01-01T00:00:00.000000Z", "monotonic": 1.5}
    rank = {"role": "rank", "rank": 0, "local_rank": 0, "attempt": 0, "pid": 7}
    event = {
        **common,
        "event": "rank_ended",
        **rank,
        "exit": {"code": 3},
        "swept": 0,
        "peak_memory_bytes": 9,
        "cpu_seconds": 0.5,
    }
    validate(event, "events")
    with pytest.raises(Invalid):
        validate({**event, **spoil}, "events")


# --- Each kind of end. -----------------------------------------------------------------------------------


def test_a_good_end(place: Place) -> None:
    place.script("block = bytearray(64 << 20); block[::4096] = b'x' * len(block[::4096])")
    ended = place.run("--nproc_per_node=2", "--job_id=mine", "train.py")
    assert ended.status == 0
    events, result = checked(place)
    assert kinds(events) == ["job_started", *["rank_started"] * 2, *["rank_ended"] * 2, "job_ended"]
    assert events[0]["ranks"] == 2
    assert events[0]["argv"][-1] == "train.py"
    assert (result["job_id"], result["outcome"], result["culprit"], result["exit_status"]) == (
        "mine",
        "completed",
        None,
        0,
    )
    assert (result["restarts"], result["attempts"], result["swept"]) == (0, [], 0)
    assert result["environment"]["PADDLE_TRAINERS_NUM"] == "2"
    pids = {event["rank"]: event["pid"] for event in events if event["event"] == "rank_started"}
    for number, rank in enumerate(result["ranks"]):
        assert (rank["rank"], rank["local_rank"], rank["attempt"]) == (number, number, 0)
        assert (rank["status"], rank["exit"], rank["told"], rank["killed"]) == (
            "succeeded",
            {"code": 0},
            False,
            False,
        )
        assert rank["pid"] == pids[number]
        assert 0 < rank["seconds"] < LIMIT
        assert 64 << 20 < rank["peak_memory_bytes"] < 1 << 30
        assert rank["log"] == f"{place.folder}/log/workerlog.{number}"
        assert rank["environment"]["PADDLE_TRAINER_ID"] == str(number)


def test_secrets_of_a_command_line_are_not_written_down(place: Place) -> None:
    place.script("print(sys.argv[1:])")
    words = ["--lr=3", "--hf-token", "abc", "--api_key=def", "s3://me:ghi@host"]
    ended = place.run("--nproc_per_node=1", "train.py", *words)
    assert ended.stdout.decode().strip() == str(words)
    events, _ = checked(place)
    assert events[0]["argv"][-5:] == ["--lr=3", "--hf-token", "***", "--api_key=***", "***"]


def test_a_failure(place: Place) -> None:
    place.script(READY + "await_file('ready.1')\nos.kill(os.getpid(), 9) if rank == 1 else sleep()")
    ended = place.run("--nproc_per_node=2", "train.py")
    assert ended.status == 137
    events, result = checked(place)
    assert (result["outcome"], result["culprit"], result["exit_status"]) == ("failed", 1, 137)
    victim, culprit = result["ranks"]
    assert (culprit["status"], culprit["exit"]) == ("failed", {"signal": {"number": 9, "name": "SIGKILL"}})
    assert (culprit["told"], culprit["killed"]) == (False, False)
    assert (victim["status"], victim["exit"]) == ("stopped", {"signal": {"number": 15, "name": "SIGTERM"}})
    assert (victim["told"], victim["killed"]) == (True, False)
    assert [event["rank"] for event in events if event["event"] == "rank_ended"] == [1, 0]


def test_a_signal_without_a_name(place: Place) -> None:
    place.script("os.kill(os.getpid(), signal.SIGRTMIN + 3)\nsleep()")
    number = signal.SIGRTMIN + 3
    assert place.run("train.py").status == 128 + number
    _, result = checked(place)
    assert result["ranks"][0]["exit"] == {"signal": {"number": number, "name": None}}


def test_ranks_that_outlive_the_grace(place: Place) -> None:
    place.script("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY + "sleep()")
    with place.start("--grace_period=0.2", "--nproc_per_node=2", "train.py") as launcher:
        place.ready(2)
        launcher.send_signal(signal.SIGINT)
        assert Place.wait(launcher).status == 130
    events, result = checked(place)
    assert {"signal", "stopping", "killing"} <= set(kinds(events))
    assert (result["outcome"], result["culprit"], result["exit_status"]) == ("stopped", None, 130)
    assert [(rank["status"], rank["killed"]) for rank in result["ranks"]] == [("stopped", True)] * 2


def test_ctrl_c_twice(place: Place) -> None:
    place.script("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY + "sleep()")
    with place.start("--grace_period=600", "train.py") as launcher:
        place.ready(1)
        launcher.send_signal(signal.SIGINT)
        await_line(launcher.stderr, b"waiting up to 600 s")
        insist(launcher, signal.SIGINT)
        assert Place.wait(launcher).status == 130
    events, _ = checked(place)
    order = ["signal", "stopping", "signal", "forced", "killing"]
    assert [kind for kind in kinds(events) if kind in order] == order


def test_a_rank_that_cannot_be_started(place: Place) -> None:
    (place.folder / "train").write_text("no program\n")
    (place.folder / "train").chmod(0o755)
    assert place.run("--nproc_per_node=2", "./train").status == 71
    events, result = checked(place)
    assert kinds(events) == ["job_started", "rank_not_started", "job_ended"]
    assert (result["outcome"], result["culprit"], result["exit_status"]) == ("not_started", 0, 71)
    first, second = result["ranks"]
    assert (first["status"], second["status"]) == ("not_started", "never_started")
    assert "Exec format error" in first["why"]
    assert (first["pid"], first["exit"], first["seconds"], second["why"]) == (None, None, None, None)


def test_a_restart(place: Place) -> None:
    place.script("sys.exit(3 * os.environ['RLAUNCH_RANK_KEY'].endswith('/0/0'))")
    assert place.run("--max_restart=2", "--restart_delay=0", "train.py").status == 0
    events, result = checked(place)
    assert kinds(events) == [
        "job_started", "rank_started", "rank_ended", "restarting", "rank_started", "rank_ended", "job_ended"
    ]  # fmt: skip
    again = events[3]
    assert (again["attempt"], again["of"], again["culprit"], again["exit"]) == (1, 2, 0, {"code": 3})
    assert (result["outcome"], result["restarts"], result["ranks"][0]["attempt"]) == ("completed", 1, 1)
    (first,) = result["attempts"]
    assert (first["attempt"], first["culprit"], first["exit"]) == (0, 0, {"code": 3})
    assert 0 < first["seconds"] < LIMIT


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--never_restart_on=3", "never_listed"),
        ("--restart_on=4", "not_listed"),
        ("--same_failure_limit=1", "same_failure"),
        ("", "used_up"),
    ],
)
def test_no_restart(place: Place, option: str, why: str) -> None:
    place.script("sys.exit(3)")
    args = ("--max_restart=1", "--restart_delay=0", option)
    assert place.run(*(arg for arg in args if arg), "train.py").status == 3
    events, _ = checked(place)
    assert kinds(events)[-2:] == ["not_restarting", "job_ended"]
    assert events[-2]["why"] == why


@pytest.mark.parametrize(
    ("victim", "outcome", "status"), [("front", "front_lost", 137), ("supervisor", "supervisor_lost", 72)]
)
def test_a_launcher_that_is_killed(place: Place, victim: str, outcome: str, status: int) -> None:
    place.script(READY + "sleep()")
    (place.folder / "log" / "rlaunch").mkdir(parents=True)
    (place.folder / "log" / "rlaunch" / "result.json").write_text("of an earlier run")
    with place.start("--nproc_per_node=2", "train.py") as launcher:
        place.ready(2)
        supervisor = supervisor_of(launcher)
        (psutil.Process(launcher.pid) if victim == "front" else supervisor).kill()
        until(lambda: gone(supervisor) and launcher.poll() is not None, "the launcher's end")
    _, result = checked(place)
    assert (result["outcome"], result["exit_status"]) == (outcome, status)


def test_a_job_that_slept(place: Place) -> None:
    place.script(READY + "await_file('end')")
    with place.start("train.py", start_new_session=True) as launcher:
        (rank,) = place.ready(1)
        # The front has no terminal here, so it does not stop itself; the ranks do.
        supervisor = supervisor_of(launcher)
        supervisor.send_signal(signal.SIGTSTP)
        until(lambda: rank.status() == psutil.STATUS_STOPPED, "the sleep of the rank")
        supervisor.send_signal(signal.SIGCONT)
        (place.folder / "end").touch()
        assert Place.wait(launcher).status == 0
    events, _ = checked(place)
    numbers = [event["signal"] for event in events if event["event"] == "signal"]
    assert numbers == [signal.SIGTSTP, signal.SIGCONT]


# --- Its permissions, and where it is written. -----------------------------------------------------------


def test_secrets_are_not_written_down(place: Place) -> None:
    place.script("")
    env = environment(
        http_proxy="http://me:hunter2@proxy:1", WANDB_API_KEY="hunter2", AWS_SECRET_ACCESS_KEY="hunter2"
    )
    assert place.run("--nproc_per_node=2", "train.py", env=env).status == 0
    _, result = checked(place)
    assert result["environment"]["http_proxy_original"] == "***"
    for path in (place.folder / "log").rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes()


def test_only_the_user_may_read_it(place: Place) -> None:
    place.script("sys.exit(3)")
    place.run("--max_restart=1", "--restart_delay=0", "train.py", preexec_fn=lambda: os.umask(0) and None)
    for path in [place.folder / "log", *(place.folder / "log").rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("name", ["rlaunch", "rlaunch/events.jsonl"])
def test_links_are_not_followed(place: Place, name: str) -> None:
    place.script(READY)
    elsewhere = place.folder / "elsewhere"
    link = place.folder / "log" / name
    link.parent.mkdir(parents=True)
    if name == "rlaunch":
        elsewhere.mkdir()
    else:
        elsewhere.write_text("precious")
    link.symlink_to(elsewhere)
    ended = place.run("train.py")
    assert ended.status == 66
    assert len(ended.error_lines()) == 1
    assert "is a symbolic link" in ended.error_lines()[0]
    assert "ready.0" not in place.names()
    assert elsewhere.read_text() == "precious" if elsewhere.is_file() else not list(elsewhere.iterdir())


def test_a_link_in_the_place_of_the_result_is_replaced(place: Place) -> None:
    place.script(READY + "await_file('end')")
    (place.folder / "elsewhere").write_text("precious")
    with place.start("train.py") as launcher:
        place.ready(1)
        (place.folder / "log" / "rlaunch" / "result.json").symlink_to(place.folder / "elsewhere")
        (place.folder / "end").touch()
        assert Place.wait(launcher).status == 0
    checked(place)
    assert place.text("elsewhere") == "precious"


FILLS_THE_DISK = """
try:
    with open("log/ballast", "ab", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))
except OSError:
    tell(f"full-{attempt}")
if rank == 0:
    await_file(f"full-{attempt}.1")
sys.exit(5 * rank)
"""


def run_on_a_small_disk(place: Place, *command: str, **variables: str) -> Ended:
    """Runs a launcher whose log folder is a file system of 64 KiB, which is copied to `after` at the end."""
    (place.folder / "log").mkdir()
    inside = (
        'mount -t tmpfs -o size=64k,mode=700 none log; shift; "$@"; status=$?; cp -r log after; exit $status'
    )
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside, "sh", "", *command],
        cwd=place.folder, env=environment(**variables), capture_output=True, timeout=LIMIT,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr.decode())


def test_a_full_disk_ends_no_job(place: Place) -> None:
    """Its files are cut at a whole line, nothing half-written is left, and it is said."""
    (place.folder / "train.py").write_text(RANK + ATTEMPT + FILLS_THE_DISK)
    # The disk has a page for the events, but not for those of so many attempts.
    again = ("--max_restart=9", "--restart_delay=0")
    command = [sys.executable, "-m", "rlaunch", "--nproc_per_node=2", *again, "train.py"]
    ended = run_on_a_small_disk(place, *command)
    assert ended.status == 5, ended.stderr
    events = place.folder / "log/rlaunch/events.jsonl"
    assert (
        ended.stderr.count(f"cannot write {events} for now: No space left on device; it is tried again") == 1
    )
    assert ended.stderr.count(" is full: the end of the ranks' logs may be missing") == 1
    assert ended.stderr.endswith("\nexit status 5 after 9 restarts\n")
    for line in place.text("after/rlaunch/events.jsonl").splitlines():
        validate(json.loads(line), "events")
    assert place.text("after/rlaunch/events.jsonl").endswith("}\n")
    logs = {f"attempt-{attempt}" for attempt in range(9)}
    assert place.names("after/rlaunch") - logs <= {"events.jsonl", "result.json"}


@pytest.mark.parametrize("module", ["rlaunch", "rlaunch.run"])
def test_the_result_of_a_job_on_a_full_disk_is_elsewhere(place: Place, module: str) -> None:
    head = RANK.replace("PADDLE_TRAINER_ID", "RANK")
    (place.folder / "train.py").write_text(head + "attempt = 0\n" + FILLS_THE_DISK)
    (place.folder / "tmp").mkdir()
    ranks = ["--frameworks=paddle,torch", "--nproc_per_node=2"]
    if module == "rlaunch.run":
        ranks.append("--log-dir=log")
    command = [sys.executable, "-m", module, *ranks, "train.py"]
    ended = run_on_a_small_disk(place, *command, TMPDIR=str(place.folder / "tmp"))
    assert ended.status == 5, ended.stderr
    why = "No space left on device"
    said = rf"^rlaunch: cannot write ({place.folder}/log/.*result\.json): {why}; it is in (.*) instead$"
    ((missing, elsewhere),) = re.findall(said, ended.stderr, re.MULTILINE)
    assert not (place.folder / "after" / Path(missing).relative_to(place.folder / "log")).exists()
    assert (Path(elsewhere).parent, Path(elsewhere).stat().st_mode & 0o777) == (place.folder / "tmp", 0o600)
    result = json.loads(Path(elsewhere).read_text())
    validate(result, "result")
    assert (result["outcome"], result["exit_status"]) == ("failed", 5)


def test_a_result_that_can_be_written_nowhere_is_said(place: Place) -> None:
    (place.folder / "train.py").write_text(RANK + "attempt = 0\n" + FILLS_THE_DISK)
    command = [sys.executable, "-m", "rlaunch", "--nproc_per_node=2", "train.py"]
    ended = run_on_a_small_disk(place, *command, TMPDIR=str(place.folder / "log"))
    assert ended.status == 5, ended.stderr
    said = f"rlaunch: cannot write {place.folder}/log/rlaunch/result.json: No space left on device; nor can "
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith(said)]
    assert line.endswith(": No space left on device")
    assert not list((place.folder / "after").glob("**/*result*"))
