"""The variables that Paddle's two launchers would set in a parameter-server job; nothing is started."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def called(program: str, argv: list[str], environ: dict[str, str]) -> Iterator[str]:
    """As if this process were the launcher; yields a folder for its logs."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(mock.patch.dict(os.environ, environ, clear=True))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(
            mock.patch.object(sys, "argv", [program, f"--log_dir={folder}", *argv, "train.py"])
        )
        yield folder


def newer(asked: dict[str, Any]) -> dict[str, Any]:
    """``paddle.distributed.launch``: each process's whole environment, and its log's name."""
    from paddle.distributed.launch.context import Context
    from paddle.distributed.launch.controllers import init

    with called("launch", ["--enable_gpu_log=0", *asked["argv"]], asked["environ"]):
        controller = init(Context())
        controller.build_job()
        controller.build_pod()
        containers = controller.pod.containers
        rows = [[os.path.basename(one._out), {**controller.ctx.envs, **one._env}] for one in containers]
        return {"mode": type(controller).__name__, "rows": rows}


def legacy(asked: dict[str, Any]) -> dict[str, Any]:
    """The same of ``paddle.distributed.fleet.launch``."""
    from paddle.distributed.fleet import launch

    rows: list[Any] = []

    def popen(command: list[str], env: Any = None, stdout: Any = None, stderr: Any = None) -> mock.Mock:
        rows.append([stdout and os.path.basename(stdout.name), dict(os.environ if env is None else env)])
        return mock.Mock()

    with called("fleet.launch", asked["argv"], asked["environ"]):
        with mock.patch.object(subprocess, "Popen", popen):
            try:
                launch.launch()
            except AssertionError as error:
                return {"error": str(error)}
        return {"rows": rows}


ORACLES = {"newer ps": newer, "legacy ps": legacy}
