"""Promises of ``rlaunch.torch.spawn`` beside the contract: no process stays, nothing is imported, torch's own
``except`` clauses hold. The contract itself is compared in ``test_torch_spawn_differential.py``."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
from effort import each
from rlaunch import errors
from rlaunch._spawn.sending.call import Call
from rlaunch._spawn.start_processes import run_process
from rlaunch._spawn.worker import EnvDelta
from rlaunch.torch import (
    ProcessContext,
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
    spawn,
    start_processes,
)
from stress import (
    TORCHS_METHODS,
    Footprint,
    Parent,
    alive,
    all_gone,
    descriptors,
    eventually,
    wait_inside_join,
)
from torch_spawn_ranks import (
    environment,
    fails_beside_sleepers,
    imported,
    interrupted,
    interrupted_parent,
    leaves_a_process,
    parent_in_join,
    sleeper,
    waits,
)

each_method = each("method", TORCHS_METHODS)


# --- Ranks and parents ------------------------------------------------------------------------------------


# --- No process stays -------------------------------------------------------------------------------------


@each_method
def test_ranks_that_ignore_signals_die_with_a_killed_parent(method: str) -> None:
    with Parent(parent_in_join, method) as parent:
        ranks = parent.ranks(2)
        parent.process.kill()
        assert all_gone(ranks.values(), 5)
        assert parent.leaves_no_process()


def test_an_interrupted_join_ends_the_ranks_and_is_no_success_later() -> None:
    with Parent(interrupted_parent, "fork") as parent:
        assert "started" in [parent.heard() for _ in range(3)]
        wait_inside_join(parent.process.pid)
        parent.process.send_signal(signal.SIGALRM)
        raised, codes, active = parent.heard()
        assert parent.ends() == 0
    assert raised == ["Rang", "ProcessExitedException"]
    assert codes == [-signal.SIGTERM] * 2
    assert active == 0


def test_ctrl_c_ends_a_call_that_joins() -> None:
    with Parent(parent_in_join, "spawn") as parent:
        ranks = parent.ranks(2)
        # To the parent alone. Its ranks are deaf: it is the second one that kills them.
        assert eventually(lambda: parent.process.send_signal(signal.SIGINT) or not alive(parent.process.pid))
        assert parent.ends() != 0
        assert all_gone(ranks.values(), 5)
        assert parent.leaves_no_process()


@each_method
def test_processes_that_a_rank_leaves_are_swept(method: str, capfd: pytest.CaptureFixture[str]) -> None:
    from multiprocessing import get_context

    queue = get_context(method).SimpleQueue()
    start_processes(leaves_a_process, (queue,), start_method=method)
    assert all_gone([queue.get()])
    assert "sleep" in capfd.readouterr().err


def test_a_failure_is_raised_again_and_blames_the_same_rank() -> None:
    context = start_processes(fails_beside_sleepers, nprocs=3, join=False, start_method="fork")
    assert isinstance(context, ProcessContext)
    with pytest.raises(ProcessExitedException, match="process 1 terminated with exit code 3"):
        context.join()
    assert [process.exitcode for process in context.processes] == [-15, 3, -15]
    with pytest.raises(ProcessExitedException, match="process 1 terminated with exit code 3"):
        context.join()


def test_nothing_is_held_once_all_have_ended() -> None:
    start_processes(print, start_method="fork")
    before = descriptors()
    context = start_processes(print, nprocs=3, join=False, start_method="fork")
    assert context is not None
    while not context.join():
        pass
    for process in context.processes:
        process.close()
    assert sorted((descriptors() - before).elements()) == []
    assert context.join()


def test_calls_leave_no_trace() -> None:
    start_processes(print, start_method="fork")
    before = Footprint()
    for _ in range(3):
        start_processes(print, nprocs=2, start_method="fork")
        with pytest.raises(ProcessExitedException):
            start_processes(fails_beside_sleepers, nprocs=2, start_method="fork")
    gc.collect()
    assert before.left_over() == []


def test_two_threads_may_join() -> None:
    read, write = os.pipe()
    context = start_processes(waits, (read,), 2, join=False, start_method="fork")
    assert context is not None
    said: list[object] = []

    def join() -> None:
        while not context.join():
            pass
        said.append("done")

    threads = [threading.Thread(target=join) for _ in range(2)]
    for thread in threads:
        thread.start()
    os.write(write, b"!!")
    for thread in threads:
        thread.join(30)
    assert said == ["done"] * 2
    os.close(read)
    os.close(write)


# --- Variables of ranks -----------------------------------------------------------------------------------


@each_method
def test_ranks_have_the_parents_environment(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from multiprocessing import get_context

    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("TORCH_MP_PARALLEL_START", "1")
    if method == "forkserver":
        from multiprocessing import forkserver

        forkserver._forkserver._stop()  # It would have what was set when it was started.
    queue = get_context(method).SimpleQueue()
    start_processes(environment, (queue,), 2, start_method=method)
    mine = {name: value for name, value in os.environ.items() if name != "RLAUNCH_RANK_KEY"}
    for variables in (queue.get(), queue.get()):
        differing = {name for name, _ in variables.items() ^ mine.items()}
        # The phase of the test; and the variables that the terminal's library set in the fork server.
        assert differing <= {"PYTEST_CURRENT_TEST", "COLUMNS", "LINES"}


def test_ranks_import_no_framework() -> None:
    from multiprocessing import get_context

    queue = get_context("spawn").SimpleQueue()
    spawn(imported, (queue,))
    assert queue.get() == []


def test_another_start_method_for_spawn_is_a_warning() -> None:
    with pytest.warns(FutureWarning, match=r"This method only supports start_method=spawn \(got: fork\)"):
        context = spawn(sleeper, nprocs=1, join=False, start_method="fork")
    assert context is not None
    assert type(context.processes[0])._start_method == "spawn"
    context.processes[0].kill()
    with pytest.raises(ProcessExitedException, match="signal SIGKILL"):
        context.join()


def test_no_start_method_is_multiprocessings_default() -> None:
    import multiprocessing

    context = start_processes(print, join=False, start_method=None)
    assert context is not None
    assert type(context.processes[0])._start_method == multiprocessing.get_start_method()
    assert context.join()


def test_daemons_are_daemons() -> None:
    context = start_processes(sleeper, nprocs=1, join=False, daemon=True, start_method="fork")
    assert context is not None
    assert context.processes[0].daemon
    context.processes[0].terminate()
    with pytest.raises(ProcessExitedException, match="signal SIGTERM"):
        context.join()


# --- Exceptions -------------------------------------------------------------------------------------------


class TheirException(Exception):
    """Laid out as torch's."""

    __slots__ = ("error_index", "error_pid")

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        raise AssertionError("this is never called")


class TheirRaised(TheirException):
    pass


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module in the place of torch's."""
    module = types.ModuleType(errors.TORCH_SPAWN)
    vars(module).update(ProcessException=TheirException, ProcessRaisedException=TheirRaised)
    monkeypatch.setitem(sys.modules, errors.TORCH_SPAWN, module)
    return module


MAKE: list[Callable[[], ProcessException]] = [
    lambda: ProcessException("text", 1, 22),
    lambda: ProcessRaisedException("text", 1, 22),
    lambda: ProcessExitedException("text", 1, 22, -9, "SIGKILL"),
]


@pytest.mark.parametrize("make", MAKE)
def test_exceptions_are_pickled_whole(
    make: Callable[[], ProcessException], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another test may have imported it.
    monkeypatch.delitem(sys.modules, errors.TORCH_SPAWN, raising=False)
    error = make()
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args, vars(again)) == (type(error), error.args, vars(error))
    assert (str(error), error.msg, error.error_index, error.error_pid) == ("text", "text", 1, 22)


def test_where_torch_is_imported_its_except_clauses_hold(theirs: types.ModuleType) -> None:
    with pytest.raises(TheirRaised, match="ZeroDivisionError") as caught:
        start_processes(divmod, (0,), 1, start_method="fork")
    error = caught.value
    assert isinstance(error, ProcessRaisedException)
    assert (type(error).__name__, type(error).__module__) == ("ProcessRaisedException", "rlaunch.errors")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (again.args, again.error_index, again.error_pid) == (error.args, 0, error.error_pid)


def test_a_joint_exception_is_ours_alone_where_there_is_no_torch(
    theirs: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = errors.peer_class(ProcessRaisedException, errors.TORCH_SPAWN)
    assert kind is not ProcessRaisedException
    pickled = pickle.dumps(kind("text", 1, 22))
    monkeypatch.delitem(sys.modules, errors.TORCH_SPAWN)
    assert type(pickle.loads(pickled)) is ProcessRaisedException


@pytest.mark.parametrize(
    "odd", [None, object(), int, type("Shaped", (Exception,), {"__slots__": ()}), MemoryError]
)
def test_other_values_in_place_of_torchs_exception_do_no_harm(theirs: types.ModuleType, odd: object) -> None:
    vars(theirs)["ProcessRaisedException"] = odd
    with pytest.raises(ProcessRaisedException, match="ZeroDivisionError"):
        start_processes(divmod, (0,), 1, start_method="fork")


# --- Imports ----------------------------------------------------------------------------------------------


def test_the_module_is_light_to_import() -> None:
    before = "import rlaunch.errors, sys; old = set(sys.modules)"
    code = f"{before}; import rlaunch.torch; print(*set(sys.modules) - old)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["rlaunch.torch"]


# --- KeyboardInterrupt ------------------------------------------------------------------------------------


def run_interrupted(monkeypatch: pytest.MonkeyPatch, parents: list[int]) -> list[object]:
    """The error that a rank hands over, if its parent's pid is each of these in turn."""
    handed: list[object] = []
    outbox: Any = types.SimpleNamespace(put=lambda kind, write: handed.append(kind))
    monkeypatch.setattr("rlaunch._spawn.start_processes.arm_cleanup", lambda *_: None)
    monkeypatch.setattr(os, "getppid", lambda: parents.pop(0))
    nothing: Any = None
    run_process(Call(interrupted, ()), 0, outbox, EnvDelta({}), nothing)
    return handed


def test_an_interrupt_is_a_failure_while_there_is_a_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as caught:
        run_interrupted(monkeypatch, [7, 7])
    assert caught.value.code == 130


def test_a_rank_that_has_lost_its_parent_reports_to_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_interrupted(monkeypatch, [7, 1]) == []
