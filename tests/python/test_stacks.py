"""Where ranks are, told in one screen."""

from __future__ import annotations

import faulthandler
import tempfile
import threading

import pytest
from rlaunch import _stacks
from rlaunch._stacks import Frame, Thread


def written(*frames: tuple[str, int, str], head: str = "Current thread 0x00007f0a") -> str:
    lines = [f'  File "{file}", line {line} in {function}' for file, line, function in frames]
    return "\n".join([f"{head} (most recent call first):", *lines, ""])


WAITING = written(
    ("/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce"),
    ("/t/test_a.py", 12, "test_sum"),
    ("/v/lib/python3.11/site-packages/_pytest/python.py", 1, "runtest"),
)
COMPUTING = written(
    ("/t/model.py", 3, "forward"),
    ("/t/test_a.py", 10, "test_sum"),
    ("/v/lib/python3.11/site-packages/_pytest/python.py", 1, "runtest"),
)


def test_what_faulthandler_writes_is_read() -> None:
    met, gone = threading.Event(), threading.Event()

    def beside() -> None:
        met.set()
        gone.wait()

    thread = threading.Thread(target=beside)
    thread.start()
    met.wait()
    try:
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            main, *others = _stacks.parse(file.read())
    finally:
        gone.set()
        thread.join()
    assert main.frames[0].function == "test_what_faulthandler_writes_is_read"
    assert main.frames[0].file == __file__
    assert any("beside" in [frame.function for frame in other.frames] for other in others)


def test_names_of_threads_and_what_is_no_stack() -> None:
    text = (
        "Fatal Python error: Aborted\n\n"
        + written(("a.py", 1, "f"), head="Thread 0x1 [loader]")
        + "...\n"
        + WAITING
    )
    first, second = _stacks.parse(text)
    assert first.frames[0].function == "all_reduce"
    assert second == Thread("loader", (Frame("a.py", "1", "f"),))
    assert _stacks.parse("") == []


def test_like_stacks_are_told_once_and_the_odd_one_last() -> None:
    told = _stacks.grouped({0: WAITING, 1: COMPUTING, 2: WAITING, 3: WAITING}, outer=("/_pytest/",))
    assert told.splitlines() == [
        "ranks 0, 2, 3:",
        "    /t/test_a.py:12 in test_sum",
        "    /v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:9 in all_reduce",
        "rank 1, the odd one:",
        "    /t/test_a.py:10 in test_sum",
        "    /t/model.py:3 in forward",
    ]


def test_what_has_started_the_test_runner_is_left_out_with_it() -> None:
    runner = [("/v/rlaunch/_pytest_rank.py", 5, "run"), ("/v/_pytest/main.py", 4, "main")]
    started = [*runner, ("/v/rlaunch/_zygote.py", 3, "main"), ("<string>", 1, "<module>")]
    outer, inner = ("/_pytest/", "/rlaunch/_pytest_rank.py"), "/rlaunch/_pytest_"
    waits = written(("/v/rlaunch/_pytest_rank.py", 9, "barrier"), ("/t/test_a.py", 12, "test_sum"), *started)
    within = written(("/v/_pytest/fixtures.py", 8, "setup"), *started)
    told = _stacks.grouped({0: waits}, outer, inner).splitlines()
    assert told[1:] == ["    /t/test_a.py:12 in test_sum", "    /v/rlaunch/_pytest_rank.py:9 in barrier"]
    told = _stacks.grouped({0: within}, outer, inner).splitlines()
    assert told[-1] == "    /v/_pytest/fixtures.py:8 in setup"


def test_of_what_waits_inside_of_us_its_name_is_told() -> None:
    inside = [("/v/rlaunch/_pytest_hub.py", 7, "_exactly"), ("/v/rlaunch/_pytest_rank.py", 9, "barrier")]
    waiting = written(*inside, ("/t/test_a.py", 12, "test_sum"))
    assert _stacks.grouped({0: waiting}, inner="/rlaunch/_pytest_").splitlines() == [
        "rank 0:",
        "    /t/test_a.py:12 in test_sum",
        "    /v/rlaunch/_pytest_rank.py:9 in barrier",
    ]


def test_of_two_the_odd_one_is_who_does_not_wait() -> None:
    assert "rank 0, the odd one:" in _stacks.grouped({0: COMPUTING, 1: WAITING})
    assert "odd" not in _stacks.grouped({0: WAITING, 1: WAITING})
    elsewhere = written(("/t/test_a.py", 20, "recv"))
    assert "odd" not in _stacks.grouped({0: elsewhere, 1: WAITING})
    assert "rank 2, the odd one:" in _stacks.grouped({0: WAITING, 1: WAITING, 2: elsewhere})


def test_threads_of_the_odd_one_are_told_too() -> None:
    beside = written(("/t/loader.py", 5, "fetch"), head="Thread 0x2")
    told = _stacks.grouped({0: beside + WAITING, 1: beside + COMPUTING})
    assert told.count("/t/loader.py:5 in fetch") == 1
    assert "rank 1, thread beside it:" in told


def test_a_rank_without_python_code() -> None:
    assert "    no Python code runs" in _stacks.grouped({0: "", 1: WAITING})


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([3], "rank 3"), ([0, 1], "ranks 0, 1"), ([0, 2, 3, 4, 7], "ranks 0, 2-4, 7")],
)
def test_ranks_are_named(ranks: list[int], words: str) -> None:
    assert _stacks.named(ranks) == words


def test_threads_of_a_rank_alone_are_told_too() -> None:
    loader = written(("/s/data.py", 3, "load"), head="Thread 0x00007f0b")
    assert "/s/data.py:3 in load" in _stacks.grouped({1: loader + WAITING})
