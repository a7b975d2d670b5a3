"""Asks ``_get_subprocess_env_list`` of Paddle, in a process of its own, and that of rlaunch."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import oracle_legacy
import rlaunch
from oracle_ps import ORACLES
from preloaded import python
from rlaunch._spawn.plan import options as spawn_options
from rlaunch._spawn.plan import paddle_devices
from rlaunch._spawn.plan import ranks as spawn_plan

# rlaunch's functions by their names in paddle.distributed.spawn.
ours = types.SimpleNamespace(
    _get_subprocess_env_list=spawn_plan.get_environs,
    _options_valid_check=spawn_options.check_option_names,
    _get_default_nprocs=paddle_devices.default_nprocs,
    _get_default_backend=paddle_devices.default_backend,
)

# Of what is drawn at random; the report's header shows it, and setting the variable draws the same again.
SEED = int(os.environ.get("RLAUNCH_SEED") or random.SystemRandom().randrange(2**32))

Question = dict[str, Any]
Answer = dict[str, Any]


def question(nprocs: Any, options: dict[str, Any], environ: dict[str, str], devices: Any = None) -> Question:
    """``devices``: how many of each kind Paddle is made to believe in; None: it knows better."""
    return {"nprocs": nprocs, "options": options, "environ": environ, "devices": devices}


def ask(module: Any, asked: Question) -> Answer:
    """All that can be seen of one call; a question without ``nprocs`` is about the options' names."""
    before, printed, answer = dict(os.environ), io.StringIO(), {}
    options = dict(asked["options"])
    os.environ.clear()
    os.environ.update(asked["environ"])
    with contextlib.ExitStack() as stack:
        said = stack.enter_context(warnings.catch_warnings(record=True))
        stack.enter_context(contextlib.redirect_stdout(printed))
        logged = stack.enter_context(logged_warnings())
        stack.enter_context(believing_to_be(asked.get("here")))
        stack.enter_context(paddle_in_use())
        warnings.simplefilter("always")
        try:
            if "nprocs" in asked:
                rows = module._get_subprocess_env_list(asked["nprocs"], options)
                answer["rows"] = [list(map(list, row.items())) for row in rows]
            else:
                module._options_valid_check(options)
        except Exception as error:
            answer["error"] = [[cls.__name__ for cls in type(error).__mro__], str(error)]
        finally:
            os.environ.clear()
            os.environ.update(before)
    answer["options"] = list(map(list, options.items()))
    answer["warnings"] = [[w.category.__name__, str(w.message)] for w in said]
    answer["logged"] = logged
    answer["printed"] = printed.getvalue()
    return answer


@contextlib.contextmanager
def logged_warnings() -> Iterator[list[str]]:
    """The records that reach the root logger meanwhile: Paddle's own, or rlaunch's in the end."""
    texts: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    root = logging.getLogger()
    with mock.patch.object(root, "handlers", [handler]):
        yield texts


@contextlib.contextmanager
def paddle_in_use() -> Iterator[None]:
    """As in any program that calls Paddle's own: ``rlaunch.spawn`` warns of the CPU only such programs."""
    stub = None if "paddle" in sys.modules else types.ModuleType("paddle")
    if stub is not None:
        sys.modules["paddle"] = stub
    try:
        yield
    finally:
        if stub is not None:
            del sys.modules["paddle"]


@contextlib.contextmanager
def believing_to_be(here: list[str | None] | None) -> Iterator[None]:
    """``here``: the address of this machine's name (None: it has none), and those of its interfaces."""
    if here is None:
        yield
        return
    by_name = here[0]
    look_up = mock.Mock(return_value=by_name) if by_name else mock.Mock(side_effect=socket.gaierror)
    with (
        mock.patch.object(socket, "gethostname", return_value="node-x"),
        mock.patch.object(socket, "gethostbyname", look_up),
        mock.patch.object(rlaunch._lib, "addresses", return_value=here[1:]),
    ):
        yield


def launched(asked: Question) -> Answer:
    """The variables that Paddle's launcher would set; ``argv``: its options, and more nodes if any."""
    from paddle.distributed.launch.context import Context, device
    from paddle.distributed.launch.controllers.collective import CollectiveController

    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(mock.patch.dict(os.environ, asked["environ"], clear=True))
        for owner, name, value in (
            (device, "get_all_custom_device_type", asked["custom"]),
            # Else CUDA's list would be that build's.
            (device.core, "is_compiled_with_xpu", False),
        ):
            stack.enter_context(mock.patch.object(owner, name, return_value=value))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        # With --ips there is no rendezvous, and nothing is started.
        own = [f"--log_dir={folder}", "--enable_gpu_log=0"]
        if not any(option.startswith("--ips") for option in asked["argv"]):
            own += ["--ips=127.0.0.1", "--start_port=6070"]
        stack.enter_context(mock.patch.object(sys, "argv", ["launch", *own, *asked["argv"], "train.py"]))
        try:
            controller = CollectiveController(Context(enable_plugin=asked.get("plugins", False)))
            controller.build_job()
            controller.build_pod()
        except (ValueError, IndexError) as error:
            return {"error": [type(error).__name__, str(error)]}
        inherited = asked["environ"]
        variables = [dict(rank._env) for rank in controller.pod.containers]
        return {"rows": [{n: v for n, v in env.items() if inherited.get(n) != v} for env in variables]}


class Oracle:
    """One process that has imported Paddle."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        self._process = subprocess.Popen([*python("paddle"), __file__], text=True, **pipes)

    def ask(self, asked: Question, *whom: str) -> list[Answer]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({**asked, "whom": whom}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, f"ended with {self._process.wait()}: {self._read_errors()}"
        answers: list[Answer] = json.loads(line)
        return answers

    def _read_errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-4000:]

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0, self._read_errors()
        self._errors.close()


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import paddle.distributed  # noqa: F401
    from paddle.base import core

    modules = {"paddle": sys.modules["paddle.distributed.spawn"], "rlaunch": ours}
    for line in sys.stdin:
        asked = json.loads(line)
        with contextlib.ExitStack() as stack:
            count = mock.Mock(return_value=asked.get("devices"))
            believed = {}
            if asked.get("devices") is not None:
                for kind in ("cuda", "xpu"):
                    believed[f"get_{kind}_device_count"] = count
                    believed[f"is_compiled_with_{kind}"] = mock.Mock(return_value=True)
                believed["get_custom_device_count"] = count
                believed["get_all_custom_device_type"] = mock.Mock(return_value=["npu", "other"])
            for name, fake in believed.items():
                stack.enter_context(mock.patch.object(core, name, fake, create=True))
            asked_of = {"launch": launched, "legacy": oracle_legacy.launched, **ORACLES}
            variables = [
                asked_of[it](asked) if it in asked_of else ask(modules[it], asked) for it in asked["whom"]
            ]
        print(json.dumps(variables), file=answers, flush=True)


def paddle_with(count: int, device: str) -> types.ModuleType:
    """A Paddle with this many devices, as far as rlaunch looks at it."""
    paddle = types.ModuleType("paddle")
    number = types.SimpleNamespace(device_count=lambda: count)
    kind = device.partition(":")[0]
    custom = kind not in ("cpu", "gpu", "xpu", "tpu")
    paddle.device = types.SimpleNamespace(
        get_device=lambda: device,
        cuda=number,
        xpu=number,
        get_available_custom_device=lambda: [device] if custom else [],
        get_all_custom_device_type=lambda: [kind] if custom else [],
    )
    paddle.base = types.SimpleNamespace(core=types.SimpleNamespace(get_custom_device_count=lambda _: count))
    paddle.is_compiled_with_cuda = paddle.is_compiled_with_xpu = lambda: True
    return paddle


@contextlib.contextmanager
def imported(paddle: types.ModuleType | None) -> Iterator[None]:
    """The Paddle that this process has imported; None: none, and the machine has no GPU."""
    no_gpu = mock.patch.object(rlaunch._lib, "devices_seen", return_value=("gpu", 0))
    with mock.patch.dict(sys.modules), no_gpu:
        sys.modules.pop("paddle", None)
        if paddle is not None:
            sys.modules["paddle"] = paddle
        yield


def ask_here(asked: Question, paddle: types.ModuleType | None = None) -> Answer:
    with imported(paddle):
        return ask(ours, asked)


def without_ports(answer: Answer, fixed: int | None) -> Answer:
    """Free ports as p0, p1, ...: one of its own for each rank. Fixed ones are checked, and stay."""
    if "rows" not in answer:
        return answer
    rows = [dict(row) for row in answer["rows"]]
    ports = [int(row["PADDLE_CURRENT_ENDPOINT"].rpartition(":")[2]) for row in rows]
    assert all(0 < port < 65536 for port in ports)
    assert len(set(ports)) == len(ports), f"a port given to two ranks: {ports}"
    assert fixed is None or ports == [fixed + rank for rank in range(len(ports))]
    names = {str(port): f"p{rank}" if fixed is None else str(port) for rank, port in enumerate(ports)}

    def renamed(name: str, value: str) -> str:
        return re.sub(r"(?<=:)\d+(?=,|$)", lambda m: names[m[0]], value) if "ENDPOINT" in name else value

    return {**answer, "rows": [[[name, renamed(name, value)] for name, value in row.items()] for row in rows]}


def settled(asked: Question, *askers: Callable[[Question], list[Answer]]) -> list[Answer]:
    """Answers, none of which is that a port is busy: another program's is free again before long."""
    deadline = time.monotonic() + 30
    while True:
        answers = [answer for asker in askers for answer in asker(asked)]
        texts = [answer.get("error", ["", ""])[1] for answer in answers]
        if time.monotonic() > deadline or not any(re.match(r"port \d+ is in use", text) for text in texts):
            return answers
        time.sleep(0.05)


if __name__ == "__main__":
    serve()
