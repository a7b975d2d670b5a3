"""``rlaunch.spawn`` under stress: huge and hostile results, many ranks, huge parents, grandchildren that
hold on to everything, deaf ranks, thieves of exit codes. Nothing may hang, and nothing may stay."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from multiprocessing.connection import wait
from typing import Any

import pytest
from effort import cases, each
from rlaunch import NoResultError, RankError
from stress import (
    BIG,
    METHODS,
    PATIENCE,
    Parent,
    alive,
    all_gone,
    context_of,
    descriptors,
    eventually,
    exit_by_rank,
    fail_beside_the_deaf,
    in_thread,
    join,
    me,
    results,
    spawn,
)
from stress_ranks import (
    LARGE,
    ROBBED,
    big,
    fail_beside_the_stopped,
    giant,
    give,
    have_a_grandchild,
    robbed,
    scream,
    until,
)

pytest_plugins = ("footprint",)
pytestmark = pytest.mark.usefixtures("leaves_nothing")
each_method = each("method", METHODS)


# --- Results ----------------------------------------------------------------------------------------------


@each_method
def test_big_results_of_many_ranks(method: str) -> None:
    ctx = spawn(big, method, 8)
    assert [r == bytes([i]) * BIG for i, r in enumerate(results(ctx))] == [True] * 8


@each_method
@pytest.mark.parametrize("first", ["get", "join"])
def test_big_results_before_and_after_join(method: str, first: str) -> None:
    ctx = spawn(big, method, 3, join=False)
    if first == "join":
        join(ctx)
    got = results(ctx)
    join(ctx)
    assert [r == bytes([i]) * BIG for i, r in enumerate(got)] == [True] * 3
    with pytest.raises(NoResultError):
        ctx.return_queues[0].get()


@each_method
def test_big_tracebacks_of_many_ranks(method: str) -> None:
    ctx = spawn(scream, method, 4, join=False)
    texts = [queue.get() for queue in ctx.error_queues]
    assert all(f"<{i}xxx" in text and text.endswith(f"xxx{i}>\n") for i, text in enumerate(texts))
    # As with Paddle, join cannot show what has been taken out of the queue.
    with pytest.raises(RankError, match=r"^Process \d terminated with exit code 1\.$"):
        join(ctx)


@each_method
def test_a_big_traceback_through_join_alone(method: str) -> None:
    with pytest.raises(RankError) as caught:
        spawn(scream, method, 3)
    assert caught.value.traceback is not None
    assert f"<{caught.value.rank}xxx" in caught.value.traceback


@each_method
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("lock", "result: _thread.lock"),
        ("unreducible", "ArithmeticError: cannot be reduced"),
        ("late", "ArithmeticError: cannot be reduced"),
    ],
)
def test_a_result_that_cannot_be_pickled_is_the_ranks_error(method: str, kind: str, words: str) -> None:
    ctx = spawn(give, method, 2, (kind,), join=False)
    assert ctx.return_queues[0].get() == "rank 0 is well"
    with pytest.raises(RankError, match="Process 1 terminated with the following error") as caught:
        join(ctx)
    assert words in str(caught.value)
    with pytest.raises(NoResultError):
        ctx.return_queues[1].get()


@each_method
def test_a_result_that_raises_when_unpickled_raises_where_it_is_got(method: str) -> None:
    ctx = spawn(give, method, 2, ("landmine",))
    for _ in range(2):
        with pytest.raises(LookupError, match="bang"):
            ctx.return_queues[1].get()
    assert ctx.return_queues[0].get() == "rank 0 is well"


@each_method
def test_a_joined_context_holds_no_descriptor_but_the_sentinel(method: str) -> None:
    before = descriptors()
    ctx = spawn(big, method, 3)
    # As with multiprocessing, a sentinel is there until its process object is closed.
    for process in ctx.processes:
        process.close()
    assert sorted((descriptors() - before).elements()) == []
    assert [len(r) for r in results(ctx)] == [BIG] * 3


# --- Size -------------------------------------------------------------------------------------------------


@each_method
def test_many_ranks(method: str) -> None:
    # A forked one costs next to nothing.
    ranks = 100 if method == "fork" else cases(32, 100)
    ctx = spawn(me, method, ranks)
    assert results(ctx) == list(range(ranks))
    assert [p.exitcode for p in ctx.processes] == [0] * ranks


def test_a_large_parent_is_not_copied() -> None:
    with Parent(giant) as parent:
        messages = {method: parent.heard() for method in METHODS}
        assert parent.ends() == 0
        assert parent.leaves_no_process()
    for method, (resident, ranks) in messages.items():
        assert resident
        assert len(ranks) == 4
        # A fork has it all in its address space, but not in memory of its own.
        assert all(rank["VmPeak:"] < LARGE for rank in ranks) == (method != "fork"), (method, ranks)


# --- Grandchildren ----------------------------------------------------------------------------------------


@each_method
@pytest.mark.parametrize("kind", ["fork", "popen"])
def test_a_grandchild_that_holds_everything_delays_no_join(method: str, kind: str) -> None:
    ctx = spawn(have_a_grandchild, method, 2, (kind,), join=False)
    sentinels = dict(ctx.sentinels)
    pids = [queue.get() for queue in ctx.return_queues]
    try:
        for sentinel in sentinels:
            assert wait([sentinel], PATIENCE) == [sentinel]
        ctx.processes[0].join(PATIENCE)
        assert ctx.processes[0].exitcode == 0
        with pytest.raises(NoResultError):
            ctx.error_queues[0].get()
        join(ctx)
        assert [alive(pid) for pid in pids] == [hides(kind)] * 2
        assert not any(map(alive, (p.pid for p in ctx.processes)))
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert all_gone(pids)


def hides(kind: str) -> bool:
    """Whether such a grandchild lives on: not a fork, which has the key in its environment or its memory."""
    return kind != "fork"


@each_method
@pytest.mark.parametrize("kind", ["fork", "popen"])
def test_a_killed_rank_with_a_lingering_grandchild_fails_at_once(method: str, kind: str) -> None:
    said = context_of(method).SimpleQueue()
    with pytest.raises(RankError, match="Process 0 terminated with signal SIGKILL"):
        spawn(have_a_grandchild, method, 1, (kind, said))
    pid = said.get()
    assert alive(pid) == hides(kind)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    assert all_gone([pid])


# --- Threads ----------------------------------------------------------------------------------------------


@each_method
def test_ranks_outlive_the_thread_that_spawned_them(method: str) -> None:
    mp = context_of(method)
    go, started, contexts = mp.Event(), mp.SimpleQueue(), []
    with in_thread(lambda: contexts.append(spawn(until, method, 3, (go, started), join=False))) as thread:
        tid = str(thread.native_id)
    assert eventually(lambda: tid not in os.listdir("/proc/self/task"))
    (ctx,) = contexts
    pids = {started.get() for _ in range(3)}
    assert pids == {p.pid for p in ctx.processes}
    assert not ctx.join(timeout=0.2)
    assert all(p.is_alive() for p in ctx.processes)
    go.set()
    join(ctx)
    assert set(results(ctx)) == pids


@each_method
def test_two_spawns_at_once(method: str) -> None:
    mp = context_of(method)
    go, started = mp.Event(), mp.SimpleQueue()
    one = spawn(until, method, 2, (go, started), join=False)
    two = spawn(until, method, 2, (go, started), join=False)
    pids = [p.pid for ctx in (one, two) for p in ctx.processes]
    assert {started.get() for _ in range(4)} == set(pids)
    assert not set(one.sentinels) & set(two.sentinels)
    go.set()
    join(two)
    join(one)
    assert results(one) + results(two) == pids


@each_method
def test_two_threads_spawn_and_join_at_the_same_time(method: str) -> None:
    found: list[Any] = []

    def work() -> None:
        found.extend(results(spawn(me, method, 3)) for _ in range(3))

    with in_thread(work), in_thread(work):
        pass
    assert found == [[0, 1, 2]] * 6


@each_method
def test_join_keeps_its_timeout_while_another_thread_joins(method: str) -> None:
    mp = context_of(method)
    go, started = mp.Event(), mp.SimpleQueue()
    ctx = spawn(until, method, 2, (go, started), join=False)
    for _ in range(2):
        started.get()
    inside, ended = threading.Event(), None

    def wait_for_ever() -> None:
        inside.set()
        join(ctx)

    with in_thread(wait_for_ever):
        assert inside.wait(PATIENCE)
        time.sleep(0.3)  # No way to see from outside that the thread waits.
        end_it_all = threading.Timer(5, go.set)
        end_it_all.start()
        ended = ctx.join(timeout=0.1)
        in_time = not go.is_set()
        end_it_all.cancel()
        go.set()
    end_it_all.join()
    assert (ended, in_time) == (False, True)
    join(ctx)


# --- Ends -------------------------------------------------------------------------------------------------


@each_method
def test_ranks_that_ignore_sigterm_are_killed_after_the_grace_with_a_message(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ready = context_of(method).SimpleQueue()
    ctx = spawn(fail_beside_the_deaf, method, 3, (ready,), join=False, grace_period=1.5)
    began = time.monotonic()
    with pytest.raises(RankError, match="rank 0 has had enough") as caught:
        join(ctx)
    assert caught.value.rank == 0
    assert 1.4 < time.monotonic() - began < PATIENCE
    assert [p.exitcode for p in ctx.processes] == [1, -9, -9]
    assert not any(alive(p.pid) for p in ctx.processes)
    assert "rank(s) 1, 2 to stop" in capsys.readouterr().err


@each_method
def test_a_stopped_rank_is_killed_too(method: str) -> None:
    ready = context_of(method).SimpleQueue()
    ctx = spawn(fail_beside_the_stopped, method, 2, (ready,), join=False, grace_period=0.3)
    with pytest.raises(RankError, match="rank 0 has had enough"):
        join(ctx)
    assert ctx.processes[1].exitcode in (-9, -15)
    assert not alive(ctx.processes[1].pid)


@each_method
def test_an_end_by_a_real_time_signal_has_its_number(method: str) -> None:
    with pytest.raises(RankError) as caught:
        spawn(exit_by_rank, method, 1, (-37,))
    assert str(caught.value) == "Process 0 terminated with signal 37."
    assert caught.value.exitcode == -37


@each("method", METHODS)
@pytest.mark.parametrize("how", ["thief", "ignored"])
def test_exit_codes_are_right_though_another_thread_reaps(method: str, how: str) -> None:
    with Parent(robbed, method, how) as parent:
        for codes, error in [*ROBBED.items()] * (5 if method == "fork" else 1):
            assert parent.heard() == [list(codes), error]
        assert parent.ends() == 0
        assert parent.leaves_no_process()
