"""``rlaunch.spawn`` and ``rlaunch.torch.elastic_launch`` in a notebook: functions of cells."""

from __future__ import annotations

import re

import pytest
from kernel import Notebook, Shown, notebook_fixture  # noqa: F401
from launching import runs

CELL = """
import rlaunch

def divide(x):
    # The line that fails is not the first one.
    return 1 / x

def train():
    return divide(1 - rlaunch.get_rank())
"""


START = ["start_method='spawn'", "start_method='fork'", "start_method='forkserver'"]
START += ["start_method='zygote', preload='json'"]


@pytest.mark.parametrize("start", START)
def test_a_failed_ranks_traceback_has_the_lines_of_the_cells(notebook: Notebook, start: str) -> None:
    notebook.run(CELL)
    error = notebook.run(f"rlaunch.spawn(train, nprocs=2, {start})").error
    assert "Process 1 terminated with the following error:" in error
    assert "in train\n    return divide(1 - rlaunch.get_rank())\n" in error
    assert "in divide\n    return 1 / x\n" in error
    assert error.rstrip().endswith("ZeroDivisionError: division by zero")


ELASTIC = """
import rlaunch.torch
config = rlaunch.torch.LaunchConfig(1, 1, 2, rdzv_backend="c10d", monitor_interval=0.1)
rlaunch.torch.elastic_launch(config, train)()
"""


def test_so_has_that_of_an_elastic_launch(notebook: Notebook) -> None:
    notebook.run(CELL.replace("rlaunch.get_rank()", "int(__import__('os').environ['RANK'])"))
    error = notebook.run(ELASTIC).error
    assert "ChildFailedError" in error
    assert "in divide\n      return 1 / x\n" in error, error


def test_a_rank_can_read_the_source_of_its_function(notebook: Notebook) -> None:
    # As compilers of Python functions do: paddle.jit.to_static, torch.compile, triton.
    notebook.run("import inspect, rlaunch\ndef source():\n    return inspect.getsource(source)")
    shown = notebook.run("rlaunch.spawn(source, nprocs=1).results()")
    assert shown.result == repr(["def source():\n    return inspect.getsource(source)\n"]), shown


SLEEPS = """
import os, rlaunch, time
def sleep():
    print(f"pid {os.getpid()}\\n", end="", flush=True)
    time.sleep(600)
rlaunch.spawn(sleep, nprocs=2)
"""


def test_the_stop_button_ends_the_ranks(notebook: Notebook) -> None:
    pids: list[str] = []

    def press_stop(shown: Shown) -> None:
        found = re.findall(r"pid (\d+)\n", shown.stdout)
        if not pids and len(found) == 2:
            pids.extend(found)
            notebook.interrupt()

    shown = notebook.run(SLEEPS, press_stop)
    assert "KeyboardInterrupt" in shown.error
    assert len(pids) == 2
    assert not any(runs(int(pid), "python") for pid in pids)
    assert notebook.run("1 + 1").result == "2"


CALLS = [
    "rlaunch.spawn(train, nprocs=2)",
    "rlaunch.spawn(train, nprocs=2, join=False).results()",
    "rlaunch.launch('fails.py')",
    "rlaunch.launch('fails.py', nproc=2)",
    ELASTIC,
]


@pytest.mark.parametrize("call", CALLS, ids=["spawn", "results", "script", "option", "elastic"])
def test_an_error_has_one_frame_of_rlaunch(notebook: Notebook, call: str) -> None:
    notebook.run(CELL + "open('fails.py', 'w').write('1 / 0')")
    error = notebook.run(call).error
    # IPython hides all but the last one. Frames of a rank are in the exception's text.
    assert re.search(r"skipping hidden \d frame\]\s+File [^\n]*/rlaunch/[^\n]*, in ", error), error
    shown = re.findall(r"^File .*/python/rlaunch/.*:\d+, in ", error, re.M)
    assert len(shown) == 1, error
