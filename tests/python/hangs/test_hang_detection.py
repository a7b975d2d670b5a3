"""``--hang_timeout`` and ``--on_hang``: when a job is looked at, and what follows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import rlaunch
from launching import Place, environment, free_ports, until, validate

HANGS = """
def wait_for_ever():
    await_file("never")
print("here", flush=True)
tell("ready", os.getpid())
if rank == 0:
    wait_for_ever()
sleep()
"""
REPORT = "the job seems to hang: no rank has written anything for"


def hangs(place: Place) -> list[dict[str, object]]:
    path = place.folder / "log/rlaunch/events.jsonl"
    return [one for one in place.events() if one["event"] == "hang"] if path.exists() else []


def await_hang(place: Place) -> None:
    until(lambda: hangs(place), "a hang")


def test_a_hang_is_reported_once(place: Place) -> None:
    # It polls: its stack is always the same, though it does not sleep.
    place.script("print('here', flush=True)\ntell('ready', os.getpid())\nsleep()\n")
    arguments = ("--hang_timeout=0.2", "--log_level=DEBUG", "train.py")
    with place.start("--nproc_per_node=2", *arguments) as launcher:
        place.ready(2)
        assert launcher.stderr is not None
        before = []
        # Looked at again, and not reported again.
        while sum(b"Still" in line for line in before) < 3:
            before.append(launcher.stderr.readline())
        launcher.send_signal(signal.SIGTERM)
        text = b"".join(before).decode() + place.wait(launcher).stderr
    assert text.count(REPORT) == 1, text
    assert len(hangs(place)) == 1, text
    assert re.search(r"^ranks 0, 1 \(2 of 2\): in sleep \(.*train\.py:\d+\)$", text, re.MULTILINE), text
    assert "is the odd one" not in text


def test_the_output_of_an_earlier_job_is_not_shown(place: Place) -> None:
    """Logs are appended to."""
    log = place.folder / "log/workerlog.0"
    log.parent.mkdir()
    log.write_text("of an earlier job\n")
    os.utime(log, (1e9, 1e9))
    place.script(HANGS.replace("print(", "rank == 1 and print("))
    with place.start("--nproc_per_node=2", "--hang_timeout=0.5", "train.py") as launcher:
        await_hang(place)
        launcher.send_signal(signal.SIGTERM)
        text = place.wait(launcher).stderr
    assert re.findall("last output, .* ago: (.*)", text) == ["here"], text


def test_output_and_moving_stacks_are_no_hang(place: Place) -> None:
    place.script("""
        tell("ready", os.getpid())
        if rank == 0:
            while True:
                print("step", flush=True)
                time.sleep(0.05)
        sleep()
    """)
    arguments = ("--hang_timeout=0.5", "--log_level=DEBUG", "train.py")
    with place.start("--nproc_per_node=2", *arguments) as launcher:
        place.ready(2)
        assert launcher.stderr is not None
        until(lambda: b"NotSilent" in launcher.stderr.readline(), "a look")
        until(lambda: b"NotSilent" in launcher.stderr.readline(), "another look")
        launcher.send_signal(signal.SIGTERM)
        assert REPORT not in place.wait(launcher).stderr
    assert hangs(place) == []


def test_a_heartbeat_counts_as_output(place: Place) -> None:
    """A rank that writes nothing, and is at the same place every time its stack is read."""
    place.script("""
        import rlaunch
        tell("ready", os.getpid())
        while True:
            rlaunch.heartbeat()
            time.sleep(0.05)
    """)
    arguments = ("--hang_timeout=1", "--log_level=DEBUG", "train.py")
    with place.start("--nproc_per_node=1", *arguments) as launcher:
        place.ready(1)
        assert launcher.stderr is not None
        for _ in range(3):
            until(lambda: b"NotSilent" in launcher.stderr.readline(), "a look")
        launcher.send_signal(signal.SIGTERM)
        assert REPORT not in place.wait(launcher).stderr
    assert hangs(place) == []


def test_a_heartbeat_without_a_launcher_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (None, "", "/proc/1/fd/no number"):
        monkeypatch.delenv("RLAUNCH_EXCEPTION_FILE", raising=False)
        if path is not None:
            monkeypatch.setenv("RLAUNCH_EXCEPTION_FILE", path)
        rlaunch.heartbeat()


def test_abort_fails_the_job_and_a_restart_may_follow(place: Place) -> None:
    place.script("""
        attempt = int(os.environ["RLAUNCH_RANK_KEY"].split("/")[1])
        def wait_for_ever():
            sleep()
        def compute():
            sleep()
        if attempt == 0:
            wait_for_ever() if rank == 1 else compute()
    """)
    arguments = ("--hang_timeout=1", "--on_hang=abort", "--max_restart=1", "--restart_delay=0", "train.py")
    ended = place.run("--nproc_per_node=3", *arguments)
    assert ended.status == 0, ended.stderr
    assert "rank 1 is the odd one: 2 others are in sleep" in ended.stderr, ended.stderr
    assert "rank 1 gets SIGABRT (--on_hang abort)" in ended.stderr, ended.stderr
    (failed,) = [one for one in place.events() if one["event"] == "restarting"]
    assert (failed["culprit"], failed["exit"]["signal"]["name"]) == (1, "SIGABRT")


def test_abort_without_an_odd_rank_ends_all(place: Place) -> None:
    place.script("sleep()\n")
    ended = place.run("--nproc_per_node=2", "--hang_timeout=0.5", "--on_hang=abort", "train.py")
    assert ended.status == 128 + signal.SIGABRT, ended.stderr
    assert "ranks 0, 1 get SIGABRT (--on_hang abort)" in ended.stderr, ended.stderr


def test_a_thread_that_ended_by_an_exception_is_why_all_hang(place: Place) -> None:
    place.script("""
        import queue, threading
        batches = queue.Queue()
        def load():
            await_file("ready.0")
            if rank == 1:
                raise RuntimeError("cannot read shard 3")
            sleep()
        threading.Thread(target=load, name="loader", daemon=True).start()
        tell("ready", os.getpid())
        batches.get()
    """)
    ended = place.run("--nproc_per_node=2", "--hang_timeout=1", "--on_hang=abort", "train.py")
    result = place.result()
    validate(result, "result")
    assert result["culprit"] == 1, ended.stderr
    error = result["ranks"][1]["thread_error"]
    assert (error["thread"], error["exception"]) == ("loader", "RuntimeError")
    assert error["text"] == "cannot read shard 3"
    assert error["ended"] < result["ranks"][1]["ended"]
    assert result["ranks"][0]["thread_error"] is None
    (event,) = hangs(place)
    thread = r"rank 1's thread loader ended \S+ s before by RuntimeError: cannot read shard 3$"
    assert re.search(thread, str(event["report"]), re.MULTILINE), event


def test_a_thread_of_another_rank_does_not_hide_the_odd_one(place: Place) -> None:
    place.script("""
        import threading
        def load():
            raise RuntimeError("cannot read shard 3")
        def wait_for_ever():
            sleep()
        if rank == 0:
            loader = threading.Thread(target=load, name="loader")
            loader.start()
            loader.join()
        wait_for_ever() if rank == 1 else sleep()
    """)
    place.run("--nproc_per_node=3", "--hang_timeout=1", "--on_hang=abort", "train.py")
    assert place.result()["culprit"] == 1
    (event,) = hangs(place)
    assert (event["odd"], "rank 0's thread loader ended" in str(event["report"])) == ([1], True), event


def test_a_stopped_rank_is_aborted(place: Place) -> None:
    place.script("os.kill(os.getpid(), signal.SIGSTOP) if rank == 1 else sleep()\n")
    ended = place.run("--nproc_per_node=2", "--hang_timeout=0.5", "--on_hang=abort", "train.py")
    assert ended.status == 128 + signal.SIGABRT, ended.stderr
    assert "rank 1 is the odd one: stopped by a signal" in ended.stderr, ended.stderr


def test_the_failure_report_says_why_a_rank_was_aborted(place: Place) -> None:
    """Also if it ignores SIGABRT, and is killed after the grace period."""
    place.script("""
        def wait_for_ever():
            signal.signal(signal.SIGABRT, signal.SIG_IGN)
            sleep()
        wait_for_ever() if rank == 1 else sleep()
    """)
    options = ("--hang_timeout=0.5", "--on_hang=abort", "--grace_period=1", "train.py")
    ended = place.run("--nproc_per_node=3", *options)
    assert ended.status == 128 + signal.SIGKILL, ended.stderr
    assert "rank 1 failed: signal SIGKILL (sent by rlaunch)" in ended.stderr, ended.stderr
    report = " ".join(ended.stderr.split())
    assert "rlaunch sent it SIGABRT (--on_hang abort): rank 1 is the odd one: 2 others are in sleep" in report


def test_torchruns_command_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import time\ndef wait_for_ever():\n    time.sleep(1000)\nwait_for_ever()\n"
    )
    command = [sys.executable, "-m", "rlaunch.run", "--nproc-per-node=2", "--on-hang=abort", "train.py"]
    env = environment(RLAUNCH_HANG_TIMEOUT="0.5")
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=env)
    assert done.returncode != 0
    # Its stdout goes to the file, past the launcher.
    assert "the job seems to hang: no rank has written anything to stderr for" in done.stderr, done.stderr
    assert re.search(r"^ranks 0, 1 \(2 of 2\): in wait_for_ever \(", done.stderr, re.MULTILINE), done.stderr
    root = done.stderr.partition("\nRoot Cause (first observed failure):\n")[2]
    why = r"no rank had written anything for \S+ s, and none stands out"
    assert re.search(
        rf"^  aborted   : rlaunch sent it SIGABRT \(--on_hang abort\): {why}$", root, re.MULTILINE
    ), done.stderr


def test_a_job_that_prints_past_the_launcher_is_no_hang(tmp_path: Path) -> None:
    """Its stdout is a file, and it is at the same place every time its stack is read."""
    (tmp_path / "train.py").write_text(
        "import time\nfor step in range(8):\n    print('step', step, flush=True)\n    time.sleep(0.5)\n"
    )
    arguments = ["--nproc-per-node=2", "--hang-timeout=0.5", "--on-hang=abort", "train.py"]
    command = [sys.executable, "-m", "rlaunch.run", *arguments]
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment()
        )
    assert done.returncode == 0, done.stderr
    assert REPORT not in done.stderr


def test_a_node_that_waits_for_another_is_not_aborted(tmp_path: Path) -> None:
    """Its ranks are silent, while a rank of the other node prints."""
    prints, waits = Place(tmp_path / "prints"), Place(tmp_path / "waits")
    go = tmp_path / "go"
    nodes = (f"--master=127.0.0.1:{free_ports(1)}", "--nnodes=2", "--nproc_per_node=1")
    options = ("--hang_timeout=0.5", "--on_hang=abort", "train.py")
    for place, line in ((prints, "print('step', flush=True)"), (waits, "pass")):
        place.folder.mkdir()
        place.script(f"while not os.path.exists({str(go)!r}):\n    {line}\n    time.sleep(0.05)\n")
    with prints.start(*nodes, *options) as one, waits.start(*nodes, *options) as two:
        await_hang(waits)
        go.touch()
        ended = [prints.wait(one), waits.wait(two)]
    assert [end.status for end in ended] == [0, 0], ended
    assert hangs(prints) == []
    assert "the ranks of this node wait, perhaps for those of other nodes: no rank has" in ended[1].stderr
    assert "no rank is aborted: " in ended[1].stderr


def test_a_suspended_job_is_not_looked_at(place: Place) -> None:
    # The output is new when the job is suspended, also where the start of Python takes seconds.
    place.script("print('begins', flush=True)\ntell('ready', os.getpid())\nsleep()\n")
    # SIGTSTP stops nothing in an orphaned process group, which this test's own may be (setpgid(2)).
    group: dict[str, Any] = {"preexec_fn": os.setpgrp}
    with place.start("--nproc_per_node=1", "--hang_timeout=3", "train.py", **group) as launcher:
        place.ready(1)
        launcher.send_signal(signal.SIGTSTP)
        until(lambda: Path(f"/proc/{launcher.pid}/stat").read_text().split()[2] == "T", "the suspension")
        # As long as it would take for two looks.
        with pytest.raises(subprocess.TimeoutExpired):
            launcher.wait(timeout=7)
        assert hangs(place) == []
        launcher.send_signal(signal.SIGCONT)
        await_hang(place)


def test_never(place: Place) -> None:
    place.script("tell('ready', os.getpid())\nawait_file('go')\n")
    with place.start("--nproc_per_node=1", "--hang_timeout=0", "train.py") as launcher:
        place.ready(1)
        (supervisor,) = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()

        def sleeps() -> int:
            status = Path(f"/proc/{supervisor}/status").read_text()
            return int(re.search(r"^voluntary_ctxt_switches:\t(\d+)", status, re.MULTILINE)[1])  # type: ignore[index]

        until(lambda: Path(f"/proc/{supervisor}/stat").read_text().split()[2] != "R", "an idle launcher")
        before = sleeps()
        with pytest.raises(subprocess.TimeoutExpired):
            launcher.wait(timeout=1)
        assert sleeps() == before, "nothing wakes it up"


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--hang_timeout=-1", "--hang_timeout -1"),
        ("--hang_timeout=x", "--hang_timeout x"),
        ("--on_hang=stop", "give report or abort"),
    ],
)
def test_values_that_mean_nothing(option: str, text: str, place: Place) -> None:
    ended = place.run(option, place.script(""))
    assert ended.status == 2, ended.stderr
    assert text in ended.stderr, ended.stderr


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("sign", ["print('step', flush=True)", "rlaunch.heartbeat()"])
def test_the_times_of_files_are_compared_with_no_clock(sign: str, hours: int, place: Place) -> None:
    """A file server whose clock is an hour behind, or ahead."""
    place.script(f"""
        import rlaunch
        tell("ready", os.getpid())
        files = [os.environ["RLAUNCH_EXCEPTION_FILE"], "log/workerlog.0"]
        while True:
            {sign}
            for file in files:
                os.utime(file, (time.time() + {hours * 3600},) * 2)
            time.sleep(0.05)
    """)
    arguments = ("--hang_timeout=3", "--log_level=DEBUG", "train.py")
    with place.start("--nproc_per_node=1", *arguments) as launcher:
        place.ready(1)
        assert launcher.stderr is not None
        for _ in range(6):
            until(lambda: b"NotSilent" in launcher.stderr.readline(), "a look")
        launcher.send_signal(signal.SIGTERM)
        assert REPORT not in place.wait(launcher).stderr
    assert hangs(place) == []


def test_a_hang_of_a_rank_with_too_many_frames_is_found_and_says_so(place: Place) -> None:
    place.script("""
        sys.setrecursionlimit(10_000)
        def dive(depth):
            dive(depth - 1) if depth else sleep()
        print("here", flush=True)
        dive(5_000)
    """)
    with place.start("--nproc_per_node=1", "--hang_timeout=1", "train.py") as launcher:
        await_hang(place)
        launcher.send_signal(signal.SIGTERM)
        text = place.wait(launcher).stderr
    assert re.search("no Python stack: .* more than 4096 Python frames", text), text


def test_a_hang_is_found_though_the_clock_of_its_files_is_ahead(place: Place) -> None:
    place.script("""
        print("here", flush=True)
        os.utime("log/workerlog.0", (time.time() + 3600,) * 2)
        sleep()
    """)
    with place.start("--nproc_per_node=1", "--hang_timeout=1", "train.py") as launcher:
        await_hang(place)
        launcher.send_signal(signal.SIGTERM)
        place.wait(launcher)
    (hang,) = hangs(place)
    assert 1 <= hang["silent_seconds"] < 3600
