"""Restarts on one node: the environment of an attempt, cleanup of the one before, the end of the delay."""

from __future__ import annotations

import json
import re
import signal

import psutil
import pytest
from launching import (
    ATTEMPT,
    Ended,
    Place,
    await_line,
    environment,
    gone,
    insist,
    marked,
    supervisor_of,
    until,
)

AT_ONCE = "--restart_delay=0"
IN_TEN_MINUTES = ("--max_restart=3", "--restart_delay=1200", "--restart_delay_max=1200")


def messages(ended: Ended) -> list[str]:
    return [
        line.removeprefix("rlaunch: ") for line in ended.stderr.splitlines() if line.startswith("rlaunch: ")
    ]


def attempts(place: Place) -> set[int]:
    """Those in which rank 0 ran."""
    found = (re.fullmatch(r"attempt-(\d+)\.0", name) for name in place.names())
    return {int(match[1]) for match in found if match}


def test_each_job_keeps_the_logs_of_its_own_attempts(place: Place) -> None:
    place.script(ATTEMPT + "print(f'job {sys.argv[1]} attempt {attempt}', flush=True)\nsys.exit(3)")
    for job in ("1", "2", "3"):
        assert place.run("--max_restart=2", AT_ONCE, "train.py", job).status == 3
    folders = {"3": "log/rlaunch", "2": "log/rlaunch/earlier-2", "1": "log/rlaunch/earlier-1"}
    for job, folder in folders.items():
        for attempt in (0, 1):
            words = place.log(0, f"{folder}/attempt-{attempt}").decode().splitlines()
            assert words[-1] == f"job {job} attempt {attempt}"
    # The next job appends to the log of the last attempt.
    assert place.log(0, "log/rlaunch/attempt-0") == b"job 2 attempt 2\njob 3 attempt 0\n"
    assert place.log() == b"job 3 attempt 2\n"
    assert place.modes("log/rlaunch")["earlier-1"] == 0o700
    (place.folder / "log/rlaunch/attempt-of-mine").mkdir()
    assert place.run("--log_overwrite=1", "train.py", "4").status == 3
    kept = {"attempt-of-mine", "earlier-1", "earlier-2", "events.jsonl", "result.json"}
    assert place.names("log/rlaunch") == kept


# --- Environment of an attempt. --------------------------------------------------------------------------


def test_a_failed_job_is_restarted_until_it_succeeds(place: Place) -> None:
    place.script(
        ATTEMPT
        + """
import json
print(f"attempt {attempt} of rank {rank}", flush=True)
tell(f"env-{attempt}", json.dumps(dict(os.environ)))
if attempt < 2:
    if rank == 1:
        await_file(f"env-{attempt}.0")
        os._exit(3 + attempt)
    sleep()
"""
    )
    ended = place.run("--nproc_per_node=2", "--max_restart=5", AT_ONCE, "--console_ranks=all", "train.py")
    assert ended.status == 0, ended.stderr
    assert messages(ended) == [
        f"rank 1 failed first, with exit code {3 + n}; restart {n + 1} (at most 5) at once" for n in (0, 1)
    ]
    lines = ended.stdout.decode().splitlines()
    assert sorted(lines) == sorted(f"[rank {r}] attempt {a} of rank {r}" for a in range(3) for r in (0, 1))
    order = [line.split()[3] for line in lines]
    assert order == sorted(order), "the console mixes attempts"
    for rank in (0, 1):
        words = [f"attempt {attempt} of rank {rank}\n".encode() for attempt in range(3)]
        logs = [place.log(rank, f"log/rlaunch/attempt-{attempt}") for attempt in (0, 1)]
        assert [*logs, place.log(rank)] == words
        # Ports, endpoints and all else are as before; but each attempt's processes are known apart.
        seen = [json.loads(place.text(f"env-{attempt}.{rank}")) for attempt in range(3)]
        keys = [env.pop("RLAUNCH_RANK_KEY").split("/") for env in seen]
        assert [env.pop("RLAUNCH_ROUND") for env in seen] == ["1", "2", "3"]
        assert [key[1:] for key in keys] == [[str(attempt), str(rank)] for attempt in range(3)]
        assert seen[0] == seen[1] == seen[2]
    for folder in ("log", "log/rlaunch/attempt-0", "log/rlaunch/attempt-1"):
        logs_of = {name: mode for name, mode in place.modes(folder).items() if name.startswith("workerlog")}
        assert logs_of == {"workerlog.0": 0o600, "workerlog.1": 0o600}
    assert place.modes("log/rlaunch").items() >= {"attempt-0": 0o700, "attempt-1": 0o700}.items()
    assert place.names("log/rlaunch") == {"attempt-0", "attempt-1", "events.jsonl", "result.json"}


def test_when_the_restarts_are_used_up_the_last_culprit_gives_the_status(place: Place) -> None:
    place.script(
        ATTEMPT
        + """
if rank != attempt % 2:
    sleep()
await_file(f"attempt-{attempt}.{1 - rank}")
print(f"words of rank {rank} in attempt {attempt}")
sys.exit(3 + attempt)
"""
    )
    ended = place.run("--nproc_per_node=2", "--max_restart=1", AT_ONCE, "train.py")
    assert ended.status == 4
    assert messages(ended)[-1] == "no restart: 1 of 1 restarts used"
    failure_report = ended.stderr[ended.stderr.index("rank 1 failed: exit code 4") :]
    assert ", attempt 1, lived " in " ".join(failure_report.split())
    assert "  | words of rank 1 in attempt 1\n" in failure_report
    assert "attempt 0" not in failure_report
    assert failure_report.endswith("\nexit status 4 after 1 restart\n")
    result = place.result()
    assert (result["outcome"], result["culprit"], result["exit_status"], result["restarts"]) == (
        "failed",
        1,
        4,
        1,
    )
    assert [(one["attempt"], one["culprit"], one["exit"]) for one in result["attempts"]] == [
        (0, 0, {"code": 3})
    ]


def test_without_the_option_nothing_is_started_again(place: Place) -> None:
    place.script(ATTEMPT + "sys.exit(3)")
    ended = place.run("train.py")
    assert (ended.status, attempts(place), messages(ended)) == (3, {0}, [])
    assert ended.stderr.endswith("\nexit status 3\n")


# --- Which failures are followed by one. -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "end", "why"),
    [
        ("--restart_on=3", "3", None),
        ("--restart_on=3", "4", "--restart_on does not have status 4"),
        ("--restart_on=SIGKILL,4", "9", None),
        ("--restart_on=9", "9", "--restart_on does not have status 137"),
        ("--never_restart_on=3,5", "3", "--never_restart_on has status 3"),
        ("--never_restart_on=3,5", "4", None),
        ("--never_restart_on=kill", "9", "--never_restart_on has status 137"),
    ],
)
def test_the_lists_choose_the_failures(place: Place, option: str, end: str, why: str | None) -> None:
    place.script(ATTEMPT + f"os.kill(os.getpid(), 9) if {end} == 9 else os._exit({end})")
    ended = place.run("--max_restart=1", AT_ONCE, option, "train.py")
    assert ended.status == (137 if end == "9" else int(end))
    assert attempts(place) == ({0} if why else {0, 1})
    assert messages(ended)[-1] == f"no restart: {why or '1 of 1 restarts used'}"


def test_the_same_failure_again_and_again_is_given_up(place: Place) -> None:
    place.script(ATTEMPT + "sys.exit(3)")
    ended = place.run("--max_restart=99", AT_ONCE, "--same_failure_limit=3", "train.py")
    assert (ended.status, attempts(place)) == (3, {0, 1, 2})
    assert messages(ended)[-1] == "no restart: the same rank has failed in the same way 3 time(s) in a row"


def test_different_failures_are_not_given_up(place: Place) -> None:
    place.script(ATTEMPT + "sys.exit([3, 4, 3, 4, 0][attempt])")
    ended = place.run("--max_restart=99", AT_ONCE, "--same_failure_limit=2", "train.py")
    assert (ended.status, attempts(place)) == (0, {0, 1, 2, 3, 4})


@pytest.mark.parametrize(("window", "status"), [("0.3", 0), ("600", 3)])
def test_only_restarts_within_the_window_count(place: Place, window: str, status: int) -> None:
    # It is time that has to pass here, more than the short window.
    place.script(ATTEMPT + "time.sleep(0.4 * (attempt == 1))\nsys.exit([3, 3, 0][attempt])")
    ended = place.run("--max_restart=1", AT_ONCE, f"--restart_window={window}", "train.py")
    assert ended.status == status
    assert attempts(place) == ({0, 1, 2} if status == 0 else {0, 1})


def test_a_rank_that_cannot_be_started_is_not_tried_again(place: Place) -> None:
    place.script("#!/bin/sh\nrm train; exit 3\n", "train")
    (place.folder / "train").chmod(0o755)
    ended = place.run("--max_restart=9", AT_ONCE, "./train")
    assert ended.status == 71
    assert "cannot start rank 0 (" in ended.error_lines()[0]
    result = place.result()
    assert (result["outcome"], result["restarts"]) == ("not_started", 1)


# --- Cleanup of the attempt before. ----------------------------------------------------------------------


def test_nothing_of_an_attempt_lives_when_the_next_begins(place: Place, mark: str) -> None:
    """Neither daemons, of the culprit and of a victim, nor ranks that take no notice of SIGTERM."""
    place.script(
        ATTEMPT
        + """
import subprocess
if attempt == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    daemon = "setsid sh -c 'trap : TERM HUP INT; sleep 600 & echo $$ > daemon.{0}; wait; wait' &".format(rank)
    subprocess.run(["sh", "-c", daemon])
    bare = subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
    tell("bare", bare.pid)
    await_file(f"daemon.{rank}")
    tell("left")
    if rank == 0:
        await_file("left.1")
        os._exit(3)
    sleep()

def alive(pid):
    return os.path.exists(f"/proc/{pid}")

pids = [open(f"{name}.{r}").read().strip() for name in ("attempt-0", "daemon", "bare") for r in (0, 1)]
tell("alive", [pid for pid in pids if alive(pid)])
tell("count", len(pids))
"""
    )
    args = ("--nproc_per_node=2", "--max_restart=1", AT_ONCE, "--grace_period=0.2", "train.py")
    ended = place.run(*args, env=environment(MARK=mark))
    assert ended.status == 0, ended.stderr
    assert "sending SIGKILL to rank(s) 1" in messages(ended)
    # The shells, their sleeps, and the two that hide their environment: these are of no rank in particular.
    swept = [(rank["rank"], rank["swept"]) for rank in place.result()["ranks"]]
    assert (swept, place.result()["swept"]) == ([(0, 2), (1, 2)], 2)
    for rank in (0, 1):
        assert (place.text(f"alive.{rank}"), place.text(f"count.{rank}")) == ("[]", "6")
    assert marked(mark) == []


# --- The end of the delay. -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_stop_signal_ends_the_waiting_at_once(place: Place, name: str) -> None:
    place.script(ATTEMPT + "print('words of the failure')\nsys.exit(3)")
    with place.start(*IN_TEN_MINUTES, "train.py") as launcher:
        await_line(launcher.stderr, b"restart 1 (at most 3)")
        launcher.send_signal(signal.Signals[name])
        ended = Place.wait(launcher)
    assert ended.status == 128 + signal.Signals[name]
    lines = [f"{name}: nothing runs", "no restart: the job was asked to stop"]
    assert messages(ended) == [*lines, f"the logs are in {place.folder / 'log'}"]
    assert attempts(place) == {0}
    assert place.log() == b"words of the failure\n"
    result = place.result()
    assert (result["outcome"], result["culprit"], result["restarts"]) == ("stopped", None, 0)


@pytest.mark.parametrize("victim", ["front", "supervisor"])
def test_a_launcher_that_is_killed_while_it_waits_leaves_nothing(
    place: Place, mark: str, victim: str
) -> None:
    place.script(ATTEMPT + "sys.exit(3)")
    with place.start(*IN_TEN_MINUTES, "train.py", env=environment(MARK=mark)) as launcher:
        await_line(launcher.stderr, b"restart 1 (at most 3)")
        supervisor = supervisor_of(launcher)
        (psutil.Process(launcher.pid) if victim == "front" else supervisor).kill()
        ended = Place.wait(launcher)
        until(lambda: gone(supervisor), "the supervisor's end", 2)
    assert ended.status == (-9 if victim == "front" else 72)
    assert (marked(mark), attempts(place)) == ([], {0})


def test_a_stop_signal_while_a_failure_is_cleaned_up_leaves_the_blame_and_ends_it(place: Place) -> None:
    place.script(
        ATTEMPT
        + """
if rank == 0:
    await_file("attempt-0.1")
    os._exit(3)
def note(*_):
    tell("signalled")
signal.signal(signal.SIGTERM, note)
sleep()
"""
    )
    with place.start(
        "--nproc_per_node=2", "--max_restart=9", AT_ONCE, "--grace_period=600", "train.py"
    ) as launcher:
        until((place.folder / "signalled.1").exists, "the SIGTERM of rank 1")
        launcher.terminate()
        await_line(launcher.stderr, b"SIGTERM: waiting up to 600 s for rank(s) 1")
        insist(launcher)
        ended = Place.wait(launcher)
    assert (ended.status, attempts(place)) == (3, {0})
    assert messages(ended)[-1] == "no restart: the job was asked to stop"
    assert "rank 0 failed: exit code 3" in ended.stderr
