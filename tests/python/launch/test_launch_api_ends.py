"""``rlaunch.launch`` when it is interrupted or killed, and in threads, ranks and odd hosts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import rlaunch
from launching import (
    STEERING,
    Host,
    Place,
    ask_again,
    await_gone,
    await_line,
    await_none_marked,
    environment,
    marked,
    signals_in,
    until,
)

WRITES_DOWN = """
import subprocess

def end(number, frame):
    tell("got", signal.Signals(number).name)
    sys.exit(7)

for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, end)
subprocess.Popen(["sleep", "600"], start_new_session=True)
tell("ready", os.getpid())
sleep()
"""
STUBBORN = """
signal.signal(signal.SIGTERM, lambda *_: tell("got", "SIGTERM"))
tell("ready", os.getpid())
sleep()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if STEERING.match(name)]:
        monkeypatch.delenv(name)
    return Host(tmp_path)


# --- Interruptions. ---------------------------------------------------------------------------------------

INTERRUPTED = """
try:
    rlaunch.launch("train.py", nproc_per_node=2, grace_period=600)
except KeyboardInterrupt:
    print("interrupted")
"""


def interrupt(host: subprocess.Popen[bytes]) -> None:
    """As a terminal does: to the whole foreground group."""
    os.killpg(host.pid, signal.SIGINT)


def test_ctrl_c_asks_the_ranks_to_stop(place: Host, mark: str) -> None:
    place.script(WRITES_DOWN)
    place.host(INTERRUPTED)
    with place.start(env=environment(MARK=mark), start_new_session=True) as host:
        place.ready(2)
        interrupt(host)
        ended = Place.wait(host)
    assert (ended.status, ended.stdout) == (0, b"interrupted\n")
    assert [place.text(f"got.{rank}") for rank in range(2)] == ["SIGTERM"] * 2
    assert "SIGINT: waiting up to 600 s" in ended.stderr
    assert "second signal" not in ended.stderr
    assert (place.result()["exit_status"], marked(mark)) == (130, [])


def interrupt_until_the_job_ends(place: Host, host: subprocess.Popen[bytes]) -> None:
    """One more interrupt than that would end the host."""
    result = place.folder / "log/rlaunch/result.json"
    ask_again(lambda: interrupt(host), lambda: result.exists() or host.poll() is not None)


def test_ctrl_c_twice_kills(place: Host, mark: str) -> None:
    place.script(STUBBORN)
    place.host(INTERRUPTED)
    with place.start(env=environment(MARK=mark), start_new_session=True) as host:
        place.ready(2)
        interrupt(host)
        until(lambda: {"got.0", "got.1"} <= place.names(), "SIGTERM")
        interrupt_until_the_job_ends(place, host)
        ended = Place.wait(host)
    assert (ended.status, ended.stdout, marked(mark)) == (0, b"interrupted\n", [])
    assert [rank["exit"]["signal"]["number"] for rank in place.result()["ranks"]] == [9, 9]


def test_ctrl_c_after_a_failure_shows_its_report(place: Host) -> None:
    """No WorkerError is raised that could have it as its text."""
    place.script("await_file('ready.0') or sys.exit(3) if rank == 1 else None\n" + STUBBORN)
    place.host(INTERRUPTED)
    with place.start(start_new_session=True) as host:
        until(lambda: "got.0" in place.names(), "SIGTERM")
        interrupt(host)
        await_line(host.stderr, b"SIGINT: waiting up to 600 s")
        interrupt_until_the_job_ends(place, host)
        ended = Place.wait(host)
    assert (ended.status, ended.stdout) == (0, b"interrupted\n")
    assert ended.stderr.count("rank 1 failed: exit code 3\n") == 1


def test_ctrl_c_while_the_launcher_comes_up(place: Host) -> None:
    """The launcher's own Python is not there yet; the job ends all the same, and without a traceback."""
    place.script(WRITES_DOWN)
    timer = "threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()"
    place.host(INTERRUPTED.replace("try:", f"try:\n    {timer}"))
    ended = place.run()
    assert (ended.status, ended.stdout) == (0, b"interrupted\n")
    assert "Traceback" not in ended.stderr


def interrupt_twice(host: subprocess.Popen[bytes], launcher: int) -> None:
    """The launcher does not take the first one."""
    interrupt(host)
    until(lambda: signal.SIGINT in signals_in(launcher, "ShdPnd"), "the first interrupt")
    time.sleep(3)  # Within 1.5 s it is the same request.
    interrupt(host)


def test_ctrl_c_twice_kills_a_launcher_whose_interpreter_hangs(place: Host, mark: str) -> None:
    os.mkfifo(place.folder / "never")
    (place.folder / "slow").mkdir()
    (place.folder / "slow/sitecustomize.py").write_text(
        "import os\nos.close(os.open('starting', os.O_CREAT))\nopen('never')\n"
    )
    place.script(WRITES_DOWN)
    place.host(INTERRUPTED.replace('"train.py"', '"train.py", env={"PYTHONPATH": "slow"}'))
    with place.start(env=environment(MARK=mark), start_new_session=True) as host:
        until(lambda: "starting" in place.names(), "the launcher's interpreter")
        (launcher,) = psutil.Process(host.pid).children()
        interrupt_twice(host, launcher.pid)
        ended = Place.wait(host)
    assert (ended.status, ended.stdout, marked(mark)) == (0, b"interrupted\n", [])


def test_ctrl_c_twice_kills_a_stopped_launcher_and_its_job(place: Host, mark: str) -> None:
    place.script(WRITES_DOWN)
    place.host(INTERRUPTED)
    with place.start(env=environment(MARK=mark), start_new_session=True) as host:
        place.ready(2)
        (launcher,) = psutil.Process(host.pid).children()
        launcher.suspend()
        until(lambda: launcher.status() == psutil.STATUS_STOPPED, "the stop")
        interrupt_twice(host, launcher.pid)
        ended = Place.wait(host)
    assert (ended.status, ended.stdout, marked(mark)) == (0, b"interrupted\n", [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_the_program_once_the_ranks_have_stopped(
    place: Host, mark: str, number: signal.Signals
) -> None:
    place.script(WRITES_DOWN)
    place.host(INTERRUPTED)
    with place.start(env=environment(MARK=mark)) as host:
        place.ready(2)
        host.send_signal(number)
        ended = Place.wait(host)
    assert (ended.status, ended.stdout) == (-number, b"")
    assert [place.text(f"got.{rank}") for rank in range(2)] == ["SIGTERM"] * 2
    assert (place.result()["exit_status"], marked(mark)) == (128 + number, [])


def test_a_handler_that_raises_stops_the_job(place: Host, mark: str) -> None:
    place.script(WRITES_DOWN)
    place.host(
        """
        def ring(*_):
            raise ZeroDivisionError
        signal.signal(signal.SIGALRM, ring)
        try:
            rlaunch.launch("train.py", nproc_per_node=2, grace_period=600)
        except ZeroDivisionError:
            print("rang")
        """
    )
    with place.start(env=environment(MARK=mark)) as host:
        place.ready(2)
        host.send_signal(signal.SIGALRM)
        ended = Place.wait(host)
    assert (ended.status, ended.stdout) == (0, b"rang\n")
    assert place.result()["exit_status"] == 143
    assert marked(mark) == []


def test_a_fork_in_a_signal_handler_ends_without_stopping_the_job(place: Host) -> None:
    place.script("tell('ready', os.getpid())\nawait_file('go')")
    place.host(
        """
        def fork(*_):
            child = os.fork()
            if child == 0:
                sys.exit(5)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            open("go", "w").close()
        signal.signal(signal.SIGALRM, fork)
        print(rlaunch.launch("train.py", nproc_per_node=2).outcome)
        """
    )
    with place.start() as host:
        place.ready(2)
        host.send_signal(signal.SIGALRM)
        ended = Place.wait(host)
    assert (ended.status, ended.stdout) == (0, b"5\ncompleted\n"), ended.stderr


def test_a_thread_stops_with_the_terminals_ctrl_c(place: Host, mark: str) -> None:
    place.script(WRITES_DOWN)
    place.host(
        """
        def run():
            try:
                rlaunch.launch("train.py", nproc_per_node=2, grace_period=600)
            except rlaunch.WorkerError as error:
                print(error.report.outcome, error.report.exit_status)
            over.set()

        over = threading.Event()
        threading.Thread(target=run).start()
        while not over.is_set():
            try:
                over.wait()
            except KeyboardInterrupt:
                pass
        """
    )
    with place.start(env=environment(MARK=mark), start_new_session=True) as host:
        place.ready(2)
        interrupt(host)
        ended = Place.wait(host)
    assert (ended.status, ended.stdout, marked(mark)) == (0, b"stopped 130\n", [])
    assert "second signal" not in ended.stderr


TOSTOP = """
import termios
mode = termios.tcgetattr(0)
mode[3] |= termios.TOSTOP
termios.tcsetattr(0, termios.TCSANOW, mode)
try:
    rlaunch.launch("nope.py")
except rlaunch.LaunchError as error:
    print(error.status)
"""


def test_in_a_terminal_that_stops_background_output(place: Host) -> None:
    """The launcher is in the background there, and speaks all the same; Ctrl-C comes once."""
    place.script(WRITES_DOWN)
    place.host(TOSTOP + INTERRUPTED)
    ours, theirs = pty.openpty()
    with (
        open(ours, "r+b", buffering=0) as keyboard,
        place.start(
            **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
        ) as host,
    ):
        os.close(theirs)
        place.ready(2)
        keyboard.write(b"\x03")
        until(lambda: host.poll() is not None, "the host's end")
        screen = b""
        with contextlib.suppress(OSError):
            while data := keyboard.read(65536):
                screen += data
    assert host.returncode == 0
    assert b"66\r\n" in screen
    assert b"SIGINT: waiting up to 600 s" in screen
    assert b"second signal" not in screen
    assert screen.endswith(b"interrupted\r\n")


# --- Deaths. ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_host_that_is_killed_leaves_nothing(place: Host, mark: str, where: str) -> None:
    """Also where a process that the host forked still holds everything it had."""
    place.script(WRITES_DOWN)
    place.host(
        """
        def run():
            rlaunch.launch("train.py", nproc_per_node=2, grace_period=600)
        def fork():
            while not os.path.exists("ready.1"):
                time.sleep(0.01)
            if os.fork() == 0:
                with open("forked.tmp", "w") as file:
                    file.write(str(os.getpid()))
                os.rename("forked.tmp", "forked")
                time.sleep(600)
        other, this = (run, fork) if sys.argv[1] == "thread" else (fork, run)
        thread = threading.Thread(target=other)
        thread.start()
        this()
        thread.join()
        """
    )
    with place.start(where, env=environment(MARK=mark), stdout=None, stderr=None) as host:
        place.ready(2)
        until(lambda: "forked" in place.names(), "the fork")
        bystander = int(place.text("forked"))
        host.kill()
        host.wait()
        until(lambda: marked(mark) == [bystander], "the job's end", 2)


def test_a_launcher_that_is_killed(place: Host, mark: str) -> None:
    place.script("tell('ready', os.getppid()); sleep()")

    def kill() -> None:
        until(lambda: "ready.0" in place.names(), "the rank")
        front = psutil.Process(int(place.text("ready.0"))).parent()
        assert front is not None
        front.kill()

    with in_thread(kill), pytest.raises(rlaunch.WorkerError) as caught:
        rlaunch.launch("train.py", env={"MARK": mark})
    assert caught.value.report.outcome == "front_lost"
    # The supervisor has reported, and exits.
    await_none_marked(mark, 2)


def test_a_supervisor_that_is_killed_while_it_reports(place: Host) -> None:
    """Part of its record is in the status pipe, which has room for a page. The launcher process adds one."""
    place.script("tell('ready', os.getppid()); await_file('go'); sys.exit('x' * 8192)")
    place.host(
        """
        import fcntl
        def shrink(reader, blocking, set_blocking=os.set_blocking):
            set_blocking(reader, blocking)
            fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
            open("reader", "a").write(f"{reader} ")
        os.set_blocking = shrink
        try:
            rlaunch.launch("train.py")
        except rlaunch.LaunchError as error:
            print(error.status, error)
        """
    )
    with place.start() as host:
        (supervisor,) = place.ready(1)
        os.kill(host.pid, signal.SIGSTOP)
        pipe = os.open(f"/proc/{host.pid}/fd/{place.text('reader').split()[0]}", os.O_RDONLY | os.O_NONBLOCK)
        (place.folder / "go").touch()
        full = (4096).to_bytes(4, sys.byteorder)
        until(lambda: fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) == full, "a full pipe")
        supervisor.kill()
        await_gone(supervisor)
        os.close(pipe)
        os.kill(host.pid, signal.SIGCONT)
        ended = Place.wait(host)
    assert ended.stdout.endswith(
        b"\n72 the launcher's supervisor process ended by signal SIGKILL, and the job with it\n"
    )


def test_a_supervisor_that_is_killed(place: Host, mark: str) -> None:
    place.script("os.kill(os.getppid(), signal.SIGKILL); sleep()")
    with pytest.raises(rlaunch.LaunchError, match="supervisor process ended by") as caught:
        rlaunch.launch("train.py", env={"MARK": mark})
    assert (caught.value.status, marked(mark)) == (72, [])


def test_both_are_killed(place: Host, mark: str) -> None:
    place.script("tell('ready', os.getppid()); sleep()")

    def kill() -> None:
        until(lambda: "ready.0" in place.names(), "the rank")
        supervisor = psutil.Process(int(place.text("ready.0")))
        front = supervisor.parent()
        assert front is not None
        for process in (front, supervisor):
            process.suspend()
        for process in (front, supervisor):
            process.kill()

    with in_thread(kill), pytest.raises(rlaunch.LaunchError, match="has not said why") as caught:
        rlaunch.launch("train.py", env={"MARK": mark})
    assert caught.value.status == -9
    await_none_marked(mark, 2)


# --- Where it may be called. ------------------------------------------------------------------------------


@contextlib.contextmanager
def in_thread(*bodies: Callable[[], object]) -> Iterator[None]:
    errors: list[BaseException] = []

    def run(body: Callable[[], object]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()
    assert errors == []


def test_two_at_once(place: Host) -> None:
    """Each waits until the other's ranks are there too."""
    place.script("tell(sys.argv[1]); await_file(sys.argv[2])")
    reports = {}

    def run(name: str, other: str) -> None:
        reports[name] = rlaunch.launch(
            "train.py", name, f"{other}.1", nproc_per_node=2, log_dir=name + "s", job_id=name
        )

    with in_thread(lambda: run("a", "b"), lambda: run("b", "a")):
        pass
    assert {name: (report.job_id, report.outcome) for name, report in reports.items()} == {
        "a": ("a", "completed"),
        "b": ("b", "completed"),
    }


FOOTPRINT = """
import psutil

def footprint():
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    fds = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
           if os.path.exists(f"/proc/self/fd/{fd}")}
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    return fds, psutil.Process().children(), handlers, wakeup, mask, dict(os.environ), os.getcwd()

def alone():
    while psutil.Process().num_threads() > 1:  # The thread that starts launchers takes a moment to end.
        time.sleep(0.005)

def launch(*args, **options):
    try:
        rlaunch.launch(*args, **options)
    except Exception as error:
        return error

signal.set_wakeup_fd(os.pipe2(os.O_NONBLOCK)[1], warn_on_full_buffer=False)
launch("train.py")
alone()
before = footprint()
kept = [
    launch("train.py", nproc_per_node=2),
    launch("train.py", "fail"),
    launch("nope.py"),
    launch("train.py", cwd="nope"),
]
alone()
assert footprint() == before, (footprint(), before)
print(*[type(error).__name__ for error in kept])
"""


def test_the_host_is_left_as_it_was(place: Host) -> None:
    place.script("sys.exit(len(sys.argv) > 1)")
    place.host(FOOTPRINT)
    ended = place.run()
    assert (ended.status, ended.stdout) == (0, b"NoneType WorkerError LaunchError FileNotFoundError\n"), ended
