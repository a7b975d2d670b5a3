"""Preload servers and CUDA: a fork cannot use a driver that its parent initialised."""

from __future__ import annotations

import os
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


def test_a_fork_cannot_use_what_its_parent_initialised() -> None:
    """The reason for all this: the driver's own answer."""
    answer, reply = os.pipe()
    child = os.fork()
    if child == 0:
        driver = cuda.Driver()
        driver.use()
        inner = os.fork()
        if inner == 0:
            try:
                driver.use()
                os.write(reply, b"used")
            except cuda.CudaError as error:
                os.write(reply, str(error.status).encode())
            os._exit(0)
        os.waitpid(inner, 0)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(reply)
    with os.fdopen(answer, "rb") as file:
        assert file.read() == str(cuda.NOT_INITIALIZED).encode()


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
