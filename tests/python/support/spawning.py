"""Fixtures of the spawn tests: a clean environment, and ranks that are gone afterwards."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import psutil
import pytest
import rlaunch
from launching import gone, runs
from processes import await_exit, children
from rlaunch import RankError

METHODS = ("spawn", "fork", "forkserver")
JOB_VARIABLES = ("PADDLE_", "FLAGS_", "TRAINER_PORTS_NUM", "POD_IP", "RLAUNCH_")


@pytest.fixture(name="nothing_left")
def nothing_left_fixture(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No GPU to be seen, no job around us; and no process remains."""
    for name in [n for n in os.environ if n.startswith(JOB_VARIABLES)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    before = children()
    yield
    # multiprocessing's own helpers live as long as the program otherwise.
    rlaunch.end_zygotes()
    forkserver._forkserver._stop()
    resource_tracker._resource_tracker._stop()
    deadline = time.monotonic() + 10
    while left := children() - before:
        assert time.monotonic() < deadline, left
        await_exit(min(left), deadline)


@pytest.fixture(name="modules")
def modules_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to import from; no zygote that has imported from it is left."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    rlaunch.end_zygotes()


@pytest.fixture(name="start")
def start_fixture() -> Iterator[Callable[..., Any]]:
    """Starts ranks without joining them; those that are left at the end are killed."""
    contexts = []

    def go(func: Any, *args: Any, n: int = 1, method: str = "spawn", **options: Any) -> Any:
        contexts.append(rlaunch.spawn(func, args, n, join=False, start_method=method, **options))
        return contexts[-1]

    yield go
    for process in [p for context in contexts for p in context.processes]:
        process.kill()
        process.join()


def results(context: Any) -> list[Any]:
    return [queue.get() for queue in context.return_queues]


def failure(func: Any, *args: Any, n: int = 1, method: str = "spawn", **options: Any) -> RankError:
    with pytest.raises(RankError) as caught:
        rlaunch.spawn(func, args, n, start_method=method, **options)
    return caught.value


def survivors(processes: list[psutil.Process], seconds: float = 20) -> list[psutil.Process]:
    """Those that have not ended by themselves after so long."""
    deadline = time.monotonic() + seconds
    while (left := [p for p in processes if not gone(p)]) and time.monotonic() < deadline:
        time.sleep(0.005)
    return left


def kill_if_alive(pid_file: Path) -> None:
    pid = int(pid_file.read_text())
    if runs(pid, "python"):
        os.kill(pid, signal.SIGKILL)
