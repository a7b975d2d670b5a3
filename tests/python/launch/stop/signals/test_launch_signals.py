"""Exit status and signals of ``python -m rlaunch``, and the end of the process tree."""

from __future__ import annotations

import fcntl
import os
import pty
import random
import resource
import select
import signal
import subprocess
import termios
import time
import uuid
from collections.abc import Callable
from io import FileIO

import psutil
import pytest
from launching import (
    LIMIT,
    Ended,
    Place,
    ask_again,
    await_gone,
    await_none_marked,
    environment,
    few_processes,
    gone,
    insist,
    marked,
    signals_in,
    status_field,
    until,
)

STOP = ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGABRT"]


# --- The exit status is the culprit's. -------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 2, 3, 66, 70, 71, 101, 127, 128, 143, 255])
def test_the_exit_status_is_the_code_of_the_rank(place: Place, code: int) -> None:
    place.script(f"os._exit({code})")
    ended = place.run("train.py")
    assert ended.status == code
    assert f"Exit code {code}\n" in ended.stderr


RTMIN = signal.SIGRTMIN


@pytest.mark.parametrize(
    "number", [*(signal.Signals[name] for name in (*STOP, "SIGKILL", "SIGSEGV", "SIGPIPE")), RTMIN + 3, 64]
)
def test_the_exit_status_is_128_and_the_signal_of_the_rank(place: Place, number: int) -> None:
    place.script(f"""
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal({number}, signal.SIG_DFL) if {number} != signal.SIGKILL else None
        os.kill(os.getpid(), {number})
        sleep()
    """)
    ended = place.run("train.py")
    assert ended.status == 128 + number
    assert f"code {-number} log " in ended.stderr


@pytest.mark.parametrize("victim", ["", "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))"])
def test_the_status_is_never_that_of_a_victim(place: Place, victim: str) -> None:
    place.script(f"""
        if rank == 1:
            await_file("ready.0")
            os._exit(3)
        {victim}
        tell("ready")
        sleep()
    """)
    ended = place.run("--nproc_per_node=3", "train.py")
    assert ended.status == 3
    assert "rank 1 " in ended.stderr
    assert "stopped because of it" in ended.stderr


def test_a_keyboard_interrupt_in_a_rank_is_no_success(place: Place) -> None:
    place.script("raise KeyboardInterrupt")
    assert place.run("train.py").status == 130


def test_the_status_is_right_where_the_end_of_children_is_ignored(place: Place) -> None:
    place.script("os._exit(3)")
    ended = place.run("train.py", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert ended.status == 3, ended.stderr


# --- Stop signals. ---------------------------------------------------------------------------------------

WRITES_DOWN = """
    def note(number, frame):
        with open(f"got.{rank}", "a") as file:
            file.write(f"{signal.Signals(number).name}\\n")
        if number == signal.SIGTERM:
            sys.exit(0)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
        signal.signal(signal.Signals[name], note)
    tell("ready", os.getpid())
    sleep()
"""

STUBBORN = """
    import subprocess
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell("child", subprocess.Popen(["sleep", "600"]).pid)
    tell("ready", os.getpid())
    sleep()
"""


def rlaunch_lines(ended: Ended) -> list[str]:
    """The launcher's lines, but for the one that names the log folder."""
    lines = [line for line in ended.stderr.splitlines() if line.startswith("rlaunch: ")]
    return [line for line in lines if not line.startswith("rlaunch: the logs are in ")]


@pytest.mark.parametrize("name", STOP)
def test_a_stop_signal_becomes_a_sigterm_for_each_rank(place: Place, name: str) -> None:
    place.script(WRITES_DOWN)
    with place.start("--nproc_per_node=2", "train.py") as launcher:
        ranks = place.ready(2)
        launcher.send_signal(signal.Signals[name])
        ended = Place.wait(launcher)
    assert ended.status == 128 + signal.Signals[name]
    assert [place.text(f"got.{rank}") for rank in range(2)] == ["SIGTERM\n"] * 2
    (line,) = rlaunch_lines(ended)
    assert line.startswith(f"rlaunch: {name}: waiting up to 30 s for rank(s) 0, 1 to stop")
    assert "again" in line
    await_gone(*ranks)


@pytest.mark.parametrize("how", ["option", "variable"])
def test_ranks_that_ignore_sigterm_are_killed_after_the_grace(place: Place, how: str) -> None:
    place.script(STUBBORN)
    args = ["--grace_period", "0.4"] if how == "option" else []
    env = environment(RLAUNCH_GRACE_PERIOD="0.4" if how == "variable" else None)
    with place.start("--nproc_per_node=2", *args, "train.py", env=env) as launcher:
        ranks = place.ready(2)
        children = [psutil.Process(int(place.text(f"child.{rank}"))) for rank in range(2)]
        before = time.monotonic()
        launcher.terminate()
        ended = Place.wait(launcher)
        assert time.monotonic() - before >= 0.4
    assert ended.status == 143
    first, second = rlaunch_lines(ended)
    assert "waiting up to 0.4 s for rank(s) 0, 1" in first
    assert "SIGKILL to rank(s) 0, 1" in second
    await_gone(*ranks, *children)


def test_the_grace_counts_after_a_failure_too(place: Place) -> None:
    place.script(f"if rank == 1:\n    await_file('ready.0')\n    os._exit(3)\n{STUBBORN.replace('    ', '')}")
    mark = uuid.uuid4().hex
    ended = place.run("--nproc_per_node=2", "--grace_period=0.2", "train.py", env=environment(MARK=mark))
    assert ended.status == 3
    assert "SIGKILL to rank(s) 0" in ended.stderr
    await_none_marked(mark)


@pytest.mark.parametrize(
    ("first", "second"), [("SIGTERM", "SIGTERM"), ("SIGINT", "SIGINT"), ("SIGINT", "SIGTERM")]
)
def test_a_second_stop_signal_kills_at_once(place: Place, first: str, second: str) -> None:
    """If it is the same, at human speed; one that differs is the first of its own."""
    place.script(STUBBORN)
    with place.start("--grace_period=600", "--nproc_per_node=2", "train.py") as launcher:
        ranks = place.ready(2)
        assert launcher.stderr is not None
        launcher.send_signal(signal.Signals[first])
        while b"waiting up to 600 s" not in (line := launcher.stderr.readline()):
            assert line, "the launcher ended"
        insist(launcher, signal.Signals[second])
        ended = Place.wait(launcher)
    assert ended.status == 128 + signal.Signals[first]
    assert "second signal: killing rank(s) 0, 1" in ended.stderr
    await_gone(*ranks)


def test_a_stop_signal_while_ranks_are_being_started_counts(place: Place) -> None:
    place.script("sleep()")
    mark = uuid.uuid4().hex
    for _ in range(5):
        with place.start("--nproc_per_node=4", "train.py", env=environment(MARK=mark)) as launcher:
            until(lambda pid=launcher.pid: signal.SIGTERM in signals_in(pid, "SigCgt"), "handlers")
            launcher.terminate()
            assert Place.wait(launcher).status == 143
        await_none_marked(mark)


def test_notify_signals_are_passed_on_and_the_job_goes_on(place: Place) -> None:
    place.script(WRITES_DOWN)
    with place.start("--nproc_per_node=2", "train.py") as launcher:
        place.ready(2)
        expected = ""
        for name in ("SIGUSR1", "SIGUSR2", "SIGUSR1"):
            launcher.send_signal(signal.Signals[name])
            expected += f"{name}\n"
            for rank in range(2):
                path = place.folder / f"got.{rank}"
                until(lambda p=path, t=expected: p.exists() and p.read_text() == t, f"{name} in {path}")
        launcher.terminate()
        ended = Place.wait(launcher)
    assert ended.status == 143
    assert [place.text(f"got.{rank}") for rank in range(2)] == [f"{expected}SIGTERM\n"] * 2


@pytest.mark.parametrize("names", [["SIGHUP"], ["SIGHUP", "SIGINT"], ["SIGUSR1"]])
def test_a_signal_that_was_ignored_stays_ignored(place: Place, names: list[str]) -> None:
    numbers = {signal.Signals[name] for name in names}
    place.script("tell('ready', os.getpid()); await_file('end')")

    def ignore() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    with place.start("train.py", preexec_fn=ignore) as launcher:
        (rank,) = place.ready(1)
        for pid in (launcher.pid, rank.pid):
            assert numbers <= signals_in(pid, "SigIgn")
        for number in numbers:
            launcher.send_signal(number)
        (place.folder / "end").touch()
        ended = Place.wait(launcher)
    assert ended.status == 0
    assert rlaunch_lines(ended) == []


def test_nohup_works(place: Place) -> None:
    place.script(WRITES_DOWN)
    with place.start("train.py", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as launcher:
        place.ready(1)
        launcher.send_signal(signal.SIGHUP)
        launcher.terminate()
        assert Place.wait(launcher).status == 143
    assert place.text("got.0") == "SIGTERM\n"


# --- Terminals. ------------------------------------------------------------------------------------------


def in_terminal(
    place: Place, script: str, act: Callable[[FileIO, Callable[[bytes], None]], None]
) -> tuple[int | None, bytes, list[psutil.Process]]:
    """Runs the launcher as the foreground of a terminal of its own; `act` sits at the keyboard."""
    place.script(script)
    ours, theirs = pty.openpty()
    keyboard = FileIO(ours, "r+")
    screen = bytearray()

    def await_text(mark: bytes) -> None:
        deadline = time.monotonic() + LIMIT
        while mark not in screen:
            assert select.select([ours], [], [], deadline - time.monotonic())[0], bytes(screen)
            screen.extend(os.read(ours, 65536))

    with (
        keyboard,
        place.start(
            *("--grace_period=600", "--nproc_per_node=2", "train.py"),
            **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
        ) as launcher,
    ):
        os.close(theirs)
        ranks = place.ready(2)
        act(keyboard, await_text)
        until(lambda: launcher.poll() is not None, "the launcher's end")
    return launcher.returncode, bytes(screen), ranks


def test_ctrl_c_in_a_terminal(place: Place) -> None:
    def press(keyboard: FileIO, await_text: Callable[[bytes], None]) -> None:
        keyboard.write(b"\x03")
        await_text(b"Exit code 130\r\n")

    status, screen, ranks = in_terminal(place, WRITES_DOWN, press)
    assert status == 130
    assert [place.text(f"got.{rank}") for rank in range(2)] == ["SIGTERM\n"] * 2
    assert screen.count(b"rlaunch: SIGINT: waiting up to 600 s") == 1
    assert b"Traceback" not in screen
    await_gone(*ranks)


def test_ctrl_c_twice_kills_at_once(place: Place) -> None:
    def press(keyboard: FileIO, await_text: Callable[[bytes], None]) -> None:
        keyboard.write(b"\x03")
        await_text(b"waiting up to 600 s")
        running = place.ready(2)
        ask_again(lambda: keyboard.write(b"\x03"), lambda: all(map(gone, running)))
        await_text(b"Exit code 130\r\n")

    status, screen, ranks = in_terminal(place, STUBBORN, press)
    assert status == 130
    assert b"second signal: killing rank(s) 0, 1" in screen
    assert b"Traceback" not in screen
    await_gone(*ranks)


def test_a_terminal_that_hangs_up_stops_the_job(place: Place) -> None:
    status, _, ranks = in_terminal(place, WRITES_DOWN, lambda keyboard, _: keyboard.close())
    assert status == 129
    assert [place.text(f"got.{rank}") for rank in range(2)] == ["SIGTERM\n"] * 2
    await_gone(*ranks)


# --- The process tree. -----------------------------------------------------------------------------------


def test_nothing_outlives_a_launcher_that_is_killed(place: Place) -> None:
    place.script("""
        import subprocess
        children = [subprocess.Popen(["sh", "-c", "trap '' TERM HUP; sleep 600 & wait"]) for _ in range(2)]
        tell("ready", os.getpid())
        sleep()
    """)
    mark = uuid.uuid4().hex
    with place.start("--nproc_per_node=2", "train.py", env=environment(MARK=mark)) as launcher:
        place.ready(2)
        until(lambda: len(marked(mark)) == 2 + 2 * (1 + 2 * 2), "all grandchildren")
        launcher.kill()
        await_none_marked(mark)


def test_nothing_outlives_a_launcher_that_is_killed_at_any_instant(place: Place) -> None:
    place.script("sleep()")
    mark = uuid.uuid4().hex
    for _ in range(15):
        with place.start("--nproc_per_node=4", "train.py", env=environment(MARK=mark)) as launcher:
            # The instant is what is being varied here; nothing is waited for.
            time.sleep(random.uniform(0.01, 0.08))
            launcher.kill()
        await_none_marked(mark)


@pytest.mark.parametrize("code", [0, 3])
def test_processes_that_a_rank_leaves_running_end_with_it(place: Place, code: int) -> None:
    place.script(f"""
        import subprocess
        tell("child", subprocess.Popen(["sleep", "600"]).pid)
        await_file("end")
        os._exit({code})
    """)
    with place.start("train.py") as launcher:
        until((place.folder / "child.0").exists, "a child")
        child = psutil.Process(int(place.text("child.0")))
        (place.folder / "end").touch()
        assert Place.wait(launcher).status == code
    await_gone(child)


def signal_masks(status: bytes) -> dict[str, str]:
    fields = dict(line.split(":\t") for line in status.decode().splitlines() if ":\t" in line)
    return {mask: fields[mask] for mask in ("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd")}


def test_ranks_start_with_the_signals_of_a_bare_child(place: Place) -> None:
    ended = place.run("--no_python", "cat", "/proc/self/status")
    # Not all zeroes everywhere: the shell that runs the tests may ignore some, and that is inherited.
    bare = subprocess.run(["cat", "/proc/self/status"], capture_output=True, check=True)
    assert signal_masks(ended.stdout) == signal_masks(bare.stdout)


def test_an_idle_launcher_makes_no_wakeups(place: Place) -> None:
    place.script("""
        tell("ready", os.getpid())
        # The output of other ranks goes to their logs, and no process has to read it.
        while rank == 1:
            print("busy")
            time.sleep(0.02)
        sleep()
    """)
    with place.start("--nproc_per_node=3", "train.py") as launcher:
        place.ready(3)

        def unchanged_for(seconds: float) -> bool:
            before = status_field(launcher.pid, "voluntary_ctxt_switches")
            time.sleep(seconds)
            return status_field(launcher.pid, "voluntary_ctxt_switches") == before

        until(lambda: unchanged_for(0.1), "the end of starting")
        assert unchanged_for(2)
        assert len(os.listdir(f"/proc/{launcher.pid}/task")) == 1


# --- A rank that cannot be started. ----------------------------------------------------------------------


def start_failure(ended: Ended, rank: int, *words: str) -> None:
    assert ended.status == 71, ended.stderr
    (line,) = ended.error_lines()
    assert line.startswith(f"rlaunch: error: cannot start rank {rank} (")
    for word in words:
        assert word in line


def test_a_program_that_cannot_be_executed_is_named(place: Place) -> None:
    for name, text, words in [
        ("noexec", "no program\n", "Exec format error"),
        ("nointerpreter", "#!/nowhere/interpreter\n", "No such file"),
    ]:
        (place.folder / name).write_text(text)
        (place.folder / name).chmod(0o755)
        start_failure(place.run("--nproc_per_node=2", f"./{name}"), 0, f"(./{name})", "execve", words)


def test_running_out_of_processes_ends_the_ranks_that_run_already(place: Place) -> None:
    place.script("sleep()")
    mark = uuid.uuid4().hex
    env = environment(MARK=mark)
    # Two processes of the launcher, of which the first does not count in a user namespace that it has made,
    # and the thread of its control socket.
    room = 5 if os.geteuid() == 0 else 4
    ended = place.run("--nproc_per_node=4", "train.py", env=env, preexec_fn=lambda: few_processes(room))
    start_failure(ended, 2, "clone")
    assert not marked(mark)


def test_an_environment_that_is_too_long_is_named(place: Place) -> None:
    place.script("sleep()")
    limit = 128 * 1024  # The limit of execve in all with a stack of 512 KiB (execve(2)).
    size = limit
    while True:
        size -= 400
        assert size > limit // 2
        env = environment(PAD="x" * (size // 2), MORE="x" * (size // 2))
        try:
            ended = place.run("train.py", env=env, preexec_fn=small_stack)
        except OSError:
            continue  # Too long for the launcher itself; a little less is too long for its ranks only.
        break
    start_failure(ended, 0, "execve", "Argument list too long")


def small_stack() -> None:
    resource.setrlimit(resource.RLIMIT_STACK, (512 * 1024, 512 * 1024))
