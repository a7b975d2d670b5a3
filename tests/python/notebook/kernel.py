"""A notebook's kernel: a real one, driven as Jupyter drives it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager
from launching import LIMIT, environment

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Shown:
    """What stands below a cell that has been run."""

    stdout: str = ""
    stderr: str = ""
    error: str = ""
    result: str = ""


class Notebook:
    """A kernel that runs in a folder."""

    def __init__(self, folder: Path) -> None:
        # Sockets in files, so that no other process takes a port meanwhile; their paths have to be short.
        self._own = tempfile.TemporaryDirectory(prefix="kernel-")
        places = dict.fromkeys(("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"), self._own.name)
        self._manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{self._own.name}/socket")
        self._manager.connection_file = f"{self._own.name}/kernel.json"
        # Where it finds pytest's variable, the kernel does not capture the output of child processes.
        env = environment(CUDA_VISIBLE_DEVICES="", PYTEST_CURRENT_TEST=None, **places)
        self._manager.start_kernel(cwd=str(folder), env=env)
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=LIMIT)

    def run(
        self, cell: str, seen: Callable[[Shown], Any] = lambda shown: None, limit: float = LIMIT
    ) -> Shown:
        """Runs a cell to its end; calls ``seen`` whenever something new is shown."""
        request, shown = self._client.execute(cell), Shown()
        while True:
            message = self._client.get_iopub_msg(timeout=limit)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                setattr(shown, content["name"], getattr(shown, content["name"]) + content["text"])
            elif message["msg_type"] == "error":
                shown.error = COLOURS.sub("", "\n".join(content["traceback"]))
            elif message["msg_type"] == "execute_result":
                shown.result = content["data"]["text/plain"]
            elif content.get("execution_state") == "idle":
                return shown
            seen(shown)

    def interrupt(self) -> None:
        """Presses the stop button."""
        self._manager.interrupt_kernel()

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._own.cleanup()


@pytest.fixture(name="notebook", scope="module")
def notebook_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    started = Notebook(tmp_path_factory.mktemp("notebook"))
    try:
        yield started
    finally:
        started.close()
