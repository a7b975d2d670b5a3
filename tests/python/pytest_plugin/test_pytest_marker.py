"""The arguments of the marker, and readable stacks."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Any

import pytest
from rlaunch._pytest.marker import MarkerError, read_marker
from rlaunch._pytest.stacks.frames import cut_pytest_frames, find_test_frame


def test_marker_arguments_become_spawn_options() -> None:
    plain = read_marker(pytest.mark.ranks(2).mark)
    assert (plain.n, plain.timeout, plain.shared) == (2, None, ())
    assert plain.options == {"start_method": "spawn", "frameworks": "paddle,torch"}
    assert plain.gpus is None
    limits = {"timeout": 0, "startup_timeout": 9}
    full = read_marker(pytest.mark.ranks(2, **limits, gpus=[0, 1], preload="torch", shared="data").mark)
    assert (full.timeout, full.startup_timeout, full.shared) == (0.0, 9.0, ("data",))
    assert full.gpus == ["0", "1"]
    assert full.options == {"start_method": "zygote", "frameworks": "paddle,torch", "preload": "torch"}
    assert read_marker(pytest.mark.ranks(2, gpus=True).mark).gpus is True
    assert read_marker(pytest.mark.ranks(2).mark, "torch").options["preload"] == "torch"
    assert "preload" not in read_marker(pytest.mark.ranks(2, start_method="fork").mark, "torch").options


@pytest.mark.parametrize(
    ("mark", "named"),
    [
        (pytest.mark.ranks(0), "n must be the number of ranks, 1 or more, but got 0"),
        (pytest.mark.ranks(True), "but got True"),
        (pytest.mark.ranks("2"), "but got '2'"),
        (pytest.mark.ranks(), "missing 1 required positional argument: 'n'"),
        (pytest.mark.ranks(1, 2), "positional argument"),
        (pytest.mark.ranks(1, time=3), "unexpected keyword argument 'time'"),
        (pytest.mark.ranks(2, tmeout=3), "unexpected keyword argument 'tmeout'; did you mean 'timeout'?"),
        (pytest.mark.ranks(1, timeout=-1), "timeout must be a number of seconds, 0 for none, but got -1"),
        (pytest.mark.ranks(1, timeout=float("nan")), "but got nan"),
        (pytest.mark.ranks(1, startup_timeout="1"), "startup_timeout must be a number of seconds"),
        (pytest.mark.ranks(1, start_method="thread"), "start_method must be one of spawn, fork"),
        (pytest.mark.ranks(1, start_method=["spawn"]), "start_method must be one of spawn, fork"),
        (pytest.mark.ranks(1, frameworks="torch,keras"), "but got 'torch,keras'"),
        (pytest.mark.ranks(1, frameworks=None), "frameworks must be"),
        (pytest.mark.ranks(1, gpus=[]), "gpus must be True for one a rank, or devices"),
        (pytest.mark.ranks(1, gpus=0.5), "gpus must be True for one a rank, or devices"),
        (pytest.mark.ranks(1, gpus="0,0"), "each once"),
        (
            pytest.mark.ranks(3, gpus="0,1"),
            "gpus must be True, or as many devices as ranks, so 3, but got '0,1'",
        ),
        (pytest.mark.ranks(1, preload="torch", start_method="spawn"), "start_method must be zygote where"),
        (pytest.mark.ranks(1, preload=3), "preload must be"),
        (pytest.mark.ranks(1, shared=[1]), "shared must be names of fixtures, but got [1]"),
    ],
)
def test_a_bad_value_is_named(mark: Any, named: str) -> None:
    with pytest.raises(MarkerError) as caught:
        read_marker(mark.mark)
    assert named in str(caught.value)


@pytest.mark.parametrize("name", ["ranks_timeout", "ranks_startup_timeout"])
def test_a_bad_limit_of_the_session_is_named(name: str, pytester: pytest.Pytester) -> None:
    wanted = "must be a number of seconds, 0 for no limit, but got"
    with pytest.raises(pytest.UsageError, match=f"--{name.replace('_', '-')}: {wanted} '-1'"):
        pytester.parseconfig(f"--{name.replace('_', '-')}=-1")
    with pytest.raises(pytest.UsageError, match=f"^{name} {wanted} 'x'"):
        pytester.parseconfigure("-o", f"{name}=x")


STACK = """\
Thread 0x1 (most recent call first):
  File "/usr/lib/python3/threading.py", line 5 in wait

Current thread 0x2 (most recent call first):
  File "/lib/site-packages/torch/distributed.py", line 9 in all_reduce
  File "/home/a/suite/test_x.py", line 12 in test_a
  File "/lib/site-packages/_pytest/python.py", line 187 in pytest_pyfunc_call
  File "/lib/site-packages/pluggy/_callers.py", line 1 in _multicall
  File "<string>", line 1 in <module>
"""


def test_the_place_is_the_tests_own_line() -> None:
    assert find_test_frame(STACK, PurePath("/home/a/suite")) == "test_x.py:12 in test_a"
    assert (
        find_test_frame(STACK, PurePath("/nowhere"))
        == "/lib/site-packages/torch/distributed.py:9 in all_reduce"
    )
    assert find_test_frame("", PurePath("/home")) is None
    assert (
        find_test_frame("Current thread 0x2 (most recent call first):\n  <no Python frame>\n", PurePath("/"))
        is None
    )


def test_the_place_is_never_one_of_pytest_or_rlaunch() -> None:
    def find(*inner: str) -> str | None:
        runner = [
            "site-packages/pluggy/_callers.py",
            "site-packages/_pytest/main.py",
            "rlaunch/_spawn/worker.py",
        ]
        files = [*inner, *(f"/lib/{file}" for file in runner), os.__file__, "<string>"]
        frames = [f'  File "{file}", line {i} in f{i}' for i, file in enumerate(files)]
        head = "Current thread 0x2 (most recent call first):"
        return find_test_frame("\n".join([head, *frames]), PurePath("/home"))

    assert find() is None
    assert find("/lib/site-packages/_pytest/compat.py", "/lib/rlaunch/_pytest/rank/session.py") is None
    assert find("<frozen importlib._bootstrap>", os.__file__, "/lib/site-packages/_pytest/pathlib.py") is None
    plugin = "/lib/site-packages/plugin.py"
    assert find(os.__file__, plugin, "/lib/site-packages/pluggy/_hooks.py") == f"{plugin}:1 in f1"
    test = "/home/test_x.py"
    assert find("/lib/site-packages/_pytest/raises.py", plugin, test) == "test_x.py:2 in f2"


def test_a_stack_ends_where_pytest_begins() -> None:
    short = cut_pytest_frames(STACK)
    assert short.splitlines()[-1].endswith("line 12 in test_a")
    assert "threading.py" in short
