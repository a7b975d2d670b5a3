"""What a rank cannot import, cannot unpickle, and how it ends other than by an ``Exception``."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
import rlaunch.torch
from effort import each
from paths import PYTHONPATH
from rlaunch import RankError
from rlaunch._spawn.sending.doubtful_modules import can_import
from rlaunch.errors import ProcessExitedException, ProcessRaisedException
from stress import METHODS, spawn

pytest_plugins = ("spawning",)
pytestmark = pytest.mark.usefixtures("nothing_left")
each_method = each("method", METHODS)
PICKLING = ["spawn", "forkserver"]

SOURCE = """
from odd_neighbour import more

class Thing:
    def __init__(self, value): self.value = value
    def twice(self): return more(self.value * 2)

def check(thing): return isinstance(thing, Thing), thing.twice()
"""


@pytest.fixture(params=["file", "made", "in a found package"])
def module(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module in ``sys.modules`` that no new interpreter finds; it uses another one."""
    neighbour = types.ModuleType("odd_neighbour")
    exec("def more(number): return number + 1", vars(neighbour))
    monkeypatch.setitem(sys.modules, "odd_neighbour", neighbour)
    if request.param == "made":
        module = types.ModuleType("odd_made")
        exec(SOURCE, vars(module))
    else:
        name = "odd_file" if request.param == "file" else "email.odd_file"
        path = tmp_path / "odd_file.py"
        path.write_text(SOURCE)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "odd_file", module)
        spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@each("method", [*METHODS, "zygote"])
def test_what_a_rank_cannot_import_is_sent_by_value(module: Any, method: str) -> None:
    assert spawn(module.check, method, 2, (module.Thing(3),)).results() == [(True, 7)] * 2
    assert spawn(module.Thing(4).twice, method, 1).results() == [9]
    assert spawn(functools.partial(module.check, module.Thing(0)), method, 1).results() == [(True, 1)]


def test_what_only_the_main_module_makes_is_sent_by_name(tmp_path: Path) -> None:
    """A rank's copy of such a module is the one that its main module made."""
    text = (
        "import sys, types, rlaunch\n"
        "made = sys.modules['made_by_main'] = types.ModuleType('made_by_main')\n"
        "exec('class Thing: pass', vars(made))\n"
        "def check(thing): return type(thing) is made.Thing\n"
        "if __name__ == '__main__':\n"
        "    print(rlaunch.spawn(check, (made.Thing(),), nprocs=1, backend='gloo').results())\n"
    )
    assert _run_program(tmp_path, text) == "[True]\n"


@pytest.mark.parametrize("name", ["os.path", "email.mime.text", "sys", "rlaunch._lib", "pytest"])
def test_modules_that_a_rank_can_import(name: str) -> None:
    assert can_import(name)


MAIN_FAILS = """
import rlaunch, rlaunch.torch
if __name__ == "__mp_main__":
    import not_installed_here

def train(*_): pass

if __name__ == "__main__":
    for method in METHODS:
        try:
            if method == "zygote":
                rlaunch.spawn(train, nprocs=2, backend="gloo", start_method=method, preload="decimal")
            else:
                rlaunch.spawn(train, nprocs=2, backend="gloo", start_method=method)
        except rlaunch.RankError as error:
            print(method, error.exitcode, error.traceback.strip().rpartition("\\n")[2])
    try:
        rlaunch.torch.spawn(train, nprocs=2)
    except rlaunch.errors.ProcessRaisedException as error:
        print("torch", str(error).strip().rpartition("\\n")[2])
"""


def test_a_main_module_that_a_rank_cannot_import_reaches_the_caller(tmp_path: Path) -> None:
    methods = [*PICKLING, "zygote"]
    error = "ModuleNotFoundError: No module named 'not_installed_here'"
    expected = [*(f"{method} 1 {error}" for method in methods), f"torch {error}"]
    text = MAIN_FAILS.replace("METHODS", repr(methods))
    assert _run_program(tmp_path, text).splitlines() == expected


def test_a_function_behind_the_main_guard_has_its_hint(tmp_path: Path) -> None:
    program = """
import rlaunch
if __name__ == "__main__":
    def train(): pass
    try:
        rlaunch.spawn(train, nprocs=2, backend="gloo")
    except rlaunch.RankError as error:
        print(error.traceback.strip().rpartition(chr(10))[2])
"""
    text = _run_program(tmp_path, program)
    assert text.startswith("AttributeError: Can't get attribute 'train' on <module '__mp_main__'")
    assert "define it outside the block of `if __name__ == '__main__':`" in text


class Private:
    def __run(self, number: int) -> int:
        return number + 1

    @classmethod
    def __made(cls) -> str:
        return cls.__name__

    def start(self, method: str) -> list[Any]:
        return [*spawn(self.__run, method, 1, (1,)).results(), *spawn(self.__made, method, 1).results()]


class Heir(Private):
    """Has the private methods of its base."""


@each_method
def test_a_private_method(method: str) -> None:
    assert Heir().start(method) == [2, "Heir"]


class Unreadable:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return _fail_to_unpickle, ("not here",)


def _fail_to_unpickle(text: str) -> None:
    raise LookupError(text)


def exit_with(code: Any) -> None:
    sys.exit(code)


def cancel() -> None:
    raise asyncio.CancelledError("cancelled in a rank")


def skip() -> None:
    pytest.skip("nothing to do")


def raise_nothing() -> None:
    with pytest.raises(LookupError):
        pass


class Custom(BaseException):
    """Not an Exception."""


def raise_custom() -> None:
    raise Custom("of its own kind")


def take(*_: Any) -> None:
    """Any arguments will do."""


ENDS = [
    (exit_with, ("no data",), "SystemExit: no data"),
    (exit_with, (2.5,), "SystemExit: 2.5"),
    (cancel, (), "asyncio.exceptions.CancelledError: cancelled in a rank"),
    (skip, (), "Skipped: nothing to do"),
    (raise_nothing, (), "Failed: DID NOT RAISE"),
    (raise_custom, (), "Custom: of its own kind"),
]


def _last_line(traceback: str | None) -> str:
    return (traceback or "").strip().rpartition("\n")[2]


@each_method
@pytest.mark.parametrize(("func", "args", "last"), ENDS)
def test_every_exception_reaches_the_caller(method: str, func: Any, args: Any, last: str) -> None:
    with pytest.raises(RankError) as caught:
        spawn(func, method, 2, args)
    assert (caught.value.exitcode, caught.value.rank in (0, 1)) == (1, True)
    assert last in _last_line(caught.value.traceback)


@each("method", [*PICKLING, "zygote"])
def test_a_failure_to_unpickle_reaches_the_caller(method: str) -> None:
    with pytest.raises(RankError) as caught:
        spawn(take, method, 2, (Unreadable(),))
    assert _last_line(caught.value.traceback) == "LookupError: not here"
    with pytest.raises(ProcessRaisedException) as raised:
        rlaunch.torch.start_processes(take, (Unreadable(),), 1, start_method=method)
    assert _last_line(str(raised.value)) == "LookupError: not here"


DAEMON = """
import multiprocessing, rlaunch, rlaunch.torch

def nothing(*_): pass

def spawn_all():
    for method in METHODS:
        rlaunch.spawn(nothing, nprocs=2, backend="gloo", start_method=method)
    rlaunch.torch.spawn(nothing, nprocs=1)

if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=spawn_all, daemon=True)
    process.start()
    process.join()
    print(process.exitcode)
"""


def _run_program(folder: Path, text: str) -> str:
    script = folder / "program.py"
    script.write_text(text)
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, str(script)], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_daemonic_process_has_ranks(tmp_path: Path) -> None:
    assert _run_program(tmp_path, DAEMON.replace("METHODS", repr(METHODS))) == "0\n"


GONE = """
import os, rlaunch, tempfile
if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)
    try:
        rlaunch.spawn(print, nprocs=1, backend="gloo")
    except FileNotFoundError as error:
        print("current folder" in str(error))
"""


def test_a_deleted_current_folder_is_named(tmp_path: Path) -> None:
    assert _run_program(tmp_path, GONE) == "True\n"


class _Unindexed:
    def __init__(self, func: Any) -> None:
        self.func = func

    def __call__(self, _: int, *args: Any) -> Any:
        return self.func(*args)


@pytest.mark.parametrize("code", [3, True])
def test_an_exit_status_stays_one(code: int) -> None:
    with pytest.raises(RankError) as caught:
        spawn(exit_with, "spawn", 1, (code,))
    assert (caught.value.exitcode, caught.value.traceback) == (int(code), None)
    with pytest.raises(ProcessExitedException) as exited:
        rlaunch.torch.spawn(_Unindexed(exit_with), (code,), 1)
    assert exited.value.exit_code == int(code)


class _ExitTogether:
    """Exits with 3 plus its rank, when the other rank does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, rank: int | None = None) -> None:
        number = int(os.environ["PADDLE_TRAINER_ID"]) if rank is None else rank
        (self.folder / str(number)).touch()
        while not (self.folder / str(1 - number)).exists():
            time.sleep(0.001)
        sys.exit(3 + number)


@each_method
def test_ranks_that_fail_at_one_moment_have_their_own_exit_codes(method: str, tmp_path: Path) -> None:
    with pytest.raises(RankError) as caught:
        spawn(_ExitTogether(tmp_path), method, 2)
    assert (caught.value.rank, caught.value.exitcode) in [(0, 3), (1, 4)]
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(ProcessExitedException) as exited:
        rlaunch.torch.start_processes(_ExitTogether(tmp_path), (), 2, start_method=method)
    assert (exited.value.error_index, exited.value.exit_code) in [(0, 3), (1, 4)]


@pytest.mark.parametrize("code", [0, None])
def test_an_exit_without_failure_stays_one(code: int | None) -> None:
    assert spawn(exit_with, "spawn", 1, (code,)).results() == [None]
    rlaunch.torch.spawn(_Unindexed(exit_with), (code,), 1)
