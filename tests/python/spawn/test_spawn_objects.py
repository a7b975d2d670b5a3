"""Objects that ranks and their parent share: multiprocessing's objects as arguments, the processes as
multiprocessing processes, daemons, spawns inside a rank, and the ports that ranks are given."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import signal
from multiprocessing import active_children
from multiprocessing.connection import wait
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest
from effort import each
from object_ranks import (
    RANKS,
    answer,
    count,
    exit_at_once,
    fail,
    leave_a_sleeper,
    meet,
    nest,
    put,
    serve,
    spawn_inside,
    write,
)
from rlaunch import RankError
from stress import (
    METHODS,
    PATIENCE,
    Parent,
    alive,
    all_gone,
    context_of,
    eventually,
    join,
    plain_bind,
    results,
    sleep_for_ever,
    spawn,
)

pytest_plugins = ("footprint",)
pytestmark = pytest.mark.usefixtures("leaves_nothing")
each_method = each("method", METHODS)


# --- Objects of multiprocessing ---------------------------------------------------------------------------


@each_method
def test_lock_and_value(method: str) -> None:
    mp = context_of(method)
    lock, number = mp.Lock(), mp.Value("i", 0, lock=False)
    spawn(count, method, RANKS, (lock, number))
    assert number.value == 200 * RANKS


@each_method
@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue", "JoinableQueue"])
def test_queues(method: str, kind: str) -> None:
    queue = getattr(context_of(method), kind)()
    ctx = spawn(put, method, RANKS, (queue,), join=False)
    got = sorted(queue.get() for _ in range(RANKS))
    join(ctx)
    assert got == [(i, "x" * 100_000) for i in range(RANKS)]
    queue.close()


@each_method
def test_barrier_event_semaphore_condition(method: str) -> None:
    mp = context_of(method)
    things = barrier, event, _, _ = mp.Barrier(RANKS + 1), mp.Event(), mp.BoundedSemaphore(2), mp.Condition()
    ctx = spawn(meet, method, RANKS, things, join=False)
    barrier.wait(PATIENCE)
    event.set()
    join(ctx)
    assert results(ctx) == [True] * RANKS


@each_method
def test_pipes(method: str) -> None:
    pairs = [context_of(method).Pipe() for _ in range(RANKS)]
    ctx = spawn(answer, method, RANKS, ([theirs for _, theirs in pairs],), join=False)
    for i, (ours, _) in enumerate(pairs):
        ours.send(i * i)
        assert ours.recv() == ("rank", i, i * i)
    join(ctx)


@each_method
def test_shared_memory_and_array(method: str) -> None:
    memory, array = SharedMemory(create=True, size=4096), context_of(method).Array("d", RANKS)
    try:
        spawn(write, method, RANKS, (memory, array))
        assert bytes(memory.buf[:RANKS]) == bytes([40, 41, 42])
        assert array[:] == [0.0, 0.5, 1.0]
    finally:
        memory.close()
        memory.unlink()


# --- Processes of multiprocessing -------------------------------------------------------------------------


@each_method
def test_the_ranks_are_multiprocessing_processes(method: str) -> None:
    ctx = spawn(sleep_for_ever, method, RANKS, join=False)
    assert all(isinstance(p, multiprocessing.process.BaseProcess) for p in ctx.processes)
    assert {p.pid for p in active_children()} == {p.pid for p in ctx.processes}
    assert list(ctx.sentinels) == [p.sentinel for p in ctx.processes]
    assert all(p.is_alive() and p.exitcode is None and not p.daemon for p in ctx.processes)
    one, two, three = ctx.processes
    one.join(0.05)
    assert one.exitcode is None
    assert wait(list(ctx.sentinels), 0) == []
    with pytest.raises(ValueError, match="while it is still running"):
        one.close()

    one.terminate()
    two.kill()
    for process, code in ((one, -signal.SIGTERM), (two, -signal.SIGKILL)):
        assert wait([process.sentinel], PATIENCE) == [process.sentinel]
        process.join(PATIENCE)
        assert (process.is_alive(), process.exitcode) == (False, code)
    assert {p.pid for p in active_children()} == {three.pid}
    assert three.is_alive()

    with pytest.raises(RankError, match=r"^Process [01] terminated with signal SIG(TERM|KILL)\.$"):
        join(ctx)
    assert [p.exitcode for p in ctx.processes] == [-15, -9, -15]
    assert active_children() == []
    for process in ctx.processes:
        process.close()
    with pytest.raises(ValueError, match="closed"):
        one.is_alive()


@each_method
@pytest.mark.parametrize("daemon", [True, False])
def test_the_end_of_the_parent_ends_daemons_and_waits_for_others(
    method: str, daemon: bool, tmp_path: Path
) -> None:
    with Parent(exit_at_once, method, daemon, str(tmp_path / "told")) as parent:
        pids = parent.heard()
        assert parent.ends() == 0
        assert [pid for pid in pids if alive(pid)] == []
        assert parent.leaves_no_process()
    assert len(list(tmp_path.iterdir())) == (0 if daemon else 2)


@each_method
def test_a_rank_may_spawn(method: str) -> None:
    ctx = spawn(spawn_inside, method, 2, (method, 2))
    pids = str(results(ctx)).replace("[", "").replace("]", "").split(", ")
    assert len(set(pids)) == len(pids) == 2 * 7
    assert eventually(lambda: not any(alive(int(pid)) for pid in pids))


@each_method
def test_ranks_of_a_killed_rank_die_with_it(method: str) -> None:
    with Parent(nest, method) as parent:
        for _ in range(4):
            parent.heard()
        parent.process.kill()
        parent.ends()
        assert parent.leaves_no_process()


# --- Ports ------------------------------------------------------------------------------------------------


@each_method
def test_endpoints_are_held_while_the_ranks_live_and_free_afterwards(method: str) -> None:
    mp = context_of(method)
    go, started = mp.Event(), mp.SimpleQueue()
    ctx = spawn(serve, method, RANKS, (go, started), join=False)
    ports = [int(started.get().rpartition(":")[2]) for _ in range(RANKS)]
    assert len(set(ports)) == RANKS
    for port in ports:
        with pytest.raises(OSError, match="Address already in use") as caught:
            plain_bind(port)
        assert caught.value.errno == errno.EADDRINUSE
    go.set()
    join(ctx)
    assert sorted(int(e.rpartition(":")[2]) for e in results(ctx)) == sorted(ports)
    for port in ports:
        plain_bind(port)


@each_method
def test_endpoints_stay_held_without_a_reference_to_the_context(method: str) -> None:
    mp = context_of(method)
    go, started = mp.Event(), mp.SimpleQueue()
    spawn(serve, method, RANKS, (go, started), join=False)
    ports = [int(started.get().rpartition(":")[2]) for _ in range(RANKS)]
    free = []
    for port in ports:
        with contextlib.suppress(OSError):
            plain_bind(port)
            free.append(port)
    go.set()
    for process in active_children():
        process.join(PATIENCE)
    assert active_children() == []
    assert free == []


@each_method
def test_endpoints_are_free_though_a_grandchild_lives_on(method: str) -> None:
    ctx = spawn(leave_a_sleeper, method, RANKS)
    ports, pids = zip(*results(ctx), strict=True)
    held = []
    for port in ports:
        try:
            plain_bind(port)
        except OSError:
            held.append(port)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # Swept, and reaped by the process that adopted it.
            os.kill(pid, signal.SIGKILL)
    assert all_gone(pids)
    assert held == []


@each_method
def test_endpoints_are_free_after_a_failure(method: str) -> None:
    with pytest.raises(RankError) as caught:
        spawn(fail, method, RANKS, (0,))
    assert caught.value.traceback is not None
    plain_bind(int(caught.value.traceback.strip().rpartition(":")[2]))
