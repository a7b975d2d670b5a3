"""``rlaunch.launch``: the command line's engine from a Python program, its report and its errors."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import io
import json
import os
import pickle
import pty
import re
import signal
import subprocess
import sys
import termios
import textwrap
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import rlaunch
from launching import STEERING, Ended, Place, environment, marked, until

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
FAIL = "tell('ready', os.getpid()); sys.exit(3 if rank == 1 else sleep())"


class Host(Place):
    """A folder with a Python program, host.py, that launches."""

    def popen(self, *args: Any, env: Any = None, **options: Any) -> subprocess.Popen[bytes]:
        options = {"cwd": self.folder, "stdin": subprocess.DEVNULL, **options}
        command = [sys.executable, "host.py", *args]
        self.launcher = subprocess.Popen(command, env=environment() if env is None else env, **options)
        return self.launcher

    def host(self, body: str) -> None:
        head = "import os, signal, sys, threading, time, rlaunch\n"
        (self.folder / "host.py").write_text(head + textwrap.dedent(body))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if STEERING.match(name)]:
        monkeypatch.delenv(name)
    return Host(tmp_path)


@pytest.fixture
def mark() -> Iterator[str]:
    """What the processes of a test carry in their environment; those that it left are ended."""
    mark = uuid.uuid4().hex
    yield mark
    for pid in marked(mark):
        os.kill(pid, signal.SIGKILL)


def written(place: Place, folder: str = "log") -> dict[str, Any]:
    result: dict[str, Any] = json.loads(place.text(f"{folder}/rlaunch/result.json"))
    return result


# --- Reports and errors. ----------------------------------------------------------------------------------


def test_a_job_that_ends_well_returns_its_report(place: Host) -> None:
    place.script("tell('ready', os.getpid())")
    report = rlaunch.launch("train.py", nproc_per_node=2, job_id="mine")
    assert (report.outcome, report.exit_status, report.culprit, report.restarts) == ("completed", 0, None, 0)
    assert (report.job_id, report.log_dir) == ("mine", str(place.folder / "log"))
    assert (report.attempts, report.swept, report.verdict) == ((), 0, None)
    assert [rank.pid for rank in report.ranks] == [int(place.text(f"ready.{rank}")) for rank in range(2)]
    for number, rank in enumerate(report.ranks):
        assert (rank.rank, rank.local_rank, rank.status, rank.exitcode) == (number, number, "succeeded", 0)
        assert rank.log == str(place.folder / f"log/workerlog.{number}")
        assert rank.seconds is not None
        assert 0 < rank.seconds < 40
        assert rank.peak_memory_bytes is not None
        assert rank.peak_memory_bytes > 1 << 20


def test_a_failure_raises_with_the_report(place: Host, capsys: pytest.CaptureFixture[str]) -> None:
    place.script(FAIL)
    with pytest.raises(rlaunch.WorkerError) as caught:
        rlaunch.launch(Path("train.py"), nproc_per_node=2)
    error, report = caught.value, caught.value.report
    assert isinstance(error, RuntimeError)
    assert (report.outcome, report.exit_status, report.culprit) == ("failed", 3, 1)
    assert [(rank.status, rank.exitcode, rank.told) for rank in report.ranks] == [
        ("stopped", -15, True),
        ("failed", 3, False),
    ]
    assert report.attempts == (), "none was followed by another"
    assert str(error) == report.verdict == written(place)["verdict"]
    assert str(error).startswith("rank 1 failed: exit code 3\n")
    # The block that was shown.
    assert capsys.readouterr().err.endswith(str(error) + "\n")


def test_the_report_is_what_the_file_says(place: Host) -> None:
    place.script("tell('ready', os.getpid())")
    report = rlaunch.launch("train.py", nproc_per_node=2)
    file = written(place)
    for name in ("outcome", "exit_status", "culprit", "restarts", "swept", "job_id", "host", "log_dir"):
        assert getattr(report, name) == file[name]
    for rank, said in zip(report.ranks, file["ranks"], strict=True):
        for field in dataclasses.fields(rank):
            assert field.name == "exitcode" or getattr(rank, field.name) == said[field.name]


def test_reports_and_errors_are_values(place: Host) -> None:
    place.script(FAIL)
    with pytest.raises(rlaunch.WorkerError) as caught:
        rlaunch.launch("train.py", nproc_per_node=2)
    report = caught.value.report
    copy = pickle.loads(pickle.dumps(report))
    assert (copy, hash(copy)) == (report, hash(report))
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.outcome = "completed"  # type: ignore[misc]
    error = pickle.loads(pickle.dumps(caught.value))
    assert (type(error), str(error), error.report) == (rlaunch.WorkerError, str(caught.value), report)
    refusal = pickle.loads(pickle.dumps(rlaunch.LaunchError("no", 66)))
    assert (str(refusal), refusal.status) == ("no", 66)


def test_restarts_are_reported(place: Host) -> None:
    place.script("os.path.exists('again') or (tell('x'), os.rename('x.0', 'again'), os.kill(os.getpid(), 9))")
    report = rlaunch.launch("train.py", max_restart=2, restart_delay=0)
    assert (report.restarts, [one.exitcode for one in report.attempts]) == (1, [-9])
    assert (report.ranks[0].attempt, report.ranks[0].exitcode) == (1, 0)


def test_a_job_that_somebody_stops(place: Host) -> None:
    place.script("os.kill(os.getppid(), signal.SIGTERM); sleep()")
    with pytest.raises(rlaunch.WorkerError, match="SIGTERM") as caught:
        rlaunch.launch("train.py")
    assert (caught.value.report.outcome, caught.value.report.exit_status) == ("stopped", 143)


@pytest.mark.parametrize(
    ("options", "status", "why"),
    [
        ({"script": "nope.py"}, 66, "nope.py: does not exist"),
        ({"script": "t.py", "nproc_per_node": "two"}, 2, "--nproc_per_node two: is not a whole number"),
        ({"script": "t.py", "log_dir": "t.py"}, 66, "t.py"),
        ({"script": "./bad", "no_python": True}, 71, "cannot start rank 0"),
    ],
)
def test_what_cannot_be_run_is_refused(
    place: Host, capsys: pytest.CaptureFixture[str], options: dict[str, Any], status: int, why: str
) -> None:
    place.script("", "t.py")
    (place.folder / "bad").write_bytes(b"\x7fELF no program")
    (place.folder / "bad").chmod(0o755)
    with pytest.raises(rlaunch.LaunchError, match=re.escape(why)) as caught:
        rlaunch.launch(**options)
    assert caught.value.status == status
    assert f"rlaunch: error: {caught.value}\n" in capsys.readouterr().err


def test_an_older_result_is_not_taken_for_this_ones(place: Host) -> None:
    place.script("")
    rlaunch.launch("train.py")
    with pytest.raises(rlaunch.LaunchError):
        rlaunch.launch("nope.py")


# --- What is asked. ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"),
    [("nproc_pre_node", "nproc_per_node"), ("gpu", "gpus"), ("logdir", "log_dir"), ("zzzzzz", None)],
)
def test_an_option_that_does_not_exist(place: Host, name: str, near: str | None) -> None:
    hint = f"; did you mean '{near}'?" if near else ""
    with pytest.raises(TypeError, match=re.escape(f"launch() has no option '{name}'{hint}") + "$"):
        rlaunch.launch("train.py", **{name: 1})
    assert place.names() == set()


def test_a_plan_alone_is_no_launch(place: Host) -> None:
    with pytest.raises(TypeError, match="no option 'dry_run'"):
        rlaunch.launch("train.py", dry_run="json")


def test_options_and_arguments_become_words(place: Host) -> None:
    package = place.folder / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    place.script("tell('argv', repr(sys.argv[1:]))", "pack/train.py")
    report = rlaunch.launch(
        *("pack.train", "--lr", 0.1, 3, Path("a b"), b"\xff", ""),
        module=True,
        no_python=False,
        nproc_per_node=2,
        log_dir=place.folder / "logs",
        log_overwrite=True,
        console_ranks=[0, 1],
        max_restart=None,
    )
    assert report.log_dir == str(place.folder / "logs")
    assert place.text("argv.1") == repr(["--lr", "0.1", "3", "a b", "\udcff", ""])


def test_variables_and_folder(place: Host) -> None:
    (place.folder / "sub").mkdir()
    place.script("tell('env', os.environ['MINE']); print(os.getcwd())", "sub/train.py")
    report = rlaunch.launch(
        "train.py", cwd=place.folder / "sub", env={"MINE": "ü", "PADDLE_LOG_DIR": "there"}
    )
    assert report.log_dir == str(place.folder / "sub/there")
    assert place.text("sub/env.0") == "ü"
    assert place.log(folder="sub/there").decode() == f"{place.folder / 'sub'}\n"
    assert "MINE" not in os.environ


def test_a_folder_that_is_not_there(place: Host) -> None:
    with pytest.raises(FileNotFoundError):
        rlaunch.launch("train.py", cwd="nope")


def test_a_rank_gets_no_more_than_from_the_command_line(place: Host) -> None:
    plain = Place(place.folder).tell("--nproc_per_node=1")[0]
    rlaunch.launch("tell.py", nproc_per_node=1)
    told = place.seen()[0]
    assert set(told["env"]) - {"PYTEST_CURRENT_TEST"} == set(plain["env"]) - {"PYTEST_CURRENT_TEST"}
    assert (len(told["fds"]), told["command"]) == (len(plain["fds"]), plain["command"])
    assert told["session"] == told["pid"]


# --- Output. ----------------------------------------------------------------------------------------------

LINES = "for i in range(20000): print('line', i, 'ü' * 20)"


def test_captured_output_is_whole(place: Host, capsys: pytest.CaptureFixture[str]) -> None:
    place.script(LINES + "\nsys.stdout.write('no end')")
    rlaunch.launch("train.py")
    out, err = capsys.readouterr()
    assert out == "".join(f"line {i} {'ü' * 20}\n" for i in range(20000)) + "no end"
    assert err.endswith("Exit code 0\n")


def test_one_stream_may_be_replaced(place: Host) -> None:
    place.script("sys.stdout.buffer.write(b'a\\xffb\\n')")
    place.host(
        """
        import contextlib, io
        with contextlib.redirect_stdout(io.StringIO()) as out:
            rlaunch.launch("train.py")
        assert out.getvalue() == "a\\ufffdb\\n", out.getvalue()
        """
    )
    ended = place.run()
    assert (ended.status, ended.stdout) == (0, b"")
    assert ended.stderr.endswith("Exit code 0\n")


def test_a_plain_script_has_every_byte_in_order(place: Host) -> None:
    place.script("sys.stdout.buffer.write(b'a\\xffb\\n')")
    place.host("print('before'); rlaunch.launch('train.py', log_level='ERROR'); print('after')")
    assert place.run().stdout == b"before\na\xffb\nafter\n"


class Odd(io.StringIO):
    def write(self, text: str) -> int:
        raise ValueError("I/O operation on closed file")


def test_a_stream_that_takes_nothing_stops_nobody(place: Host) -> None:
    place.script(LINES)
    with contextlib.redirect_stdout(Odd()), contextlib.redirect_stderr(Odd()):
        assert rlaunch.launch("train.py").outcome == "completed"
    assert place.log().count(b"\n") == 20000


# --- Interruptions. ---------------------------------------------------------------------------------------

INTERRUPTED = """
try:
    rlaunch.launch("train.py", nproc_per_node=2, grace=600)
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
    assert (written(place)["exit_status"], marked(mark)) == (130, [])


def test_ctrl_c_twice_kills(place: Host, mark: str) -> None:
    place.script(STUBBORN)
    place.host(INTERRUPTED)
    with place.start(env=environment(MARK=mark), start_new_session=True) as host:
        place.ready(2)
        interrupt(host)
        until(lambda: {"got.0", "got.1"} <= place.names(), "SIGTERM")
        interrupt(host)
        ended = Place.wait(host)
    assert (ended.status, ended.stdout, marked(mark)) == (0, b"interrupted\n", [])
    assert [rank["exit"]["signal"]["number"] for rank in written(place)["ranks"]] == [9, 9]


def test_ctrl_c_while_the_launcher_comes_up(place: Host) -> None:
    """The launcher's own Python is not there yet; the job ends all the same, and without a traceback."""
    place.script(WRITES_DOWN)
    place.host(
        "pid = os.getpid()\nthreading.Timer(0.02, os.kill, (pid, signal.SIGINT)).start()" + INTERRUPTED
    )
    ended = place.run()
    assert (ended.status, ended.stdout) == (0, b"interrupted\n")
    assert "Traceback" not in ended.stderr


def test_a_handler_that_raises_stops_the_job(place: Host, mark: str) -> None:
    place.script(WRITES_DOWN)
    place.host(
        """
        def ring(*_):
            raise ZeroDivisionError
        signal.signal(signal.SIGALRM, ring)
        try:
            rlaunch.launch("train.py", nproc_per_node=2, grace=600)
        except ZeroDivisionError:
            print("rang")
        """
    )
    with place.start(env=environment(MARK=mark)) as host:
        place.ready(2)
        host.send_signal(signal.SIGALRM)
        ended = Place.wait(host)
    assert (ended.status, ended.stdout) == (0, b"rang\n")
    assert written(place)["exit_status"] == 143
    assert marked(mark) == []


def test_a_thread_stops_with_the_terminals_ctrl_c(place: Host, mark: str) -> None:
    place.script(WRITES_DOWN)
    place.host(
        """
        def run():
            try:
                rlaunch.launch("train.py", nproc_per_node=2, grace=600)
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
    assert b"rlaunch: error: training_script nope.py" in screen
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
            rlaunch.launch("train.py", nproc_per_node=2, grace=600)
        def fork():
            while not os.path.exists("ready.1"):
                time.sleep(0.01)
            if os.fork() == 0:
                os.environ.clear()
                os.execve("/bin/sleep", ["sleep", "600"], {}) if sys.argv[1:] else time.sleep(600)
            open("forked", "w")
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
        [bystander] = [p for p in psutil.Process(host.pid).children() if p.name() == "sleep"] or [None]
        host.kill()
        host.wait()
        until(lambda: marked(mark) == [], "the job's end", 2)
        assert bystander is not None
        assert bystander.is_running()
        bystander.kill()


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
    # The supervisor has told, and goes.
    until(lambda: marked(mark) == [], "the supervisor's end", 2)


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
    until(lambda: marked(mark) == [], "the ranks' end", 2)


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


def test_a_rank_may_launch(place: Host) -> None:
    place.script("tell('inner', os.environ['PADDLE_TRAINERS_NUM'])", "inner.py")
    place.script(
        """
        import rlaunch
        report = rlaunch.launch("inner.py", nproc_per_node=3, log_dir="inner")
        tell("report", [report.outcome, len(report.ranks), report.log_dir])
        """,
        "outer.py",
    )
    assert rlaunch.launch("outer.py").outcome == "completed"
    assert place.text("report.0") == str(["completed", 3, str(place.folder / "inner")])
    assert [place.text(f"inner.{rank}") for rank in range(3)] == ["3"] * 3


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


def test_a_host_that_collects_every_child(place: Host) -> None:
    """The launcher's status is lost; its report is not."""
    place.script("sys.exit(5)")
    place.host(
        """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            rlaunch.launch("train.py")
        except rlaunch.WorkerError as error:
            print(error.report.exit_status)
        """
    )
    ended: Ended = place.run()
    assert (ended.status, ended.stdout) == (0, b"5\n")


def test_the_types_are_there_for_the_asking() -> None:
    for name in ("Report", "RankResult", "AttemptResult"):
        assert dataclasses.is_dataclass(getattr(rlaunch, name))
    with pytest.raises(AttributeError, match="nonsense"):
        rlaunch.nonsense  # noqa: B018
