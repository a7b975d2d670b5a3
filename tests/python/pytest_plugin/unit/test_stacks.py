"""The stacks of all ranks on one screen."""

from __future__ import annotations

import faulthandler
import os
import tempfile
import threading

import pytest
from rlaunch._pytest.stacks import grouping
from rlaunch._pytest.stacks.grouping import Frame, Thread


def written(*frames: tuple[str, int, str], head: str = "Current thread 0x00007f0a") -> str:
    lines = [f'  File "{file}", line {line} in {function}' for file, line, function in frames]
    return "\n".join([f"{head} (most recent call first):", *lines, ""])


RANK, SERVER = "/v/rlaunch/_pytest/rank/session.py", "/v/rlaunch/_pytest/rank_server.py"
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


def test_output_of_faulthandler_is_parsed() -> None:
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
            size = os.fstat(file.fileno()).st_size
            (lambda: faulthandler.dump_traceback(file, all_threads=True))()
            file.seek(0)
            text = file.read()
    finally:
        gone.set()
        thread.join()
    # Of two signals, the stacks at the first count.
    assert grouping.cut_after_first(text) == text[:size]
    main, *others = grouping.parse(text[:size])
    assert main.frames[0].function == "test_output_of_faulthandler_is_parsed"
    assert main.frames[0].file == __file__
    assert any("beside" in [frame.function for frame in other.frames] for other in others)


def test_escapes_in_the_names_of_files_are_read() -> None:
    text = written(("/t/\\xfc \\u65e5\\U0001f600\\udcff.py", 1, "\\xe4"))
    assert grouping.parse(text)[0].frames == (("/t/\u00fc \u65e5\U0001f600\\udcff.py", "1", "\u00e4"),)


def test_frames_of_the_import_system_are_left_out() -> None:
    importing = ("<frozen importlib._bootstrap>", 1176, "_find_and_load")
    text = written(("/s/lib.py", 1, "<module>"), importing, ("/t/test_a.py", 3, "test_sum"))
    assert [frame.file for frame in grouping.parse(text)[0].frames] == ["/s/lib.py", "/t/test_a.py"]


def test_names_of_threads_and_lines_that_are_no_stack() -> None:
    text = (
        "Fatal Python error: Aborted\n\n"
        + written(("a.py", 1, "f"), head="Thread 0x1 [loader]")
        + "...\n"
        + WAITING
    )
    first, second = grouping.parse(text)
    assert first.frames[0].function == "all_reduce"
    assert second == Thread("loader", (Frame("a.py", "1", "f"),))
    assert grouping.parse("") == []


def test_like_stacks_are_shown_once_and_the_odd_one_last() -> None:
    text = grouping.group_stacks({0: WAITING, 1: COMPUTING, 2: WAITING, 3: WAITING}, outer=("/_pytest/",))
    assert text.splitlines() == [
        "ranks 0, 2, 3:",
        "    /t/test_a.py:12 in test_sum",
        "    /v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:9 in all_reduce",
        "rank 1, the odd one:",
        "    /t/test_a.py:10 in test_sum",
        "    /t/model.py:3 in forward",
    ]


def test_frames_below_the_test_runner_are_left_out_with_it() -> None:
    runner = [(RANK, 5, "run"), ("/v/_pytest/main.py", 4, "main")]
    started = [*runner, ("/v/rlaunch/_preload/server.py", 3, "main"), ("<string>", 1, "<module>")]
    outer, inner = ("/_pytest/", "/rlaunch/_pytest/rank/session.py"), "/rlaunch/_pytest/"
    waits = written((RANK, 9, "barrier"), ("/t/test_a.py", 12, "test_sum"), *started)
    within = written(("/v/_pytest/fixtures.py", 8, "setup"), *started)
    text = grouping.group_stacks({0: waits}, outer, inner).splitlines()
    assert text[1:] == [
        "    /t/test_a.py:12 in test_sum",
        f"    {RANK}:9 in barrier",
    ]
    text = grouping.group_stacks({0: within}, outer, inner).splitlines()
    assert text[-1] == "    /v/_pytest/fixtures.py:8 in setup"


def test_a_wait_inside_rlaunch_is_shown_by_its_name() -> None:
    inside = [
        (SERVER, 7, "_exactly"),
        (RANK, 9, "barrier"),
    ]
    waiting = written(*inside, ("/t/test_a.py", 12, "test_sum"))
    assert grouping.group_stacks({0: waiting}, inner="/rlaunch/_pytest/").splitlines() == [
        "rank 0:",
        "    /t/test_a.py:12 in test_sum",
        f"    {RANK}:9 in barrier",
    ]


def test_of_two_the_odd_one_is_the_rank_that_does_not_wait() -> None:
    assert "rank 0, the odd one:" in grouping.group_stacks({0: COMPUTING, 1: WAITING})
    assert "odd" not in grouping.group_stacks({0: WAITING, 1: WAITING})
    elsewhere = written(("/t/test_a.py", 20, "recv"))
    assert "odd" not in grouping.group_stacks({0: elsewhere, 1: WAITING})
    assert "rank 2, the odd one:" in grouping.group_stacks({0: WAITING, 1: WAITING, 2: elsewhere})


def test_threads_of_the_odd_one_are_shown_too() -> None:
    beside = written(("/t/loader.py", 5, "fetch"), head="Thread 0x2")
    text = grouping.group_stacks({0: beside + WAITING, 1: beside + COMPUTING})
    assert text.count("/t/loader.py:5 in fetch") == 1
    assert "rank 1, thread beside it:" in text


def test_a_rank_without_python_code() -> None:
    assert "    no Python code runs" in grouping.group_stacks({0: "", 1: WAITING})


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([3], "rank 3"), ([0, 1], "ranks 0, 1"), ([0, 2, 3, 4, 7], "ranks 0, 2-4, 7")],
)
def test_ranks_are_named(ranks: list[int], words: str) -> None:
    assert grouping.format_ranks(ranks) == words


def test_threads_of_a_rank_alone_are_shown_too() -> None:
    loader = written(("/s/data.py", 3, "load"), head="Thread 0x00007f0b")
    assert "/s/data.py:3 in load" in grouping.group_stacks({1: loader + WAITING})
