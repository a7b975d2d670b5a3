"""A zygote imports once, is there for later calls, and is gone when its program is, however that ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import preload_ranks
import psutil
import pytest
import ranks
import rlaunch
from launching import gone, runs, until
from paths import PYTHONPATH
from preload_ranks import PRELOADED, module, script
from rlaunch import RankError
from rlaunch._preload import client, registry
from rlaunch.torch import start_processes
from spawning import modules_fixture as _modules  # noqa: F401
from spawning import nothing_left_fixture as _nothing_left  # noqa: F401
from spawning import results

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:Your model will be trained"),
]


@pytest.fixture(name="folder")
def folder_fixture(modules: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the preloaded module is, which counts its imports."""
    module(modules, "preloaded", PRELOADED)
    monkeypatch.setenv("COUNT_FILE", str(modules / "count"))
    monkeypatch.setenv("PYTHONPATH", f"{modules}:{PYTHONPATH}")
    return modules


def start(func: Any, *args: Any, n: int = 1, preload: Any = "preloaded", **options: Any) -> Any:
    return rlaunch.spawn(func, args, n, start_method="zygote", preload=preload, **options)


def imports(folder: Path) -> int:
    return len(preload_ranks.lines(str(folder / "count")))


def only_zygote() -> psutil.Process:
    (zygote,) = registry._zygotes.values()
    return psutil.Process(zygote.pid)


def hanging(folder: Path) -> Path:
    """A module after whose import no process can be forked while a file, which is returned, is there."""
    flag = folder / "hang"
    text = f"""
        import os, preloaded, time
        def hang():
            while os.path.exists({str(flag)!r}):
                time.sleep(0.01)
        os.register_at_fork(before=hang)
    """
    module(folder, "hanging", text)
    return flag


class Rang(Exception):
    """Raised by a signal handler."""


def ring(*_: object) -> None:
    raise Rang


class Program:
    """A program that starts ranks, and its output."""

    def __init__(self, folder: Path, body: str, **options: Any) -> None:
        main = folder / "main.py"
        main.write_text(script(body))
        self.process = subprocess.Popen(
            [sys.executable, main], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def read_processes(self) -> list[psutil.Process]:
        """The processes that it names in a line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()
        return [psutil.Process(int(pid)) for pid in line.split()]


RANKS_THAT_WAIT = """
from rlaunch._preload import registry
args = preload_ranks.wait_for, (os.environ["GO"],), 2
context = rlaunch.spawn(*args, join=False, start_method="zygote", preload="decimal")
print(*[z.pid for z in registry._zygotes.values()], *[p.pid for p in context.processes], flush=True)
"""


# --- Used again ------------------------------------------------------------------------------------------


def test_the_zygote_imports_once_for_all_calls(folder: Path) -> None:
    parents = [results(start(preload_ranks.pids, n=2)) for _ in range(3)]
    assert {parent for call in parents for _, parent in call} == {only_zygote().pid}
    assert imports(folder) == 1


def test_another_zygote_where_imports_would_read_other_values(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(os.getpid)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert results(start(ranks.environ, "OMP_NUM_THREADS")) == [{"OMP_NUM_THREADS": "3"}]
    monkeypatch.setenv("SOMETHING", "else")
    start(os.getpid)
    assert imports(folder) == 2


def test_only_a_few_zygotes_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for threads in ("1", "2", "3", "4", "1", "5"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        start(os.getpid)
    assert imports(folder) == 5
    assert len(registry._zygotes) == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    start(os.getpid)
    assert imports(folder) == 5


def test_torchs_start_processes_uses_the_zygote_too(folder: Path) -> None:
    module(folder, "torch", PRELOADED)
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    for _ in range(2):
        start_processes(preload_ranks.put_parent, (queue,), 2, start_method="zygote")
    assert {queue.get() for _ in range(4)} == {(0, only_zygote().pid), (1, only_zygote().pid)}
    assert imports(folder) == 1


def test_end_zygotes_leaves_none_and_the_next_call_has_another(folder: Path) -> None:
    start(os.getpid)
    zygote = only_zygote()
    rlaunch.end_zygotes()
    assert not zygote.is_running()
    assert psutil.Process().children() == [] or zygote not in psutil.Process().children()
    start(os.getpid)
    assert imports(folder) == 2


def test_end_zygotes_lets_ranks_end_first(folder: Path, tmp_path: Path) -> None:
    context = start(ranks.wait_then, str(tmp_path / "go"), "my_rank", n=2, join=False)
    try:
        zygote = only_zygote()
        rlaunch.end_zygotes()
        assert zygote.is_running()
    finally:
        (tmp_path / "go").touch()
    while not context.join():
        pass
    assert results(context) == [0, 1]
    assert zygote.wait(20) is not False
    rlaunch.end_zygotes()


def test_threads_that_start_at_the_same_time_share_one(folder: Path) -> None:
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.extend(results(start(preload_ranks.pids, n=3))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({pid for pid, _ in found}) == 12
    assert len({parent for _, parent in found}) == imports(folder) == 1


def test_a_child_that_the_program_forks_does_not_disturb(folder: Path) -> None:
    start(os.getpid)
    zygote = only_zygote()
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            rlaunch.end_zygotes()
            code = 0 if registry._zygotes == {} else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert results(start(preload_ranks.pids))[0][1] == zygote.pid


# --- Killed ----------------------------------------------------------------------------------------------


def test_a_zygote_killed_between_two_calls_is_replaced(folder: Path) -> None:
    start(os.getpid)
    zygote = only_zygote()
    zygote.kill()
    until(lambda: gone(zygote), "the zygote's end")
    start(os.getpid)
    assert imports(folder) == 2


def test_ranks_die_with_a_killed_zygote_and_the_error_says_so(folder: Path, tmp_path: Path) -> None:
    context = start(ranks.sleep, n=2, join=False)
    processes = [psutil.Process(p.pid) for p in context.processes]
    only_zygote().kill()
    with pytest.raises(RankError, match=r"Process \d terminated with"):
        context.join()
    assert all(map(gone, processes))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_program_that_was_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setenv("GO", str(folder / "never"))
    with Program(folder, RANKS_THAT_WAIT + "time.sleep(600)") as program:
        processes = program.read_processes()
        assert len(processes) == 3
        program.process.send_signal(number)
        program.process.wait(30)
        until(lambda: all(map(gone, processes)), "the end of all")


def test_a_programs_end_waits_for_ranks_that_are_no_daemons(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GO", str(folder / "go"))
    with Program(folder, RANKS_THAT_WAIT) as program:
        zygote, *two = program.read_processes()
        # It has come to its end; its ranks have not.
        with pytest.raises(subprocess.TimeoutExpired):
            program.process.wait(0.5)
        assert not any(map(gone, two))
        (folder / "go").touch()
        out, err = program.process.communicate(timeout=30)
        assert (program.process.returncode, out, err) == (0, "", "")
        until(lambda: gone(zygote), "the zygote's end")


def test_at_a_programs_end_the_zygote_is_gone_and_no_leftover(folder: Path) -> None:
    body = "rlaunch.spawn(os.getpid, (), 2, start_method='zygote', preload='decimal')\n"
    body += "from rlaunch._preload import registry\nprint(*[z.pid for z in registry._zygotes.values()])"
    with Program(folder, body) as program:
        out, err = program.process.communicate(timeout=60)
        assert (program.process.returncode, err) == (0, "")
        assert not runs(int(out), "_zygote")


def test_a_zygote_survives_a_damaged_request(folder: Path) -> None:
    start(os.getpid)
    (zygote,) = registry._zygotes.values()
    before = psutil.Process(zygote.pid).num_fds()
    for damaged, field in ((b"cwd=/\0env=A\0", "env=A"), (b"fd=stdin\0fd=status\0", "'status'")):
        with pytest.raises(OSError, match=f"^.Errno 22. the request to fork a rank .*{field}"):
            zygote.fork(damaged, [0])
    assert psutil.Process(zygote.pid).num_fds() == before
    start(os.getpid)
    assert imports(folder) == 1


# --- Interrupted -----------------------------------------------------------------------------------------


def interrupted(folder: Path, body: str, ready: Path) -> str:
    with Program(folder, body, start_new_session=True) as program:
        until(ready.exists, "the ranks, or the import")
        processes = [program.process, *psutil.Process(program.process.pid).children(recursive=True)]
        os.killpg(program.process.pid, signal.SIGINT)  # As a terminal does.
        _, err = program.process.communicate(timeout=60)
        until(lambda: all(gone(p) for p in processes[1:]), "the end of all")  # type: ignore[arg-type]
        return str(err)


def test_ctrl_c_while_it_imports(folder: Path) -> None:
    module(folder, "slow", f"import time\nopen({str(folder / 'ready')!r}, 'w')\ntime.sleep(600)")
    body = "rlaunch.spawn(os.getpid, (), 2, start_method='zygote', preload='slow')"
    err = interrupted(folder, body, folder / "ready")
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert err.count("Traceback") == 1


def test_ctrl_c_while_ranks_run(folder: Path) -> None:
    args = f"preload_ranks.say_and_wait, ({str(folder / 'ready')!r},), 2"
    err = interrupted(
        folder, f"rlaunch.spawn({args}, start_method='zygote', preload='decimal')", folder / "ready"
    )
    assert err.rstrip().endswith("KeyboardInterrupt")


def test_a_slow_zygote_can_be_waited_for_and_interrupted(folder: Path) -> None:
    hang = hanging(folder)
    start(os.getpid, preload="hanging")
    zygote = only_zygote()
    hang.touch()
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Rang):
            start(os.getpid, preload="hanging")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        hang.unlink()
    zygote.suspend()
    # A late reply is not mistaken for the next one's; and a stopped one goes on.
    assert {parent for _, parent in results(start(preload_ranks.pids, n=3, preload="hanging"))} == {
        zygote.pid
    }
    assert imports(folder) == 1


# --- Out of something -------------------------------------------------------------------------------------


STARVED = """
import gc, resource
from rlaunch._preload import registry

def start(n):
    return rlaunch.spawn(preload_ranks.pids, (), n, start_method="zygote", preload="decimal")

start(1)
gc.collect()
before = preload_ranks.descriptors()
soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (320, 320))
held, failures = [], 0
try:
    while True:
        held.append(os.dup(0))
except OSError:
    pass
while True:
    try:
        start(2)
        break
    except (OSError, RuntimeError, ValueError):
        failures += 1
    os.close(held.pop())
while held:
    os.close(held.pop())
start(3)
gc.collect()
after = preload_ranks.descriptors()
print(failures, len(registry._zygotes), before == after, flush=True)
"""


def test_no_descriptors_left_in_the_program(folder: Path) -> None:
    with Program(folder, STARVED) as program:
        out, err = program.process.communicate(timeout=60)
    failures, zygotes, same = out.split() or [err]
    assert int(failures) > 3
    assert (zygotes, same) == ("1", "True"), err


def test_a_suspended_zygote_is_continued_for_the_next_start(folder: Path) -> None:
    start(ranks.give_none)
    stopped = only_zygote()
    stopped.send_signal(signal.SIGSTOP)
    start(ranks.give_none)
    assert (only_zygote(), imports(folder)) == (stopped, 1)


def test_a_zygote_that_does_not_answer_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hang = hanging(folder)
    start(ranks.give_none, preload="hanging")
    zygote = only_zygote()
    hang.touch()
    with monkeypatch.context() as patch:
        patch.setattr(client, "_FORK_TIMEOUT", 0.2)
        with pytest.raises(rlaunch.ZygoteError, match=rf"pid {zygote.pid}\) has not answered for 0.2 s"):
            start(ranks.give_none, preload="hanging")
    zygote.wait(60)
    hang.unlink()
    start(ranks.give_none, preload="hanging")
    assert imports(folder) == 2
