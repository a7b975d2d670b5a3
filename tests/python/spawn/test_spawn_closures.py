"""Objects that can be sent to ranks and back: functions by value, and errors that name other objects."""

from __future__ import annotations

import multiprocessing
import pickle
import re
import subprocess
import sys
import threading
import traceback
import tracemalloc
from multiprocessing import get_context
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy
import pytest
import rlaunch
import rlaunch.torch
import sending
from effort import each
from processes import children
from rlaunch import RankError
from rlaunch._spawn.plan import ranks as plan_module
from rlaunch._spawn.sending import pickle_diagnosis
from stress import plain_bind, spawn

pytest_plugins = ("spawning",)
pytestmark = pytest.mark.usefixtures("nothing_left")
each_method = each("method", ["spawn", "forkserver"])


# --- By value -------------------------------------------------------------------------------------------


@each_method
def test_a_lambda_and_a_nested_closure(method: str) -> None:
    def outer(a: int) -> Any:
        def inner(b: int) -> int:
            return a + b + own

        return inner

    own = 100
    assert spawn(lambda x: x + own, method, 2, (1,)).results() == [101, 101]
    assert spawn(outer(10), method, 2, (1,)).results() == [111, 111]
    assert spawn(sending.take, method, 1, (outer(1), [outer(2)])).results() == [None]


@each_method
def test_a_closure_over_objects_of_multiprocessing(method: str) -> None:
    mp = get_context(method)
    queue, lock, memory = mp.Queue(), mp.Lock(), SharedMemory(create=True, size=4096)
    shared = numpy.ndarray((2,), "int64", memory.buf)
    shared[:] = 0

    def add(more: int) -> None:
        import os

        with lock:
            memory.buf[0] += more
        queue.put(os.environ["PADDLE_TRAINER_ID"])

    try:
        spawn(add, method, 2, (20,))
        assert sorted(queue.get() for _ in range(2)) == ["0", "1"]
        assert memory.buf[0] == 40
    finally:
        del shared
        memory.close()
        memory.unlink()
        queue.close()


@each_method
def test_a_local_class_comes_back_as_the_same_class(method: str) -> None:
    class Local:
        def __init__(self, value: int) -> None:
            self.value = value

        def doubled(self) -> Local:
            return Local(self.value * 2)

    first, second = spawn(lambda given: given.doubled(), method, 2, (Local(21),)).results()
    assert [type(first), type(second), first.value] == [Local, Local, 42]
    assert spawn(Local(4).doubled, method, 1).results()[0].value == 8


@each("method", ["spawn", "fork", "forkserver"])
def test_a_rank_may_return_a_closure(method: str) -> None:
    made = spawn(sending.closure_over, method, 2, (7,)).results()
    assert [function() for function in made] == [7, 7]


def test_under_torch_too(tmp_path: Path) -> None:
    rlaunch.torch.spawn(lambda i, text: Path(tmp_path, f"{i}").write_text(text), ("told",), nprocs=2)
    assert [Path(tmp_path, f"{i}").read_text() for i in range(2)] == ["told", "told"]
    with pytest.raises(TypeError, match=r"^cannot be sent to the ranks: fn closure 'thing'\.lock: _thread"):
        rlaunch.torch.spawn(sending.closure_over(sending.Holder()))


FROM_STDIN = """
class Own:
    def __init__(self, value):
        self.value = value

def helper(value):
    return Own(value * 2)

def work(given):
    return helper(given.value)

first = rlaunch.spawn(work, (Own(21),), 2, backend="gloo", start_method=METHOD).results()
print([type(own) is Own and own.value for own in first])
print(rlaunch.spawn(lambda: helper(4).value, (), 2, backend="gloo", start_method=METHOD).results())
print(rlaunch.spawn(sys.getrecursionlimit, (), 1, backend="gloo", start_method=METHOD).results())
"""


@each_method
def test_functions_of_a_program_from_stdin_are_sent_by_value(method: str) -> None:
    assert sending.program(FROM_STDIN, method) == "[42, 42]\n[8, 8]\n[1000]\n"


AT_A_PROMPT = """
import code

shell = code.InteractiveInterpreter(vars(sys.modules["__main__"]))
sys.ps1 = ">>> "
shell.runsource("def typed(value): return value + 1\\n")
shell.runsource("print(rlaunch.spawn(typed, (1,), 2, backend='gloo', start_method=METHOD).results())")
"""


def test_functions_typed_at_a_prompt_are_sent_by_value() -> None:
    assert sending.program(AT_A_PROMPT, "spawn") == "[2, 2]\n"


def test_functions_typed_after_a_script_are_sent_by_value(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{sending.PREAMBLE}METHOD = 'spawn'\nif __name__ == '__main__':\n")
    with script.open("a") as file:
        file.writelines(f"    {line}\n" for line in AT_A_PROMPT.splitlines())
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)
    assert done.stdout == "[2, 2]\n", done.stderr


# --- Without cloudpickle --------------------------------------------------------------------------------


@each_method
def test_without_cloudpickle_the_error_names_the_closure_and_the_solutions(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    name = "function closure_over.<locals>.<lambda>"
    refused = (AttributeError, pickle.PicklingError)  # The latter since Python 3.14.
    with pytest.raises(refused, match=re.escape(f"the ranks: func: {name}\nCan't pickle")) as caught:
        spawn(sending.closure_over(1), method, 2)
    assert "top level of a module, or install cloudpickle" in str(caught.value)
    with pytest.raises(refused, match=re.escape(f"cannot be sent to the ranks: args[0]['f']: {name}")):
        spawn(sending.take, method, 2, ({"f": sending.closure_over(1)},))
    with pytest.raises(RankError, match=re.escape(f"cannot be sent to the parent: result[1]: {name}")):
        spawn(make_pair, "fork", 1)


def make_pair() -> Any:
    return 1, sending.closure_over(2)


WITHOUT = """
import multiprocessing, os, pickle

class Own: pass

def work(*_): pass

for func, args in ((work, ()), (print, (1, Own()))):
    try:
        rlaunch.spawn(func, args, 2, backend="gloo", start_method=METHOD)
    except pickle.PicklingError as error:
        print(str(error).splitlines()[0])
print(multiprocessing.active_children(), os.path.exists(f"/proc/self/task/{os.getpid()}/children")
      and open(f"/proc/self/task/{os.getpid()}/children").read())
print(rlaunch.spawn(sys.getrecursionlimit, (), 1, backend="gloo", start_method=METHOD).results())
"""


@each_method
def test_without_cloudpickle_functions_that_ranks_cannot_find_are_refused_before_any_start(
    method: str,
) -> None:
    assert sending.program(WITHOUT, method, hide=True).splitlines() == [
        "cannot be sent to the ranks: func: function work",
        "cannot be sent to the ranks: args[1]: class __main__.Own",
        "[] ",
        "[1000]",
    ]


# --- Unpicklable objects --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", sending.SHAPES)
def test_unpicklable_arguments_are_named(shape: str) -> None:
    make, name = sending.SHAPES[shape]
    func, args = make()
    before = children()
    with pytest.raises(Exception, match=r".") as caught:
        spawn(func, "spawn", 2, args)
    assert str(caught.value).startswith(f"cannot be sent to the ranks: {name}"), str(caught.value)
    assert children() == before


@each_method
def test_no_rank_is_started_for_unpicklable_arguments(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    make = plan_module.plan_ranks

    def plan(*args: Any) -> Any:
        environs, leases = make(*args)
        seen.extend(int(e["PADDLE_CURRENT_ENDPOINT"].rpartition(":")[2]) for e in environs)
        return environs, leases

    monkeypatch.setattr(plan_module, "plan_ranks", plan)
    before = children()
    with pytest.raises(TypeError, match=r"args\[1\]\.lock: _thread\.lock\ncannot pickle '_thread"):
        spawn(sending.take, method, 2, (1, sending.Holder()))
    assert children() == before
    assert multiprocessing.active_children() == []
    assert len(seen) == 2
    for port in seen:
        plain_bind(port)


@each("method", ["spawn", "forkserver", "zygote"])
def test_the_error_fits_on_a_screen_and_ends_with_what_to_do(method: str) -> None:
    with pytest.raises(TypeError) as caught:
        spawn(sending.take, method, 2, (1, sending.Holder()))
    shown = "".join(traceback.format_exception(caught.value)).splitlines()
    assert len(shown) < 20, shown
    assert shown[-3:] == [
        "TypeError: cannot be sent to the ranks: args[1].lock: _thread.lock",
        "cannot pickle '_thread.lock' object",
        "Send the values that args[1].lock is created from, and create it on the other side.",
    ]
    places = [Path(frame.filename).name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert places[-2:] == ["spawn.py", "rank_starter.py"]


class Refuses:
    def __reduce__(self) -> Any:
        raise ValueError("not this one")


def test_the_users_own_code_stays_in_the_traceback() -> None:
    with pytest.raises(ValueError, match=r"args\[0\]: \S+Refuses\nnot this one\n") as caught:
        spawn(sending.take, "spawn", 1, (Refuses(),))
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "__reduce__"


def test_an_object_that_fails_inspection_is_named_in_a_note() -> None:
    with pytest.raises(ZeroDivisionError, match=r"^__(class|reduce_ex)__") as caught:
        spawn(sending.take, "spawn", 2, ([sending.Hostile()],))
    note = "cannot be sent to the ranks: args[0][0]: sending.Hostile"
    assert sys.version_info < (3, 11) or note in caught.value.__notes__


def test_too_deep_nesting_is_an_error_like_any_other() -> None:
    with pytest.raises(
        Exception, match=r"^cannot be sent to the ranks: args(\[0\])+: list\n.*recurs"
    ) as caught:
        spawn(sending.take, "spawn", 1, (sending.endless(),))
    assert len(str(caught.value)) < 1000


def test_with_fork_nothing_is_sent() -> None:
    lock = threading.Lock()
    assert spawn(lambda given: given is lock, "fork", 2, (lock,)).results() == [True, True]


@each("method", ["spawn", "fork"])
def test_a_result_that_cannot_be_sent_is_named(method: str) -> None:
    with pytest.raises(RankError) as caught:
        spawn(sending.Holder, method, 1)
    assert "\nTypeError: cannot be sent to the parent: result.lock: _thread.lock\n" in str(caught.value)
    assert "pickle.py" not in str(caught.value)
    assert "pickling.py" not in str(caught.value)


def never(_: Any) -> Any:
    raise pickle_diagnosis.OutOfTime


def test_a_search_that_takes_too_long_names_the_part() -> None:
    lock = threading.Lock()
    assert pickle_diagnosis.find_culprit({"args": (lock,)}, never, float("inf")) == ("args", (lock,))
    found = pickle_diagnosis.find_culprit({"args": [[lock]]}, lambda _: [lock], -float("inf"))
    assert found == ("args", lock)


def test_picklable_objects_have_no_culprit() -> None:
    assert pickle_diagnosis.find_culprit({"func": print, "args": ()}, lambda _: None, float("inf")) is None


def test_a_search_in_a_huge_structure_goes_on_by_trials_while_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pickle_diagnosis, "MAX_OBJECTS", 10)
    lock = threading.Lock()
    asked = []

    def trial(thing: Any) -> Any:
        asked.append(thing)
        fails = thing is lock or (isinstance(thing, list) and any(trial(item) for item in thing))
        return [lock] if fails else None

    huge = [[[]] for _ in range(20)]
    part = [huge, [[lock]]]
    assert pickle_diagnosis.find_culprit({"args": part}, trial, float("inf")) == ("args[1][0][0]", lock)
    asked.clear()
    assert pickle_diagnosis.find_culprit({"args": part}, trial, -float("inf")) == ("args", lock)


def test_an_array_is_not_copied_to_find_a_name() -> None:
    array = numpy.ones(1 << 22)
    tracemalloc.start()
    try:
        with pytest.raises(TypeError, match=r"args\[0\]\[1\]: _thread\.lock"):
            spawn(sending.take, "spawn", 1, ((array, threading.Lock()),))
        assert tracemalloc.get_traced_memory()[1] < array.nbytes
    finally:
        tracemalloc.stop()
