"""Ranks, and parents in processes of their own, that share objects. Imports no pytest."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

from stress import (
    PATIENCE,
    context_of,
    endpoint,
    me,
    results,
    sleep_for_ever,
    sleeper,
    spawn,
    tell,
)

RANKS = 3


def count(lock: Any, number: Any) -> None:
    for _ in range(200):
        with lock:
            number.value += 1


def put(queue: Any) -> None:
    queue.put((me(), "x" * 100_000))


def meet(barrier: Any, event: Any, semaphore: Any, condition: Any) -> bool:
    barrier.wait(PATIENCE)
    with condition:
        condition.notify_all()
    with semaphore:
        return bool(event.wait(PATIENCE))


def answer(ends: list[Connection]) -> None:
    end = ends[me()]
    end.send(("rank", me(), end.recv()))


def write(memory: SharedMemory, array: Any) -> None:
    memory.buf[me()] = 40 + me()
    array[me()] = me() / 2
    memory.close()


def exit_at_once(method: str, daemon: bool, path: str) -> None:
    """Starts ranks, hears that they live, and comes to its end without joining them."""
    ready = context_of(method).SimpleQueue()
    spawn(wait_or_write, method, 2, (daemon, ready, path), join=False, daemon=daemon)
    tell([ready.get() for _ in range(2)])


def wait_or_write(daemon: bool, ready: Any, path: str) -> None:
    ready.put(os.getpid())
    if daemon:
        sleep_for_ever()
    time.sleep(0.5)
    Path(f"{path}.{me()}").write_text("to the end")


def spawn_inside(method: str, depth: int) -> list[Any]:
    os.environ.pop("PADDLE_TRAINERS_NUM")
    if depth == 0:
        return [os.getpid()]
    return [os.getpid(), *results(spawn(spawn_inside, method, 2, (method, depth - 1)))]


def spawn_sleepers(method: str) -> None:
    os.environ.pop("PADDLE_TRAINERS_NUM")
    spawn(sleeper, method, 2, ("odd",), join=False)
    sleep_for_ever()


def nest(method: str) -> None:
    spawn(spawn_sleepers, method, 2, (method,))


def serve(go: Any, started: Any) -> str:
    """Binds as the stores of the frameworks do."""
    with contextlib.closing(socket.socket()) as server:
        if me() == 0:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", int(endpoint().rpartition(":")[2])))
            server.listen()
        started.put(endpoint())
        assert go.wait(PATIENCE)
    return endpoint()


def leave_a_sleeper() -> tuple[int, int]:
    if (pid := os.fork()) == 0:
        sleep_for_ever()
    return int(endpoint().rpartition(":")[2]), pid


def fail(_: Any) -> None:
    raise RuntimeError(endpoint())
