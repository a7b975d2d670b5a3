"""``rlaunch_rank.pth``, which the wheel puts into site-packages. Imports no framework."""

from __future__ import annotations

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
