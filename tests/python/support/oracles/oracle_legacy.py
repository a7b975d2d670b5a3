"""The ranks that Paddle's legacy launcher would start: only processes, devices and host name are made up."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any
from unittest import mock

# The address that the real one uses for this machine.
OWN_ADDRESS = "198.51.100.77"


def etcd3(hosts: list[str]) -> types.ModuleType:
    """The module of that name, for a server that shows these nodes to all clients, and events to none."""
    kept = {"/nodes/": [(host.encode(), None) for host in hosts]}
    server = mock.Mock(get_prefix=lambda prefix: kept["/nodes/"], get=lambda key: (b"0", None))
    module = types.ModuleType("etcd3")
    module.client = lambda **where: server  # type: ignore[attr-defined]
    return module


def launched(asked: dict[str, Any]) -> dict[str, Any]:
    """``argv``: its options; ``build``: Paddle's devices; ``count``: how many devices it sees;
    ``hosts``: the nodes that etcd shows to an elastic job."""
    from paddle.distributed.fleet import launch, launch_utils

    started: list[dict[str, str]] = []

    def popen(command: list[str], env: dict[str, str], **options: Any) -> types.SimpleNamespace:
        started.append(dict(env))
        return types.SimpleNamespace(pid=4, poll=lambda: 0)

    core = launch.framework.core
    printed, said = io.StringIO(), io.StringIO()
    log = logging.StreamHandler(said)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(printed))
        stack.enter_context(mock.patch.dict(os.environ, asked["environ"], clear=True))
        for owner, name, value in (
            (core, "is_compiled_with_cuda", mock.Mock(return_value=asked["build"] == "gpu")),
            (core, "is_compiled_with_xpu", mock.Mock(return_value=asked["build"] == "xpu")),
            (core, "get_cuda_device_count", mock.Mock(return_value=asked["count"])),
            (core, "get_xpu_device_count", mock.Mock(return_value=asked["count"])),
            (launch_utils.subprocess, "Popen", popen),
            (launch, "get_host_name_ip", lambda: ("here", OWN_ADDRESS)),
            (launch_utils, "get_host_name_ip", lambda: ("here", OWN_ADDRESS)),
            (launch, "get_logger", lambda: launch_utils.logger),
        ):
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        stack.enter_context(mock.patch.dict(sys.modules, {"etcd3": etcd3(asked.get("hosts", []))}))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(mock.patch.object(tempfile, "tempdir", str(folder)))
        argv = ["launch", f"--log_dir={folder}/log", *asked["argv"], "train.py"]
        stack.enter_context(mock.patch.object(sys, "argv", argv))
        launch_utils.logger.addHandler(log)
        stack.callback(launch_utils.logger.removeHandler, log)
        try:
            launch.launch()
        # Its parser and its watch end the program.
        except (Exception, SystemExit) as error:
            # An elastic job has one that ends well, too.
            if not (isinstance(error, SystemExit) and error.code == 0):
                return {"error": [type(error).__name__, str(error)], "said": said.getvalue()}
        inherited = asked["environ"]
        rows = [{n: v for n, v in env.items() if inherited.get(n) != v} for env in started]
        removed = [sorted(set(inherited) - set(env)) for env in started]
        logs = sorted(path.name for path in (folder / "log").iterdir())
        endpoints = (folder / "log" / "endpoints.log").read_text()
    return {
        "rows": rows,
        "removed": removed,
        "logs": logs,
        "endpoints": endpoints,
        "printed": printed.getvalue(),
        "said": said.getvalue(),
    }
