"""Which signals stop a job, which are only passed on, and how long a stop may take."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from launching import Place, await_gone, await_line, environment, insist, signals_in, until

WRITES_DOWN = """
    def note(number, frame):
        with open(f"got.{rank}", "a") as file:
            file.write(f"{signal.Signals(number).name}\\n")
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGURG", "SIGUSR1"):
        signal.signal(signal.Signals[name], note)
    tell("ready", os.getpid())
    await_file("end")
"""
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntell('ready', os.getpid())\nsleep()"


@pytest.mark.parametrize("how", ["option", "variable"])
def test_the_signals_that_are_named_are_passed_on_and_never_stop(place: Place, how: str) -> None:
    place.script(WRITES_DOWN)
    args = ["--forward_signals=TERM,SIGURG"] if how == "option" else []
    env = environment(RLAUNCH_FORWARD_SIGNALS="term, urg" if how == "variable" else None)
    with place.start("--nproc_per_node=2", "--grace_period=0.2", *args, "train.py", env=env) as launcher:
        ranks = place.ready(2)
        expected = ""
        for name in ("SIGTERM", "SIGURG", "SIGTERM", "SIGUSR1", "SIGTERM"):
            launcher.send_signal(signal.Signals[name])
            expected += f"{name}\n"
            for rank in range(2):
                path = place.folder / f"got.{rank}"
                until(lambda p=path, t=expected: p.exists() and p.read_text() == t, f"{name} in {path}")
        # Ctrl-C still stops it; ranks are asked by SIGTERM, which these take no notice of.
        launcher.send_signal(signal.SIGINT)
        ended = Place.wait(launcher)
    assert ended.status == 130
    assert "SIGINT: waiting up to 0.2 s for rank(s) 0, 1" in ended.stderr
    assert "sending SIGKILL to rank(s) 0, 1" in ended.stderr
    assert [place.text(f"got.{rank}") for rank in range(2)] == [expected + "SIGTERM\n"] * 2
    await_gone(*ranks)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_program_passes_a_notice_on(place: Place, number: signal.Signals) -> None:
    place.script(WRITES_DOWN.replace("SIGUSR1", number.name))
    (place.folder / "launch.py").write_text("import rlaunch\nrlaunch.launch('train.py')\nprint('goes on')\n")
    command = [sys.executable, "launch.py"]
    with subprocess.Popen(command, cwd=place.folder, env=environment(), stdout=subprocess.PIPE) as program:
        until((place.folder / "ready.0").exists, "the rank")
        program.send_signal(number)
        until((place.folder / "got.0").exists, "the signal")
        (place.folder / "end").touch()
        output, _ = program.communicate()
    assert (program.returncode, output.splitlines()[-1]) == (0, b"goes on")
    assert place.text("got.0") == f"{number.name}\n"


def test_a_job_that_was_only_notified_exits_successfully(place: Place) -> None:
    place.script(WRITES_DOWN)
    with place.start("--forward_signals=TERM", "train.py") as launcher:
        place.ready(1)
        launcher.terminate()
        until((place.folder / "got.0").exists, "the signal")
        (place.folder / "end").touch()
        ended = Place.wait(launcher)
    assert ended.status == 0
    assert place.result()["outcome"] == "completed"
    assert not place.result()["ranks"][0]["told"]


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("NOPE", "is not a signal"),
        ("TERM,,NOPE", "is not a signal"),
        ("0", "is not a signal"),
        ("65", "is not a signal"),
        ("KILL", "cannot be caught"),
        ("STOP", "cannot be caught"),
        ("SEGV", "reports a fault of the program that receives it"),
        ("USR1,ABRT", "reports a fault of the program that receives it"),
        ("CHLD", "reports the exit of ranks to the launcher"),
        ("TSTP", "suspends and resumes jobs"),
        ("SIGTTOU", "suspends and resumes jobs"),
        ("CONT", "suspends and resumes jobs"),
        ("PIPE", "is ignored by Python"),
        ("32", "belongs to the C library"),
    ],
)
def test_names_that_cannot_be_passed_on_are_refused(place: Place, names: str, why: str) -> None:
    place.script("tell('ready')")
    ended = place.run(f"--forward_signals={names}", "train.py")
    assert ended.status == 2, ended.stderr
    (line,) = ended.error_lines()
    assert f"--forward_signals {names}: '{names.split(',')[-1]}' cannot be forwarded: it {why}; " in line
    assert "give names of TERM, INT, HUP, QUIT, " in line
    assert place.names() == {"train.py"}


def test_each_name_that_an_error_lists_is_passed_on(place: Place) -> None:
    """Even those that stop a job otherwise, and one of the numbers."""
    place.script("tell('ready')")
    error = place.run("--forward_signals=KILL", "train.py").stderr
    names = error.partition("give names of ")[2].partition(", separated by commas")[0].split(", ")
    # Python knows SIGSTKFLT since 3.11.
    numbers = [int(getattr(signal, f"SIG{name}", 16)) for name in names] + [34, 64]
    place.script(f"""
        got = set()
        def receive(number, frame):
            tell(f"got-{{number}}")
            got.add(number)
        for number in {numbers}:
            signal.signal(number, receive)
        tell("ready", os.getpid())
        until(lambda: len(got) == {len(numbers)}, "all signals")
    """)
    with place.start(f"--forward_signals={','.join(names)},34,64", "train.py") as launcher:
        place.ready(1)
        # One after the other: their handlers, nested, would need more than faulthandler's stack for signals,
        # on which Python's handlers run too.
        for number in numbers:
            launcher.send_signal(number)
            until(lambda number=number: (place.folder / f"got-{number}.0").exists(), f"signal {number}")
        ended = Place.wait(launcher)
    assert (ended.status, len(names)) == (0, 15), ended.stderr


def test_ten_signals_at_once_end_the_job_once(place: Place) -> None:
    place.script(STUBBORN)
    with place.start("--nproc_per_node=2", "--grace_period=600", "train.py") as launcher:
        ranks = place.ready(2)
        for _ in range(10):
            launcher.terminate()
        await_line(launcher.stderr, b"SIGTERM: waiting up to 600 s for rank(s) 0, 1")
        insist(launcher)
        ended = Place.wait(launcher)
    assert ended.status == 143
    assert ended.stderr.count("second signal: killing rank(s) 0, 1") == 1
    assert ended.stderr.count("sending SIGKILL") == 1
    await_gone(*ranks)


def test_ten_signals_at_once_let_obedient_ranks_end(place: Place) -> None:
    place.script("tell('ready', os.getpid())\nsleep()")
    with place.start("--nproc_per_node=2", "--grace_period=600", "train.py") as launcher:
        ranks = place.ready(2)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT) * 3:
            launcher.send_signal(number)
        ended = Place.wait(launcher)
    assert ended.status in {128 + n for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)}
    assert ended.stderr.count("waiting up to 600 s") == 1
    await_gone(*ranks)


def test_nohup_keeps_a_job_from_hanging_up(place: Place) -> None:
    place.script(WRITES_DOWN.replace('"SIGHUP", ', ""))
    command = ["nohup", sys.executable, "-m", "rlaunch", "--grace_period=0.2", "train.py"]
    place.launcher = launcher = subprocess.Popen(
        command, cwd=place.folder, env=environment(),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with Place.cleaned(launcher):
        (rank,) = place.ready(1)
        for pid in (launcher.pid, rank.pid):
            assert signal.SIGHUP in signals_in(pid, "SigIgn")
        launcher.send_signal(signal.SIGHUP)
        launcher.send_signal(signal.SIGUSR1)
        until((place.folder / "got.0").exists, "the signal after it")
        (place.folder / "end").touch()
        ended = Place.wait(launcher)
    assert ended.status == 0
    assert place.text("got.0") == "SIGUSR1\n"


# --- The scheduler's deadline. ---------------------------------------------------------------------------


def test_the_end_of_the_slurm_job_shortens_the_grace(place: Place) -> None:
    """Slurm kills 30 s after the end time, so ten seconds are left, less the time of the launcher's start."""
    place.script(STUBBORN)
    end = str(int(time.time()) - 20)
    with place.start("--grace_period=600", "train.py", env=environment(SLURM_JOB_END_TIME=end)) as launcher:
        (rank,) = place.ready(1)
        launcher.terminate()
        ended = Place.wait(launcher)
    assert ended.status == 143
    assert "sending SIGKILL to rank(s) 0" in ended.stderr
    # The notice of the wait says how long it is.
    seconds = ended.stderr.partition("waiting up to ")[2].partition(" s ")[0]
    assert float(seconds) < 9
    await_gone(rank)


def test_a_failure_near_the_end_of_the_slurm_job_is_cleaned_up_in_time(place: Place) -> None:
    place.script(f"if rank == 0:\n    await_file('ready.1')\n    sys.exit(3)\n{STUBBORN}")
    end = str(int(time.time()) - 20)
    ended = place.run(
        "--nproc_per_node=2", "--grace_period=600", "train.py", env=environment(SLURM_JOB_END_TIME=end)
    )
    assert ended.status == 3
    assert "sending SIGKILL to rank(s) 1" in ended.stderr


def test_the_two_sigterms_of_slurm_are_one_request(place: Place) -> None:
    """It sends SIGTERM, SIGCONT, SIGTERM, and SIGKILL 30 s later."""
    place.script(
        """
        def on(number, frame):
            tell(f"got-{signal.Signals(number).name}")
        signal.signal(signal.SIGTERM, on)
        signal.signal(signal.SIGUSR1, on)
        tell("ready", os.getpid())
        await_file("save")
        tell("saved")
        """
    )
    with place.start("train.py", env=environment(SLURM_JOB_ID="7")) as launcher:
        place.ready(1)
        launcher.terminate()
        until((place.folder / "got-SIGTERM.0").exists, "the first SIGTERM")
        launcher.send_signal(signal.SIGCONT)
        launcher.terminate()
        # The launcher hears its signals one after the other.
        launcher.send_signal(signal.SIGUSR1)
        until((place.folder / "got-SIGUSR1.0").exists, "SIGUSR1, after the second SIGTERM")
        (place.folder / "save").touch()
        ended = Place.wait(launcher)
    assert ended.status == 143
    assert (place.folder / "saved.0").exists(), ended.stderr
    assert "waiting up to 28 s" in ended.stderr, "less than the 30 s that Slurm leaves"


@pytest.mark.parametrize("end", ["in a day", "a day ago", "soon", ""])
def test_an_end_that_is_far_or_over_or_no_time_changes_nothing(place: Place, end: str) -> None:
    """One that is over is of a job that was prolonged since, for it still runs; that is said once."""
    place.script("tell('ready', os.getpid())\nsleep()")
    seconds = {"in a day": time.time() + 86_400, "a day ago": time.time() - 86_400}.get(end)
    env = environment(SLURM_JOB_END_TIME=str(int(seconds)) if seconds else end)
    with place.start("--grace_period=77", "train.py", env=env) as launcher:
        place.ready(1)
        launcher.terminate()
        ended = Place.wait(launcher)
    assert ended.status == 143
    assert "waiting up to 77 s for rank(s) 0" in ended.stderr
    passed = f"SLURM_JOB_END_TIME {env['SLURM_JOB_END_TIME']} has passed"
    assert ended.stderr.count(passed) == ended.stderr.count("SLURM") == (end == "a day ago")
