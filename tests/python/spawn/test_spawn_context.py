"""The context that ``rlaunch.spawn`` returns, against what ``paddle.distributed.spawn``'s promises.

Where a test says "unlike Paddle", rlaunch differs on purpose.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import ranks
from effort import each
from rlaunch import JobError, NoResultError, RankError
from rlaunch._process import guardian
from rlaunch._spawn import context
from rlaunch._spawn import results as rank_results
from spawning import METHODS, failure, kill_if_alive
from spawning import nothing_left_fixture as _nothing_left  # noqa: F401
from spawning import start_fixture as _start  # noqa: F401

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:Your model will be trained"),
]


@each("method", METHODS)
def test_the_context_of_living_ranks(method: str, start: Any, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    context = start(ranks.wait_then, str(flag), "my_rank", n=2, method=method)
    assert context.sentinels == {p.sentinel: i for i, p in enumerate(context.processes)}
    assert len(context.return_queues) == len(context.error_queues) == 2
    assert all(queue.empty() for queue in context.return_queues + context.error_queues)
    assert all(p.is_alive() and p.exitcode is None for p in context.processes)
    assert set(context.processes) <= set(multiprocessing.active_children())
    assert multiprocessing.connection.wait(context.sentinels, timeout=0) == []
    flag.touch()
    assert multiprocessing.connection.wait(context.sentinels, timeout=60) != []
    assert [queue.get() for queue in context.return_queues] == [0, 1]
    while not context.join():
        pass
    assert (context.sentinels, context.join(), context.join(0)) == ({}, True, True)
    with pytest.raises(NoResultError, match="taken before"):
        context.return_queues[0].get()


@each("method", METHODS)
def test_join_with_a_timeout(method: str, start: Any, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    context = start(ranks.by_rank, ("give_none",), ("wait_for", str(flag)), n=2, method=method)
    assert context.join() is False, "rank 0 has ended, rank 1 has not"
    assert list(context.sentinels.values()) == [1]
    for timeout in (0, 0.1, 0.5, -1):
        before = time.monotonic()
        assert context.join(timeout=timeout) is False
        assert timeout - 0.01 <= time.monotonic() - before < 30
    assert context.processes[1].is_alive()
    flag.touch()
    assert context.join(60) is True
    assert (context.sentinels, [p.exitcode for p in context.processes]) == ({}, [0, 0])


@each("method", METHODS)
def test_a_failure_ends_the_others_and_is_raised_again_each_time(method: str, start: Any) -> None:
    # Unlike Paddle, whose second join blames a rank that it ended itself, and whose third says True.
    context = start(ranks.by_rank, ("sleep",), ("leave", 3), ("sleep",), n=3, method=method)
    for timeout in (None, None, 0, None):
        with pytest.raises(RankError, match=r"^Process 1 terminated with exit code 3\.$") as caught:
            context.join(timeout)
        assert (caught.value.rank, caught.value.exitcode) == (1, 3)
    assert [p.exitcode for p in context.processes] == [-signal.SIGTERM, 3, -signal.SIGTERM]
    assert context.sentinels == {}


@each("method", METHODS)
def test_a_rank_that_will_not_stop_is_killed_after_the_grace(
    method: str, start: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Unlike Paddle, which waits for it without limit.
    act = ("wait_then", str(tmp_path / "ready.0"), "boom", "why")
    context = start(
        ranks.by_rank, ("deaf_then_sleep", str(tmp_path)), act, n=2, method=method, grace_period=0.2
    )
    with pytest.raises(RankError, match="ValueError: why") as caught:
        context.join()
    assert [p.exitcode for p in context.processes] == [-signal.SIGKILL, 1]
    assert caught.value.traceback == context.error_queues[1].get()
    assert context.error_queues[0].empty()
    assert "Traceback" not in capfd.readouterr().err


@each("method", METHODS)
def test_of_several_failures_the_first_in_time_is_blamed(method: str, start: Any, tmp_path: Path) -> None:
    # Unlike Paddle, which looks at the ranks in their order.
    flag = tmp_path / "flag"
    context = start(ranks.by_rank, ("wait_then", str(flag), "leave", 3), ("leave", 4), n=2, method=method)
    context.processes[1].join()
    flag.touch()
    context.processes[0].join()
    with pytest.raises(RankError, match=r"^Process 1 terminated with exit code 4\.$"):
        context.join()
    assert [p.exitcode for p in context.processes] == [3, 4]


def test_rank_error_is_an_exception_that_travels() -> None:
    error = failure(ranks.boom, "why")
    copy = pickle.loads(pickle.dumps(error))
    assert RankError.__mro__[1:3] == (JobError, Exception)
    assert type(copy) is RankError
    for name in ("rank", "exitcode", "traceback", "args"):
        assert getattr(copy, name) == getattr(error, name)
    assert str(copy) == str(error)


@each("method", METHODS)
@pytest.mark.parametrize(("how", "number"), [("terminate", 15), ("kill", 9)])
def test_a_rank_that_the_caller_ends(method: str, how: str, number: int, start: Any) -> None:
    context = start(ranks.sleep, method=method)
    process = context.processes[0]
    getattr(process, how)()
    process.join()
    assert (process.exitcode, process.is_alive()) == (-number, False)
    name = signal.Signals(number).name
    with pytest.raises(RankError, match=rf"^Process 0 terminated with signal {name}\.$"):
        context.join()


@each("method", METHODS)
def test_a_grandchild_that_holds_everything_open_delays_nothing(
    method: str, start: Any, tmp_path: Path
) -> None:
    # Unlike Paddle, whose sentinel is a pipe that the grandchild has too.
    context = start(ranks.leave_grandchild, str(tmp_path / "pid"), method=method)
    try:
        assert context.join() is True
        assert context.processes[0].exitcode == 0
    finally:
        kill_if_alive(tmp_path / "pid")


# --- Signals and threads of the caller ------------------------------------------------------------------


@pytest.fixture
def handle() -> Iterator[Callable[[Callable[[FrameType | None], None]], None]]:
    """Has SIGUSR1 handled for a while."""
    before = signal.getsignal(signal.SIGUSR1)

    def go(handler: Callable[[FrameType | None], None]) -> None:
        signal.signal(signal.SIGUSR1, lambda _, frame: handler(frame))

    yield go
    signal.signal(signal.SIGUSR1, before)


class Interruption(Exception):
    pass


@each("method", METHODS)
def test_an_interrupted_join_ends_the_ranks_and_is_never_a_success(
    method: str, start: Any, handle: Any
) -> None:
    def interrupt_join(frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code is type(context).join.__code__:
                raise Interruption
            frame = frame.f_back

    handle(lambda frame: None)
    actions = ("keep_signalling_parent", signal.SIGUSR1), ("sleep",)
    context = start(ranks.by_rank, *actions, n=2, method=method)
    handle(interrupt_join)
    with pytest.raises(Interruption):
        context.join()
    codes = [p.exitcode for p in context.processes]
    assert set(codes) <= {-signal.SIGTERM, -signal.SIGKILL}
    assert context.sentinels == {}
    with pytest.raises(RankError, match=r"^Process [01] terminated with signal SIG(TERM|KILL)\.$"):
        context.join()


@each("method", METHODS)
def test_the_callers_wakeup_fd_still_receives_signals(method: str, start: Any, handle: Any) -> None:
    # This is how asyncio hears of signals.
    handled = []
    handle(handled.append)
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno())
        try:
            context = start(ranks.signal_parent, signal.SIGUSR1, method=method)
            assert context.join() is True
        finally:
            assert signal.set_wakeup_fd(before) == writer.fileno()
        reader.settimeout(30)
        assert signal.SIGUSR1 in reader.recv(100)
    assert len(handled) == 1


@each("method", METHODS)
def test_several_threads_may_join(method: str, start: Any, tmp_path: Path) -> None:
    for attempt in range(8 if method == "fork" else 2):
        flag, outcomes = tmp_path / str(attempt), []
        context = start(ranks.by_rank, ("wait_then", str(flag), "leave", 3), ("sleep",), n=2, method=method)

        def join() -> None:
            try:
                outcomes.append(context.join())  # noqa: B023  Joined in the same turn.
            except Exception as error:
                outcomes.append(str(error))  # noqa: B023

        threads = [threading.Thread(target=join) for _ in range(4)]
        for thread in threads:
            thread.start()
        flag.touch()
        for thread in threads:
            thread.join()
        assert outcomes == ["Process 0 terminated with exit code 3."] * 4


def test_an_error_is_read_whole_while_another_thread_takes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outbox, read = rank_results.ResultSlot(), os.pread
    outbox.put(rank_results.ERROR, lambda file: file.write(b"a traceback"))
    with monkeypatch.context() as patch:

        def meanwhile(fd: int, count: int, offset: int) -> bytes:
            patch.undo()
            outbox.take_content()
            return read(fd, count, offset)

        patch.setattr(os, "pread", meanwhile)
        assert outbox.read() == outbox.read() == (rank_results.ERROR, b"a traceback")


@each("method", METHODS)
def test_memory_is_searched_for_keys_only_where_ranks_may_be_forked(
    method: str, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes long, and under spawn every process of a rank has the key in its environment."""
    seen: list[bool] = []

    def sweep(key: str, failed: list[int], forked: bool) -> tuple[list[Any], list[Any], list[Any]]:
        seen.append(forked)
        return guardian.sweep_leftovers(key, failed, forked)

    monkeypatch.setattr(context, "sweep_leftovers", sweep)
    assert start(ranks.my_rank, method=method).join()
    assert seen == [method != "spawn"]
