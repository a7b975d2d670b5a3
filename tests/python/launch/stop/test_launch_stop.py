"""Stop requests, and how long a stop may take, when not all processes cooperate."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest
from launching import LIMIT, Ended, Place, environment, gone, insist, marked, supervisor_of, until

# Ranks that take a while to save what they have.
SAVE = """
def save(*_):
    time.sleep(0.3)
    tell("saved")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
tell("ready", os.getpid())
sleep()
"""

STOPS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


def saved(place: Place, ranks: int = 2) -> bool:
    return all((place.folder / f"saved.{rank}").exists() for rank in range(ranks))


@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize("order", ["front first", "supervisor first", "ranks too"])
def test_a_stop_signal_to_every_process_counts_once(place: Place, number: signal.Signals, order: str) -> None:
    """As systemd stops a unit, or `pkill` a program."""
    place.script(SAVE)
    with place.start("--nproc_per_node=2", "train.py") as launcher:
        ranks = place.ready(2)
        targets = [psutil.Process(launcher.pid), supervisor_of(launcher)]
        if order == "supervisor first":
            targets.reverse()
        if order == "ranks too" and number == signal.SIGTERM:
            targets = [*ranks, *targets]
        for target in targets:
            target.send_signal(number)
        ended = Place.wait(launcher)
    assert ended.status == 128 + number
    assert saved(place)
    assert "second signal" not in ended.stderr
    assert ended.stderr.count("waiting up to 30 s for rank(s) 0, 1 to stop") == 1


def test_a_second_stop_through_the_front_kills_though_the_first_came_in_both_ways(place: Place) -> None:
    place.script("signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntell('ready', os.getpid())\nsleep()")
    with place.start("train.py") as launcher:
        (rank,) = place.ready(1)
        launcher.send_signal(signal.SIGTERM)
        until(lambda: has_event(place, "stopping"), "the first")
        supervisor_of(launcher).send_signal(signal.SIGTERM)
        insist(launcher)
        ended = Place.wait(launcher)
    assert ended.status == 143
    assert gone(rank)
    assert "second signal: killing rank(s) 0" in ended.stderr


def has_event(place: Place, event: str) -> bool:
    return any(line["event"] == event for line in place.events())


def test_a_stop_of_the_supervisor_alone_stops_the_job(place: Place) -> None:
    place.script(SAVE)
    with place.start("--nproc_per_node=2", "train.py") as launcher:
        place.ready(2)
        supervisor = supervisor_of(launcher)
        for _ in range(3):
            supervisor.send_signal(signal.SIGTERM)
        ended = Place.wait(launcher)
    assert (ended.status, saved(place)) == (143, True), ended.stderr


def test_a_notice_for_every_process_reaches_a_rank_once(place: Place) -> None:
    place.script(
        """
        count = 0
        def hear(*_):
            global count
            count += 1
            tell(f"heard-{count}")
        signal.signal(signal.SIGUSR1, hear)
        tell("ready", os.getpid())
        await_file("end")
        tell("count", count)
        """
    )
    with place.start("train.py") as launcher:
        place.ready(1)
        supervisor_of(launcher).send_signal(signal.SIGUSR1)
        launcher.send_signal(signal.SIGUSR1)
        until((place.folder / "heard-1.0").exists, "the notice")
        launcher.send_signal(signal.SIGUSR1)
        until((place.folder / "heard-2.0").exists, "the next")
        (place.folder / "end").touch()
        assert Place.wait(launcher).status == 0
    assert place.text("count.0") == "2"


def held(place: Place, stop: Callable[[Place], None], mark: str) -> tuple[Ended, float]:
    """A job whose supervisor does nothing any more while it is stopped; and how long that took."""
    place.script("import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\n" + SAVE)
    with place.start(
        "--nproc_per_node=2", "--grace_period=1", "train.py", env=environment(MARK=mark)
    ) as launcher:
        place.ready(2)
        supervisor_of(launcher).suspend()
        began = time.monotonic()
        stop(place)
        ended = Place.wait(launcher)
        return ended, time.monotonic() - began


def once(place: Place) -> None:
    assert place.launcher is not None
    place.launcher.send_signal(signal.SIGTERM)


def twice(place: Place) -> None:
    assert place.launcher is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        place.launcher.send_signal(number)


@pytest.mark.parametrize("stop", [once, twice])
def test_a_supervisor_that_does_not_stop_is_killed(
    place: Place, mark: str, stop: Callable[[Place], None]
) -> None:
    ended, _ = held(place, stop, mark)
    assert ended.status == 72
    assert "supervisor process did not stop in time and was killed" in ended.error_lines()[0]
    assert marked(mark) == []
    assert (place.result()["outcome"], place.result()["exit_status"]) == ("supervisor_lost", 72)


def test_an_unread_console_does_not_hold_up_a_stop(place: Place) -> None:
    place.script(
        """
        print("x" * 300_000, flush=True)
        tell("ready", os.getpid())
        sleep()
        """
    )
    with place.start("--grace_period=1", "train.py") as launcher:
        place.ready(1)
        began = time.monotonic()
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(LIMIT)
        took = time.monotonic() - began
        assert launcher.stderr is not None
        warning = launcher.stderr.read().decode()
    assert launcher.returncode == 143
    assert re.search(r"did not take \d+ bytes of output in time; they are only in \S+workerlog.0", warning), (
        warning
    )
    # Not a matter of speed: it is the console's five seconds that are not waited for.
    assert took < 4.5


def test_a_stray_without_an_environment_holds_up_no_stop(place: Place, mark: str) -> None:
    """It may be in the middle of execve, which is waited for: once, and not for each rank."""
    place.script(
        """
        import subprocess
        if rank == 0:
            subprocess.run(["sh", "-c", "setsid env -i sleep 600 > /dev/null &"])
        tell("ready", os.getpid())
        await_file("end")
        tell("ended", time.monotonic())
        os._exit(0)
        """
    )
    with place.start("--nproc_per_node=24", "train.py", env=environment(MARK=mark)) as launcher:
        place.ready(24)
        (place.folder / "end").touch()
        ended = Place.wait(launcher)
    last = max(float(place.text(f"ended.{rank}")) for rank in range(24))
    assert ended.status == 0, ended.stderr
    assert "swept 1 leftover process" in ended.stderr
    events = place.events()
    # 24 times 100 ms would be 2.4 s.
    assert events[-1]["monotonic"] - last < 1.5, [
        (event["event"], event["monotonic"]) for event in events[-5:]
    ]


def test_the_result_of_an_earlier_job_does_not_outlive_a_refusal(place: Place) -> None:
    place.script("")
    assert place.run("train.py").status == 0
    assert place.result()["outcome"] == "completed"
    assert place.run("--dry_run", "missing.py").status == 66
    assert place.result()["outcome"] == "completed", "nothing was to be started"
    assert place.run("missing.py").status == 66
    assert "result.json" not in place.names("log/rlaunch")


# Where /proc is hidden, the launcher cannot count the descriptors that it has inherited, and refuse the job.
WITHOUT_PROC = 'mount -t tmpfs none /proc && exec "$@"'


# Leaves so many descriptors below 128 to the program.
SPARE = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
for _ in range(128 - 3 - int(sys.argv[1])):
    os.set_inheritable(os.dup(0), True)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def test_a_supervisor_without_descriptors_is_one_error(place: Place) -> None:
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", WITHOUT_PROC, "sh"]
    place.script("")
    seen = 0
    for spare in range(5, 30):
        limited = [*unshare, sys.executable, "-c", SPARE, str(spare)]
        command = [*limited, sys.executable, "-m", "rlaunch", "--cgroup=false", "train.py"]
        ended = subprocess.run(
            command, cwd=place.folder, env=environment(), capture_output=True, text=True, timeout=LIMIT
        )
        if "cannot start the supervisor process: Too many open files" in ended.stderr:
            assert (ended.returncode, ended.stderr.count("rlaunch: error: ")) == (71, 1), ended.stderr
            seen += 1
        elif seen:
            break
    assert seen, ended.stderr


def test_an_invalid_record_descriptor_is_ignored(place: Place) -> None:
    place.script("assert 'RLAUNCH_RECORD_FD' not in os.environ")
    for value in ("x", "-5", ""):
        assert place.run("train.py", env=environment(RLAUNCH_RECORD_FD=value)).status == 0


@pytest.mark.parametrize("delay", range(0, 40, 8))
def test_an_early_ctrl_c_shows_no_traceback_of_rlaunch(place: Place, delay: int) -> None:
    """A traceback of the interpreter's own start is Python's, which may also swallow the interrupt (site).

    The first statement of rlaunch, which sets the signal's default action, can itself be interrupted.
    """
    place.script("")
    with place.start("train.py") as launcher:
        # The instant is what is varied: nothing is waited for.
        time.sleep(delay / 1000)
        os.kill(launcher.pid, signal.SIGINT)
        _, err = launcher.communicate(timeout=LIMIT)
    assert launcher.returncode in (-2, 0, 1, 130)
    assert not re.search(rb'/rlaunch/(?!__init__)\w+\.py"', err), err
