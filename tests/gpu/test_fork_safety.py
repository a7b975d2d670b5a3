"""Preload servers and CUDA: a fork cannot use a driver that its parent initialised."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cuda
import pytest
import rlaunch
from conftest import HERE


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(HERE))
    return tmp_path


def uuids_of_rank() -> list[str]:
    driver = cuda.Driver()
    driver.use()
    driver.fill(driver.allocate(1 << 20), 1 << 20)
    return driver.uuids()


def spawn(preload: str) -> list[list[str]]:
    try:
        return rlaunch.spawn(
            uuids_of_rank, (), 2, start_method="zygote", preload=preload, backend="gloo"
        ).results()
    finally:
        rlaunch.end_zygotes()


FORKS = """
import os, sys
sys.path.insert(0, sys.argv[1])
import cuda
driver = cuda.Driver()
driver.use()
if os.fork() == 0:
    driver.use()
    driver.allocate(1 << 20)
    print("used")
"""


def test_a_fork_cannot_use_what_its_parent_initialised() -> None:
    """The reason for all this: the driver refuses (CUDA_ERROR_NOT_INITIALIZED), crashes or hangs."""
    command = [sys.executable, "-c", FORKS, str(HERE)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, start_new_session=True) as process:
        try:
            out, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, _ = process.communicate()
    assert b"used" not in out


def test_a_module_that_initialises_cuda_is_not_preloaded(
    folder: Path, seen: Callable[[str, str], None]
) -> None:
    (folder / "initialises.py").write_text("import cuda\ncuda.Driver().use()\n")
    with pytest.raises(
        rlaunch.ZygoteError, match=r"has initialised CUDA \(/dev/nvidia\S* is open\)"
    ) as caught:
        spawn("initialises")
    seen("Preload of a module that initialises CUDA", f"refused: {str(caught.value).splitlines()[0]}")


def test_a_module_that_only_loads_the_driver_is_preloaded(
    folder: Path, uuids: list[str], seen: Callable[[str, str], None]
) -> None:
    (folder / "loads.py").write_text("import cuda\ncuda.Driver()\n")
    assert spawn("loads") == [uuids, uuids]
    seen("Preload of a module that loads the driver's library", "two forked ranks use the GPU")
