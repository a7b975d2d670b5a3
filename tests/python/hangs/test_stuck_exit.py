"""``--exit_timeout``: a rank that an exception has ended, and that does not exit."""

from __future__ import annotations

import ctypes
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launching import Place, environment, until, validate

# A thread that is no daemon keeps the process alive after its main program has failed.
STUCK = """
import threading
def prefetch():
    await_file("never")
if rank == 1:
    threading.Thread(target=prefetch, name="prefetch").start()
    raise ValueError("bad sample 17")
sleep()
"""


def test_it_is_aborted_and_its_exception_is_the_cause(place: Place) -> None:
    place.script(STUCK)
    ended = place.run("--nproc_per_node=3", "--exit_timeout=1", "train.py")
    assert ended.status == 128 + signal.SIGABRT, ended.stderr
    assert re.search(
        r"^rlaunch: rank 1 failed [1-9]\.\d s ago \(ValueError: bad sample 17\) and does not exit; "
        r"it gets SIGABRT\n"
        r"    \S*_shutdown \(.*threading\.py:\d+\)$",
        ended.stderr,
        re.MULTILINE,
    ), ended.stderr
    assert re.search(r"^  thread prefetch:\n", ended.stderr, re.MULTILINE), ended.stderr
    (event,) = [one for one in place.events() if one["event"] == "stuck_exit"]
    validate(event, "events")
    assert event["rank"] == 1
    assert "\nrank 1 failed: signal SIGABRT (sent by rlaunch)\n" in ended.stderr, ended.stderr
    said = re.sub(r"\s+", " ", ended.stderr)
    assert re.search(
        r"rlaunch sent it SIGABRT \(--exit_timeout\): it had failed \S+ s before and did not exit", said
    ), said
    result = place.result()
    assert (result["culprit"], result["reason"]) == (1, "ValueError: bad sample 17"), ended.stderr


def test_a_restart_follows(place: Place) -> None:
    place.script("""
        import threading
        if rank == 1 and not os.path.exists("again"):
            open("again", "w").close()
            threading.Thread(target=sleep).start()
            raise ValueError("bad sample 17")
        await_file("again")
    """)
    restarts = ("--max_restart=1", "--restart_delay=0")
    ended = place.run("--nproc_per_node=2", "--exit_timeout=0.5", *restarts, "train.py")
    assert ended.status == 0, ended.stderr
    assert "does not exit; it gets SIGABRT" in ended.stderr


def test_a_rank_that_still_works_is_left_alone(place: Place) -> None:
    place.script("""
        import atexit
        def save():
            tell("saving", os.getpid())
            while not os.path.exists("saved"):
                if rank == 1:
                    sum(range(1000))
                else:
                    time.sleep(0.01)
        atexit.register(save)
        raise ValueError("bad sample 17") if rank == 1 else SystemExit
    """)
    with place.start("--nproc_per_node=2", "--exit_timeout=0.5", "train.py") as launcher:
        until(lambda: "saving.1" in place.names(), "rank 1")
        # More than ten times the timeout: a rank whose Python does not move would be ended.
        with pytest.raises(subprocess.TimeoutExpired):
            launcher.wait(timeout=6)
        (place.folder / "saved").touch()
        ended = place.wait(launcher)
    assert ended.status == 1, ended.stderr
    assert place.result()["ranks"][1]["exit"] == {"code": 1}
    # It may have been seen at one place for a moment, too.
    reports = [one["report"] for one in place.events() if one["event"] == "stuck_exit"]
    assert sum("left alone" in one for one in reports) == 1, reports
    assert not any("SIGABRT" in one for one in reports), reports


def test_a_second_attempt_is_watched_too(place: Place) -> None:
    place.script(STUCK.replace("if rank == 1:", "if True:"))
    restarts = ("--max_restart=1", "--restart_delay=0")
    ended = place.run("--nproc_per_node=1", "--exit_timeout=0.5", *restarts, "train.py")
    assert ended.status == 128 + signal.SIGABRT, ended.stderr
    assert ended.stderr.count("and does not exit; it gets SIGABRT") == 2, ended.stderr


def test_one_that_is_aborted_already_is_not_reported(place: Place) -> None:
    """SIGABRT makes it fail, and it does not exit."""
    place.script("""
        import threading
        def fail(*_):
            threading.Thread(target=sleep).start()
            raise ValueError("bad sample 17")
        signal.signal(signal.SIGABRT, fail)
        tell("ready", os.getpid())
        await_file("ready.1")
        sleep() if rank == 1 else sys.exit()
    """)
    options = ("--straggler_timeout=0.5", "--exit_timeout=0.3", "--grace_period=4")
    ended = place.run("--nproc_per_node=2", *options, "train.py")
    assert "rank(s) 1 did not end by SIGABRT within the grace period" in ended.stderr, ended.stderr
    assert "does not exit" not in ended.stderr, ended.stderr
    assert not [one for one in place.events() if one["event"] == "stuck_exit"]


LOCKED = """
import ctypes, mmap
def shared_lock(path):
    with open(path, "r+b") as file:
        return ctypes.byref((ctypes.c_char * 64).from_buffer(mmap.mmap(file.fileno(), 64)))
"""


def test_a_rank_that_works_in_c_is_left_alone(place: Place) -> None:
    (place.folder / "lock").write_bytes(bytes(64))
    made: dict[str, Any] = {}
    exec(LOCKED, made)
    libc, lock = ctypes.CDLL(None), made["shared_lock"](place.folder / "lock")
    assert (libc.pthread_spin_init(lock, 1), libc.pthread_spin_lock(lock)) == (0, 0)
    place.script(f"""
{LOCKED}
import atexit
tell("ready", os.getpid())
atexit.register(ctypes.CDLL(None).pthread_spin_lock, shared_lock("lock"))
raise ValueError("bad sample 17")
""")
    with place.start("--nproc_per_node=1", "--exit_timeout=6", "train.py") as launcher:
        until(lambda: "ready.0" in place.names(), "rank 0")
        until(lambda: any(one["event"] == "stuck_exit" for one in place.events()), "the look at rank 0")
        libc.pthread_spin_unlock(lock)
        ended = place.wait(launcher)
    assert ended.status == 1, ended.stderr
    (report,) = [one["report"] for one in place.events() if one["event"] == "stuck_exit"]
    assert "it uses a CPU" in report, report
    assert place.result()["ranks"][0]["exit"] == {"code": 1}


# Its exit hook waits, or spins, and it never imports threading.
HOOK = """
import atexit, os, sys
if os.environ["PADDLE_TRAINER_ID"] == "1":
    @atexit.register
    def hook():
        if "spin" in sys.argv:
            import ctypes
            lock = ctypes.create_string_buffer(64)
            ctypes.CDLL(None).pthread_spin_init(lock, 0)
            while True:
                ctypes.CDLL(None).pthread_spin_lock(lock)
        os.read(os.pipe()[0], 1)
    raise ValueError("bad sample 17")
os.read(os.pipe()[0], 1)
"""


@pytest.mark.parametrize("more", [[], ["--preload=json"]], ids=["exec", "preload"])
@pytest.mark.parametrize("hook", ["wait", "spin"])
def test_an_exit_hook_that_never_returns(hook: str, more: list[str], place: Place) -> None:
    (place.folder / "train.py").write_text(HOOK)
    ended = place.run("--nproc_per_node=2", "--exit_timeout=0.5", *more, "train.py", hook)
    result = place.result()
    assert (result["culprit"], result["reason"]) == (1, "ValueError: bad sample 17"), ended.stderr
    reports = [one["report"] for one in place.events() if one["event"] == "stuck_exit"]
    assert ["it uses a CPU" in one for one in reports] == ([True, True] if hook == "spin" else [False])
    assert "SIGABRT" in reports[-1], reports


LEAVES = {
    "sys.exit": "sys.exit(3)",
    "exit": "exit(3)",
    "under a block": "with open(__file__):\n        sys.exit(3)",
    "text": "sys.exit('no data')",
}


@pytest.mark.parametrize("more", [[], ["--preload=json"]], ids=["exec", "preload"])
@pytest.mark.parametrize("leaves", LEAVES)
def test_a_rank_that_leaves_and_does_not_exit(leaves: str, more: list[str], place: Place) -> None:
    script = HOOK.replace('raise ValueError("bad sample 17")', LEAVES[leaves])
    (place.folder / "train.py").write_text(script)
    ended = place.run("--nproc_per_node=2", "--exit_timeout=0.5", *more, "train.py")
    result = place.result()
    assert (result["culprit"], result["ranks"][1]["exit"]["signal"]["name"]) == (1, "SIGABRT"), result
    (event,) = [one for one in place.events() if one["event"] == "stuck_exit"]
    assert "Fatal Python error" not in result["reason"], "that was the launcher's doing"
    status = 1 if leaves == "text" else 3
    assert f"(sys.exit({status}) at " in event["report"], event
    line = 1 + next(at for at, line in enumerate(script.splitlines()) if re.search(r"exit\([3']", line))
    said = re.sub(r"\s+", " ", ended.stderr)
    assert re.search(rf"sys.exit\({status}\) at \S*train.py:{line}", said), said


def test_an_exit_that_was_caught_is_no_failure(place: Place) -> None:
    place.script("""
        import atexit
        def leave(status):
            sys.exit(status)
        try:
            leave(2)
        except SystemExit as error:
            kept = error
        atexit.register(await_file, "go")
        atexit.register(tell, "exiting", os.getpid())
    """)
    with place.start("--nproc_per_node=1", "--exit_timeout=0.3", "train.py") as launcher:
        until(lambda: "exiting.0" in place.names(), "rank 0")
        # A look takes at least the timeout.
        with pytest.raises(subprocess.TimeoutExpired):
            launcher.wait(timeout=2)
        (place.folder / "go").touch()
        assert place.wait(launcher).status == 0
    assert not [one for one in place.events() if one["event"] == "stuck_exit"]


def test_an_exit_that_python_ignores_is_no_failure(place: Place) -> None:
    """Of a function of atexit, in a program that has not imported threading."""
    (place.folder / "train.py").write_text("""
import atexit, os, sys, time
@atexit.register
def upload():
    open("exiting", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.01)
@atexit.register
def leave():
    sys.exit(3)
""")
    with place.start("--nproc_per_node=1", "--exit_timeout=0.3", "train.py") as launcher:
        until((place.folder / "exiting").exists, "rank 0")
        # A look takes at least the timeout.
        with pytest.raises(subprocess.TimeoutExpired):
            launcher.wait(timeout=2)
        (place.folder / "go").touch()
        assert place.wait(launcher).status == 0
    assert not [one for one in place.events() if one["event"] == "stuck_exit"]


@pytest.mark.parametrize("more", [[], ["--preload=json"]], ids=["exec", "preload"])
def test_zero_means_any_time(more: list[str], place: Place) -> None:
    place.script(STUCK.replace('await_file("never")', 'await_file("go")').replace("sleep()", ""))
    with place.start("--nproc_per_node=2", "--exit_timeout=0", *more, "train.py") as launcher:
        with pytest.raises(subprocess.TimeoutExpired):
            launcher.wait(timeout=1.5)
        (place.folder / "go").touch()
        assert place.wait(launcher).status == 1


def test_torchruns_command_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"
        "raise ValueError('bad sample 17')\n"
    )
    command = [sys.executable, "-m", "rlaunch.run", "--nproc-per-node=1", "--exit-timeout=0.5", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment())
    assert done.returncode != 0
    assert "and does not exit; it gets SIGABRT" in done.stderr, done.stderr
    root = done.stderr.partition("\nRoot Cause (first observed failure):\n")[2]
    # The fields that scripts read are torchrun's, and come first.
    assert re.search(
        r"^  exitcode  : -6 \(pid: \d+\)  \(SIGABRT\)\n  error_file: .*\n"
        r"  traceback : Signal 6 \(SIGABRT\) received by PID \d+\n"
        r"  aborted   : rlaunch sent it SIGABRT \(--exit_timeout\): it had failed \S+ s before "
        r"and did not exit\n",
        root,
        re.MULTILINE,
    ), done.stderr
    assert re.search(r"^  exception : ValueError: bad sample 17$", root, re.MULTILINE), done.stderr
