"""Where ``rlaunch.spawn`` can be called, and what signals to its caller do: whole programs, run.

Where a test says "unlike Paddle", rlaunch differs on purpose.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ranks
import rlaunch
from effort import each
from paths import PYTHONPATH
from rlaunch import RankError
from spawning import METHODS, results, survivors
from spawning import nothing_left_fixture as _nothing_left  # noqa: F401
from spawning import start_fixture as _start  # noqa: F401

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:Your model will be trained"),
]


def run(*args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, *args]
    return subprocess.run(command, input=stdin, env=environ, capture_output=True, text=True, timeout=60)


class Program:
    """A running program whose main module starts ranks that say when they are there, and then sleep."""

    def __init__(self, folder: Path, call: str, nprocs: int) -> None:
        script = folder / "program.py"
        script.write_text(
            "import ranks, rlaunch, signal, sys, time\n"
            f"FOLDER = {str(folder)!r}\n"
            f'if __name__ == "__main__":\n    {call}\n    print("came back")\n'
        )
        self.stderr = folder / "stderr"
        with self.stderr.open("w") as stderr:
            self.process = psutil.Popen(
                [sys.executable, str(script)],
                env={**os.environ, "PYTHONPATH": PYTHONPATH, "PYTHONWARNINGS": "ignore"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        self.all_processes: list[psutil.Process] = []
        files = [folder / f"ready.{rank}" for rank in range(nprocs)]
        while not all(file.exists() for file in files):
            assert self.process.poll() is None, self.stderr.read_text()
            time.sleep(0.005)
        self.ranks = [psutil.Process(int(file.read_text())) for file in files]
        self.all_processes = [*self.process.children(recursive=True), *self.ranks]

    def wait_for_join(self) -> Program:
        """Python ignores what a signal handler raises in hooks after a fork (PyErr_WriteUnraisable)."""
        wait = Path(f"/proc/{self.process.pid}/wchan")
        while "poll" not in wait.read_text():
            assert self.process.poll() is None, self.stderr.read_text()
            time.sleep(0.005)
        return self

    def ended(self, *signals: int) -> int:
        """Sends signals, and returns the exit status once nothing of the program is left."""
        for number in signals:
            self.process.send_signal(number)
        status = self.process.wait(timeout=60)
        assert survivors(self.all_processes) == []
        return int(status)

    def kill(self) -> None:
        for process in [self.process, *self.all_processes]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    programs = []

    def go(call: str, nprocs: int = 2) -> Program:
        programs.append(Program(tmp_path, call, nprocs))
        return programs[-1]

    yield go
    for started in programs:
        started.kill()


# --- The main module ------------------------------------------------------------------------------------


@each("method", ["spawn", "forkserver"])
def test_the_environment_is_there_when_the_main_module_is_imported(method: str, tmp_path: Path) -> None:
    # Unlike Paddle, where module-level code sees none of it.
    script = tmp_path / "main.py"
    script.write_text(
        "import os, rlaunch\n"
        "SEEN = [os.environ.get(n) for n in\n"
        "        ('PADDLE_TRAINER_ID', 'PADDLE_TRAINERS_NUM', 'http_proxy', 'HTTP_PROXY')]\n"
        "def seen(): return SEEN\n"
        "if __name__ == '__main__':\n"
        f"    context = rlaunch.spawn(seen, nprocs=2, start_method={method!r})\n"
        "    print([q.get() for q in context.return_queues], SEEN[2:])\n"
    )
    proxies = {"http_proxy": "http://a", "HTTP_PROXY": "http://b"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in proxies.items():
            patch.setenv(name, value)
        done = run(str(script))
    assert done.stdout == (
        "[['0', '2', None, 'http://b'], ['1', '2', None, 'http://b']] ['http://a', 'http://b']\n"
    )
    assert (done.stderr, done.returncode) == ("", 0)


def test_an_environment_variable_set_by_the_caller_reaches_the_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SET_AT_RUN_TIME", "caf\u00e9 \n=")
    for method in METHODS:
        context = rlaunch.spawn(ranks.environ, ("SET_AT_RUN_TIME",), 1, start_method=method)
        assert results(context) == [{"SET_AT_RUN_TIME": "caf\u00e9 \n="}]


# --- Places ---------------------------------------------------------------------------------------------


@each("method", METHODS)
def test_another_thread_can_spawn(method: str) -> None:
    outcome: list[Any] = []

    def work() -> None:
        outcome.append(results(rlaunch.spawn(ranks.my_rank, nprocs=2, start_method=method)))
        try:
            rlaunch.spawn(ranks.by_rank, (("leave", 3), ("sleep",)), 2, start_method=method)
        except RankError as error:
            outcome.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert outcome == [[0, 1], "Process 0 terminated with exit code 3."]


@each("method", METHODS)
def test_ranks_outlive_the_thread_that_started_them(method: str, start: Any, tmp_path: Path) -> None:
    flag, contexts = tmp_path / "flag", []
    action = (ranks.wait_then, str(flag), "my_rank")
    thread = threading.Thread(target=lambda: contexts.append(start(*action, n=2, method=method)))
    thread.start()
    thread.join()
    assert contexts[0].join(0.2) is False
    flag.touch()
    assert [queue.get() for queue in contexts[0].return_queues] == [0, 1]


def program_text(method: str, guard: bool) -> str:
    lines = [
        "import os, rlaunch",
        "def f(): return os.environ['PADDLE_TRAINER_ID']",
        f"context = rlaunch.spawn(f, nprocs=2, start_method={method!r})",
        "print([q.get() for q in context.return_queues])",
    ]
    if guard:
        lines[2:] = ["if __name__ == '__main__':", *("    " + line for line in lines[2:])]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("place", ["-c", "stdin", "no guard"])
def test_spawn_with_fork_works_everywhere(place: str, tmp_path: Path) -> None:
    text = program_text("fork", guard=False)
    if place == "-c":
        done = run("-c", text)
    elif place == "stdin":
        done = run("-", stdin=text)
    else:
        (tmp_path / "main.py").write_text(text)
        done = run(str(tmp_path / "main.py"))
    assert (done.stdout, done.stderr, done.returncode) == ("['0', '1']\n", "", 0)


@pytest.mark.parametrize("place", ["-c", "-"])
@each("method", ["spawn", "forkserver"])
def test_functions_that_ranks_cannot_import_are_sent_by_value(method: str, place: str) -> None:
    text = program_text(method, guard=True)
    done = run("-c", text) if place == "-c" else run("-", stdin=text)
    assert (done.stdout, done.stderr, done.returncode) == ("['0', '1']\n", "", 0)


@pytest.mark.parametrize("place", ["-c", "-"])
def test_without_cloudpickle_they_are_refused_before_any_rank(place: str) -> None:
    text = "import sys; sys.modules['cloudpickle'] = None\n" + program_text("spawn", guard=True)
    done = run("-c", text) if place == "-c" else run("-", stdin=text)
    assert "cannot be sent to the ranks: func: " in done.stderr
    assert "install cloudpickle" in done.stderr
    assert (done.stdout, done.returncode) == ("", 1)


@each("method", ["spawn", "forkserver"])
def test_without_a_guard_python_says_so(method: str, tmp_path: Path) -> None:
    text = program_text(method, guard=False).replace("nprocs=2", "nprocs=1")
    (tmp_path / "main.py").write_text(text)
    done = run(str(tmp_path / "main.py"))
    assert "An attempt has been made to start a new process before the\n" in done.stderr
    # The caller's own traceback has it.
    assert done.stderr.rindex("An attempt has been made") > done.stderr.rindex("rlaunch.errors.RankError")
    assert (done.stdout, done.returncode) == ("", 1)


def test_a_module_can_be_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "main.py").write_text(program_text("spawn", guard=True))
    monkeypatch.chdir(tmp_path)
    done = run("-m", "package.main")
    assert (done.stdout, done.stderr, done.returncode) == ("['0', '1']\n", "", 0)


# --- Signals to the caller, and its end -----------------------------------------------------------------


def call(method: str, func: str = "ready_then_sleep", **options: Any) -> str:
    extra = "".join(f", {name}={value!r}" for name, value in options.items())
    return f"rlaunch.spawn(ranks.{func}, (FOLDER,), 2, start_method={method!r}{extra})"


@each("method", METHODS)
@pytest.mark.parametrize("daemon", [False, True])
def test_ctrl_c_for_the_caller_alone_ends_the_ranks(program: Any, method: str, daemon: bool) -> None:
    # Unlike Paddle, which leaves ranks that are no daemons to run to their end.
    started = program(call(method, daemon=daemon)).wait_for_join()
    assert started.ended(signal.SIGINT) == -signal.SIGINT
    said = started.stderr.read_text()
    assert said.count("Traceback") == 1
    assert said.rstrip().endswith("KeyboardInterrupt")


@each("method", METHODS)
def test_ctrl_c_for_the_whole_group(program: Any, method: str) -> None:
    started = program(call(method)).wait_for_join()
    os.killpg(started.process.pid, signal.SIGINT)
    assert started.ended() == -signal.SIGINT
    said = started.stderr.read_text()
    # The ranks say nothing of their own.
    assert said.count("KeyboardInterrupt") == 1


@each("method", METHODS)
def test_a_second_ctrl_c_kills_ranks_that_will_not_stop(program: Any, method: str) -> None:
    # Unlike Paddle, which leaves them alive.
    started = program(call(method, "deaf_then_sleep", grace_period=600)).wait_for_join()
    started.process.send_signal(signal.SIGINT)
    while "rlaunch: waiting up to 600 s for rank(s) 0, 1 to stop" not in started.stderr.read_text():
        assert started.process.poll() is None
        time.sleep(0.01)
    assert started.ended(signal.SIGINT) == -signal.SIGINT


@each("method", METHODS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
@pytest.mark.parametrize("daemon", [False, True])
def test_no_rank_outlives_its_caller(program: Any, method: str, number: int, daemon: bool) -> None:
    # Unlike Paddle, which leaves them alive.
    started = program(call(method, daemon=daemon))
    assert started.ended(number) == -number


@each("method", METHODS)
def test_a_signal_handler_of_the_caller_runs_while_it_joins(program: Any, method: str) -> None:
    handler = "signal.signal(signal.SIGUSR1, lambda *_: (_ for _ in ()).throw(ZeroDivisionError('handled')))"
    started = program(f"{handler}; {call(method)}").wait_for_join()
    assert started.ended(signal.SIGUSR1) == 1
    assert "ZeroDivisionError: handled" in started.stderr.read_text()


@each("method", METHODS)
def test_a_signal_handler_that_returns_interrupts_nothing(program: Any, method: str) -> None:
    handler = "signal.signal(signal.SIGUSR1, lambda *_: print('handled', flush=True))"
    started = program(f"{handler}; {call(method)}").wait_for_join()
    started.process.send_signal(signal.SIGUSR1)
    assert started.process.stdout.readline() == b"handled\n"
    assert all(rank.is_running() for rank in started.ranks)
    assert started.ended(signal.SIGTERM) == -signal.SIGTERM


@each("method", METHODS)
def test_the_callers_end_without_a_join(method: str, program: Any, tmp_path: Path) -> None:
    """As multiprocessing has it: daemons are ended, the others are waited for."""
    started = program(call(method, join=False, daemon=True) + "; ranks.wait_for(FOLDER + '/go')")
    (tmp_path / "go").touch()
    assert started.ended() == 0
    assert started.process.stdout.read() == b"came back\n"


@each("method", METHODS)
def test_ranks_that_are_no_daemons_are_waited_for_at_exit(method: str, tmp_path: Path) -> None:
    script, flag, done_file = tmp_path / "main.py", tmp_path / "flag", tmp_path / "done"
    script.write_text(
        "import pathlib, rlaunch, ranks, sys\n"
        "def work(flag, done):\n    ranks.wait_for(flag)\n    pathlib.Path(done).touch()\n"
        "if __name__ == '__main__':\n"
        f"    rlaunch.spawn(work, sys.argv[1:], 1, join=False, start_method={method!r})\n"
        "    pathlib.Path(sys.argv[1]).touch()\n"
    )
    done = run(str(script), str(flag), str(done_file))
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    assert done_file.exists()
