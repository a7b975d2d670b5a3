"""``rlaunch_rank.pth``, which the wheel puts into site-packages. Imports no framework."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from environments import Environment
from paths import ROOT

SEEN = """
import sys
import json
before = "rlaunch" in sys.modules
import torch
print(before, "rlaunch" in sys.modules, any(type(one).__name__ == "_StoreWait" for one in sys.meta_path))
"""


@pytest.fixture
def python(bare: Environment) -> Environment:
    """An environment with the file, and a torch that does nothing."""
    shutil.copy(ROOT / "python/data/purelib/rlaunch_rank.pth", bare.site)
    shutil.copy(ROOT / "python/data/purelib/rlaunch_rank.py", bare.site)
    (bare.site / "torch.py").write_text("")
    return bare


def test_a_rank_is_prepared_when_it_imports_a_framework(python: Environment) -> None:
    shutil.copytree(ROOT / "python/rlaunch", python.site / "rlaunch")
    done = python.run("python", "-c", SEEN, RLAUNCH_RANK_KEY="a/0/1")
    assert (done.stdout, done.stderr) == ("False True True\n", "")


def test_a_program_that_is_no_rank_is_left_alone(python: Environment) -> None:
    shutil.copytree(ROOT / "python/rlaunch", python.site / "rlaunch")
    done = python.run("python", "-c", SEEN)
    assert (done.stdout, done.stderr) == ("False False False\n", "")


def test_a_broken_rlaunch_breaks_no_rank(python: Environment) -> None:
    # Python may read the file twice: /lib64 is a link to /lib in some environments.
    shutil.copy(python.site / "rlaunch_rank.pth", python.site / "rlaunch_rank_again.pth")
    (python.site / "rlaunch").mkdir()
    (python.site / "rlaunch" / "__init__.py").write_text("raise OSError('bad build')\n")
    done = python.run("python", "-c", "import torch; print('trained')", RLAUNCH_RANK_KEY="a/0/1")
    assert done.stdout == "trained\n"
    assert done.stderr == "rlaunch: warning: cannot prepare this rank: OSError('bad build')\n"


def test_a_script_with_the_name_of_the_package_runs_once(python: Environment) -> None:
    shutil.copytree(ROOT / "python/rlaunch", python.site / "rlaunch")
    (python.folder / "rlaunch.py").write_text("import torch; print('trained')")
    done = python.run("python", "rlaunch.py", RLAUNCH_RANK_KEY="a/0/1")
    assert (done.stdout, done.stderr) == ("trained\n", "")


def test_a_variable_turns_it_off(python: Environment) -> None:
    shutil.copytree(ROOT / "python/rlaunch", python.site / "rlaunch")
    done = python.run("python", "-c", SEEN, RLAUNCH_RANK_KEY="a/0/1", RLAUNCH_STORE_WAIT="0")
    assert (done.stdout, done.stderr) == ("False False False\n", "")


WITHOUT_ITS_FILE = """
import os
import rlaunch_rank

fd = os.memfd_create("rlaunch-exception")
rlaunch_rank.ExceptionNote(f"/proc/{os.getpid()}/fd/{fd}")
os.close(fd)
IN_ITS_PLACE
raise ValueError("loss is nan")
"""


@pytest.mark.parametrize("in_its_place", ["", "assert os.open('other', os.O_WRONLY | os.O_CREAT) == fd"])
def test_an_exception_is_noted_only_in_the_launcher_s_file(python: Environment, in_its_place: str) -> None:
    """The launcher may have ended, and its process id belong to another program."""
    program = WITHOUT_ITS_FILE.replace("IN_ITS_PLACE", in_its_place)
    done = python.run("python", "-c", program, status=1)
    assert done.stderr.endswith("ValueError: loss is nan\n")
    assert "atexit" not in done.stderr
    other = python.folder / "other"
    assert (other.read_bytes() if in_its_place else b"") == b""


EXIT = """
import atexit, sys, time, types
sys.modules[sys.argv[1]] = types.ModuleType(sys.argv[1])
time.sleep = lambda seconds: print("slept")
atexit.register(print, "the program's own function")
"""


@pytest.mark.parametrize("module", ["torch.distributed", "torch.nn"])
def test_a_rank_yields_to_torchs_threads_last(python: Environment, module: str) -> None:
    # Without it, torch 2.15 aborted in 2 to 8 of 24 runs of a training with gloo.
    done = python.run("python", "-c", EXIT, module, RLAUNCH_RANK_KEY="a/0/1")
    yields = module == "torch.distributed" and sys.version_info < (3, 14)
    assert done.stdout == "the program's own function\n" + "slept\n" * yields


# Begins a program of a rank. The note is printed last of all.
NOTED = """
import atexit, os, sys
fd, pid = os.memfd_create("rlaunch-exception"), os.getpid()
atexit.register(lambda: os.getpid() == pid and print(os.pread(fd, 1 << 16, 0).decode(), end=""))
import rlaunch_rank
note = rlaunch_rank.ExceptionNote(f"/proc/{pid}/fd/{fd}")
sys.meta_path.insert(0, rlaunch_rank.ImportWatch(note))
"""

# Programs that replace, compare, copy or call what a note replaces: their exit statuses, and the function
# whose call of sys.exit is noted.
ODD_PROGRAMS = {
    "a call": ("def leave(): sys.exit(3)\nleave()", 3, "leave"),
    "a text": ("def leave(): sys.exit('no data')\nleave()", 1, "leave"),
    "success": ("def leave(): sys.exit(0)\nleave()", 0, None),
    "a large status": ("def leave(): sys.exit(256 + 7)\nleave()", 7, "leave"),
    "imported": ("from sys import exit\ndef leave(): exit(3)\nleave()", 3, "leave"),
    "wrapped": (
        "old = sys.exit\ndef wrapper(code): old(code)\nsys.exit = wrapper\nsys.exit(3)",
        3,
        "wrapper",
    ),
    "mocked": (
        "from unittest import mock\nwith mock.patch('sys.exit', autospec=True) as exit: sys.exit(5)\n"
        "exit.assert_called_once_with(5)\nraise SystemExit(3)",
        3,
        None,
    ),
    "invalid calls": (
        "for args, more in ([(1, 2), {}], [(), {'status': 1}]):\n"
        "    try: sys.exit(*args, **more)\n"
        "    except TypeError: continue\n"
        "    os._exit(9)",
        0,
        None,
    ),
    "an odd integer": (
        "class Odd(int):\n"
        "    def __int__(self): raise KeyError\n"
        "    __and__ = __index__ = __int__\n"
        "sys.exit(Odd(5))",
        5,
        None,
    ),
    "no frame": ("atexit.register(sys.exit, 3)", 0, None),
    "a signal": (
        "import signal\ndef leave(*_): sys.exit(3)\nsignal.signal(signal.SIGUSR1, leave)\n"
        "os.kill(os.getpid(), signal.SIGUSR1)",
        3,
        "leave",
    ),
    "a thread": (
        "import threading\n"
        "thread = threading.Thread(target=sys.exit, args=(3,))\n"
        "thread.start(); thread.join()",
        0,
        None,
    ),
    "a fork": (
        "if (child := os.fork()) == 0: sys.exit(3)\nassert os.waitstatus_to_exitcode(os.wait()[1]) == 3",
        0,
        None,
    ),
    "pickled": (
        "import copy, pickle\n"
        "for one in (sys.exit, atexit.register):\n"
        "    assert pickle.loads(pickle.dumps(one)) is one is copy.deepcopy(one)",
        0,
        None,
    ),
    "exit functions": (
        "@atexit.register\ndef first(): print('first')\n"
        "def keyword(func): print(func)\natexit.register(keyword, func='second')\n"
        "def never(): print('never')\natexit.register(never); atexit.unregister(never)\n"
        "class Incomparable:\n"
        "    def __eq__(self, other): raise KeyError\n"
        "    def __call__(self): print('third')\n"
        "atexit.register(Incomparable()); atexit.register(Incomparable())",
        0,
        None,
    ),
}


@pytest.mark.parametrize("flags", [[], ["-OO", "-I"]], ids=["plain", "optimized"])
@pytest.mark.parametrize("name", ODD_PROGRAMS)
def test_a_program_is_as_without_the_note(python: Environment, name: str, flags: list[str]) -> None:
    program, status, noted_in = ODD_PROGRAMS[name]
    begin = "import atexit, os, sys\n"
    plain = python.run("python", *flags, "-c", begin + program, status=status)
    noted = python.run("python", *flags, "-c", NOTED + program, status=status)
    # Before it are lines of the traceback.
    assert noted.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]
    notes = [line.split(" ", 2)[2] for line in noted.stdout.removeprefix(plain.stdout).splitlines()]
    assert notes[0] == "started"
    assert [json.loads(note)["function"] for note in notes[1:]] == ([noted_in] if noted_in else [])


THREAD = """
import threading
def load():
    raise OSError("no file " + os.fsdecode(b"caf\\xe9"))
threading.Thread(target=load, name="loader").start()
"""


def test_the_first_exception_of_a_thread_is_noted(python: Environment) -> None:
    done = python.run("python", "-c", NOTED + THREAD)
    _, note = done.stdout.splitlines()
    error = json.loads(note.split(" ", 2)[2])
    assert (error["thread"], error["what"], error["text"]) == ("loader", "OSError", "no file caf?")
    assert error["at_ns"] > 0
