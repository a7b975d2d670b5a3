"""``rlaunch report``: a page and a trace of runs that failed, were killed, run, or have odd records."""

from __future__ import annotations

import itertools
import json
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
from jobs import Jobs, TorchJobs
from launching import ATTEMPT, supervisor_of
from run_records import Page, Records, failed_run

EVIL = "</script><x-evil onclick=\"x()\" a='b'><b>&lt;\x1b[2J\u202e\x00"
# Rank 0 has written all when rank 1 fails.
RESTARTED = f"""{ATTEMPT}
print("first line", flush=True)
for step in range(30):
    print("step", step, flush=True)
tell(f"printed-{{attempt}}")
if rank == 1:
    await_file(f"printed-{{attempt}}.0")
    raise ValueError("no luck </script><b>here</b>")
sleep()
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


def report(jobs: Jobs, *args: str) -> Page:
    """The page that this command writes."""
    ended = jobs.ask("report", "--output=page.html", *args)
    assert (ended.status, ended.stderr) == (0, ""), ended.stderr
    assert ended.stdout.decode().splitlines()[0] == "page.html"
    return Page(jobs.text("page.html"))


def trace(jobs: Jobs, *args: str) -> dict[str, list[dict[str, Any]]]:
    """The lanes of a trace by name, each with its events."""
    ended = jobs.ask("report", "--trace=trace.json", *args)
    assert (ended.status, ended.stderr) == (0, ""), ended.stderr
    assert ended.stdout.decode().splitlines()[-1] == "trace.json"
    events = json.loads(jobs.text("trace.json"))["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    lanes: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    assert len(lanes) == len(names)
    for event in events:
        assert event["ph"] in "MXi", event
        if event["ph"] == "X":
            assert type(event["ts"]) is int, event
            assert type(event["dur"]) is int, event
        if event["ph"] != "M":
            lanes[names[event["tid"]]].append(event)
    return lanes


def test_a_job_with_a_restart_that_failed(jobs: Jobs) -> None:
    jobs.script(RESTARTED)
    ended = jobs.run("--nproc_per_node=2", "--max_restart=1", "--restart_delay=0", "train.py", env=jobs.env)
    assert ended.status == 1
    done = jobs.ask("report", "log")
    path = jobs.folder / "log/rlaunch/report.html"
    assert (done.status, done.stdout.decode(), done.stderr) == (0, f"{path.resolve()}\n", "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    page = Page(path.read_text())
    assert page.count["script"] == 1
    assert "Rank 1 failed with exit code 1 after " in page.text
    assert " and 1 restart." in page.text
    assert "ValueError: no luck </script><b>here</b>" in page.text
    for phase in ("attempt 0", "attempt 1", "restart delay"):
        # A short phase has no room for its name.
        assert f'title="{phase}: ' in path.read_text(), phase
    assert "no restart: all restarts are used" in page.text
    assert "restart 1 of at most 1 in 0 ms, because rank 1 failed with exit code 1" in page.text
    assert "\nstep 29\n" in page.text, "the end of rank 0's log, too"
    lines = page.text[page.text.index("Last log lines") :]
    assert "first line" not in lines, "20 lines of each log"
    assert {"#rank-0", "#log-rank-1"} <= page.links
    assert page.links <= {f"#{name}" for name in page.ids}
    # The folder of the records names the run, too, and may have been moved.
    (jobs.folder / "log").rename(jobs.folder / "moved")
    again = jobs.ask("report", "moved/rlaunch", "--output=-")
    assert (again.status, again.stderr) == (0, "")
    assert "\nstep 29\n" in Page(again.stdout.decode()).text


HEALED = f"""{ATTEMPT}
tell(f"started-{{attempt}}")
if rank == 1 and attempt < 2:
    await_file(f"started-{{attempt}}.0")
    def learn():
        raise KeyError(f"label {{attempt}}")
    learn()
"""


@pytest.mark.parametrize("front_end", ["paddle", "torch"])
def test_a_job_that_a_restart_has_healed_has_a_box_for_each_failed_attempt(
    front_end: str, jobs: Jobs, tmp_path: Path
) -> None:
    if front_end == "torch":
        jobs = TorchJobs(tmp_path)
        options = ("--max-restarts=2", "--log-dir=log")
    else:
        options = ("--max_restart=2", "--restart_delay=0", "--log_dir=log")
    jobs.script(HEALED)
    ended = jobs.run("--nproc_per_node=2", *options, "train.py", env=jobs.env)
    assert ended.status == 0, ended
    page = report(jobs, "log")
    assert "attempts" in page.ids
    boxes = page.text[page.text.index("Failed attempts") : page.text.index("Timeline")]
    for attempt in range(2):
        assert f"Attempt {attempt}: rank 1: KeyError: 'label {attempt}'" in boxes
        assert f"KeyError: 'label {attempt}'\n" in boxes, "the traceback"
    assert boxes.count("in learn") == 2, boxes
    assert "Attempt 2" not in boxes


def test_the_trace_has_a_lane_for_each_rank(jobs: Jobs) -> None:
    jobs.script(RESTARTED)
    jobs.run("--nproc_per_node=2", "--max_restart=1", "--restart_delay=0", "train.py", env=jobs.env)
    lanes = trace(jobs, "log")
    assert list(lanes) == ["job", "rank 0", "rank 1"]
    names = {
        lane: [event["name"] for event in events if event["ph"] == "X"] for lane, events in lanes.items()
    }
    assert names["rank 1"] == ["starting", "failed"] * 2
    assert names["rank 0"] == ["starting", "stopped", "stopping"] * 2
    assert [name for name in names["job"] if name.startswith("attempt")] == ["attempt 0", "attempt 1"]
    for events in lanes.values():
        phases = [event for event in events if event["ph"] == "X"]
        for one, following in itertools.pairwise(phases):
            # Rounding to microseconds.
            assert one["ts"] + one["dur"] <= following["ts"] + 1, (one, following)
    (pid,) = {event["args"]["pid"] for event in lanes["rank 1"][-1:]}
    assert pid == jobs.result()["ranks"][1]["pid"]


def test_a_job_that_runs_and_one_whose_launcher_was_killed(jobs: Jobs) -> None:
    script = "print('I am here', flush=True)\ntell('ready', os.getpid())\nsleep()\n"
    with jobs.job("--job_id=night", script=script, ranks=2) as launcher:
        page = report(jobs, "log")
        assert "The job runs; its last event is " in page.text
        assert "\nnight\n" in page.text
        assert page.text.count("I am here") == 2
        supervisor = supervisor_of(launcher)
        os.kill(launcher.pid, signal.SIGSTOP)
        supervisor.kill()
        launcher.kill()
        launcher.wait()
        with (jobs.folder / "log/rlaunch/events.jsonl").open("a") as events:
            events.write('{"version":1,"sequence":3,"ti')
        # The socket that it left behind does not answer.
        page = report(jobs, "log")
    assert "The end of the job is not recorded" in page.text
    assert "1 line of events.jsonl is not an event and was skipped." in page.text
    assert page.text.count("running") >= 2, "the last that is known of each rank"
    assert page.text.count("I am here") == 2
    assert [event["name"] for event in trace(jobs, "log")["rank 1"]] == ["starting", "running"]


def test_no_text_of_a_rank_or_a_user_is_markup(jobs: Jobs) -> None:
    records = Records(jobs.folder / "log")
    records.event(0, "job_started", job_id=EVIL, host=EVIL, ranks=1, supervisor=1, argv=[EVIL, EVIL])
    label = {"role": "rank", "rank": 0, "local_rank": 0, "attempt": 0, "pid": 7}
    records.event(1, "rank_started", **label)
    records.event(2, "rank_not_started", **label, why=EVIL)
    records.event(3, "rank_ended", **label, exit={"code": 1}, swept=0, peak_memory_bytes=1, **{EVIL: 4})
    restart = {"attempt": 1, "of": 1, "exit": {"code": 1}, "delay_seconds": 0}
    records.event(4, "restarting", culprit=0, culprit_role="rank", message=EVIL, **restart)
    records.event(5, "not_restarting", why=EVIL)
    records.event(6, "round_ended", round=1, outcome=EVIL, why=EVIL)
    records.event(7, "hang", silent_seconds=1, odd=[0], odd_roles=["rank"], report=f"{EVIL}\n{EVIL}")
    records.event(8, EVIL)
    records.event(9, "job_ended", outcome=EVIL, exit_status=1)
    records.rank(0, f"{EVIL}\n" * 3, status=EVIL, why=EVIL, **{EVIL: 3.5})
    texts = ("job_id", "host", "outcome", "verdict", "reason", "last_lines", "job_end", "log_dir")
    odd = {"environment": {EVIL: EVIL}, "left_running": [{"pid": 1, "name": EVIL}], "culprit": 0}
    for result in (True, False):
        records.write(result, **odd, **dict.fromkeys(texts, EVIL))
        # What the reader of the page allows is checked for each element.
        page = report(jobs, "log")
        raw = jobs.text("page.html")
        assert page.count["script"] == 1
        assert "<x-evil" in page.text
        for character in ("\x1b", "\u202e", "\x00"):
            assert character not in raw
        assert "\\u{1b}[2J" in raw
        (jobs.folder / "log/rlaunch/result.json").unlink(missing_ok=True)
    assert trace(jobs, "log")["rank 0"]


def test_512_ranks(jobs: Jobs) -> None:
    failed_run(jobs.folder / "log", 512)
    page = report(jobs, "log")
    assert page.count["tr"] == 513
    assert {f"rank-{rank}" for rank in range(512)} <= page.ids
    assert {f"log-rank-{rank}" for rank in range(512)} <= page.ids
    assert (jobs.folder / "page.html").stat().st_size < 2 << 20
    assert len(trace(jobs, "log")) == 513


def test_numbers_that_are_new_missing_or_odd(jobs: Jobs) -> None:
    records = Records(jobs.folder / "log")
    records.rank(0, cpu_seconds=61.0, gpu_idle_seconds=3.25, peak_memory_bytes=None, seconds=None)
    records.rank(1, status="failed", peak_memory_bytes="many", seconds=-1, swept=1.5e300, log=None, pid=[])
    records.write()
    page = report(jobs, "log")
    for text in ("CPU time", "1 min 1 s", "GPU idle", "3.2 s", "Swept"):
        assert f"\n{text}\n" in page.text, text
    assert "Peak memory" not in page.text, "no rank has a number"
    assert "events.jsonl is missing" not in page.text
    (jobs.folder / "log/rlaunch/events.jsonl").unlink()
    assert "events.jsonl is missing, so there is no timeline." in report(jobs, "log").text


def test_damaged_and_huge_records(jobs: Jobs) -> None:
    folder = failed_run(jobs.folder / "log", 2)
    events = folder / "rlaunch/events.jsonl"
    whole = events.read_bytes()
    (folder / "rlaunch/result.json").write_text('{"version": 1, "outcome"')
    events.write_bytes(b"\xff\n[]\n{}\n\n" + whole[:-20])
    page = report(jobs, "log")
    assert "result.json is damaged and was skipped: " in page.text
    assert "4 lines of events.jsonl are not events and were skipped." in page.text
    assert "rank 1 failed in attempt 0: exit code 3" in page.text
    (folder / "rlaunch/result.json").unlink()
    first, *rest = whole.splitlines(keepends=True)
    filler = (b'{"monotonic": 5001, "event": "other", "text": "' + b"x" * 100_000 + b'"}\n') * 700
    events.write_bytes(first + filler + b"".join(rest))
    page = report(jobs, "log")
    assert "events.jsonl has 66 MB: only its first event and its last 64 MB were read." in page.text
    assert "Rank 1 failed" not in page.text
    assert "The job failed" in page.text, "as the last event says"
    assert "node-3" in page.text


def test_a_log_that_is_not_in_the_folder_is_not_shown(jobs: Jobs) -> None:
    (jobs.folder / "secret").write_text("my secret\n")
    records = Records(jobs.folder / "log")
    records.rank(0, log=str(jobs.folder / "secret"))
    records.rank(1, log="../secret")
    records.rank(2, log=str(jobs.folder / "log/fifo"))
    records.rank(3)
    os.mkfifo(jobs.folder / "log/fifo")
    (jobs.folder / "log/workerlog.3").unlink()
    (jobs.folder / "log/workerlog.3").symlink_to(jobs.folder / "secret")
    records.write()
    page = report(jobs, "log")
    assert "my secret" not in page.text
    assert page.text.count("This file is not in the log folder, so its lines are not shown.") == 3
    assert "This is not a regular file." in page.text


def test_errors_name_the_path_and_the_way_out(jobs: Jobs) -> None:
    failed_run(jobs.folder / "log", 2)
    (jobs.folder / "empty").mkdir()
    os.mkfifo(jobs.folder / "fifo")
    for args, text in {
        ("nowhere",): "there is no folder nowhere; give the log folder of a job (its --log_dir",
        ("log/workerlog.0",): "there is no folder log/workerlog.0; give",
        ("empty",): "empty has no records of a job, neither result.json nor events.jsonl; give",
        (
            "log",
            "--output=fifo",
        ): "cannot write fifo: it is not a regular file; name another file with --output",
        (
            "log",
            "--trace=empty",
        ): "cannot write empty: it is not a regular file; name another file with --trace",
        (
            "log",
            "--output=no/page",
        ): "cannot write no/page: No such file or directory; name another file with",
        ("log", "--output=-", "--trace=-"): "--output and --trace cannot both be -",
    }.items():
        ended = jobs.ask("report", *args)
        assert ended.status == 1, args
        (line,) = ended.error_lines()
        assert text in line, (text, line)
    (jobs.folder / "log/rlaunch/events.jsonl").unlink()
    os.mkfifo(jobs.folder / "log/rlaunch/events.jsonl")
    assert "events.jsonl: it is not a regular file; remove it" in jobs.ask("report", "log").stderr


def test_the_report_of_a_job_that_completed(jobs: Jobs) -> None:
    jobs.script("print('done')\n")
    assert jobs.run("--nproc_per_node=3", "train.py", env=jobs.env).status == 0
    page = report(jobs, "log")
    assert "All 3 ranks exited successfully after " in page.text
    assert "Failed first" not in page.text
