"""Asks the real paddle.distributed for a rank's identity, in a process with a given environment."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

from preloaded import python

Answer = dict[str, Any]


def described(error: BaseException) -> Answer:
    return {"error": [cls.__name__ for cls in type(error).__mro__], "text": str(error)}


def valued(read: Callable[[], Any]) -> Answer:
    try:
        value = read()
    except Exception as error:
        return described(error)
    return {"type": type(value).__name__, "value": value}


class RealPaddle:
    """The process; one line of JSON for each question, and one back."""

    def __init__(self) -> None:
        command = [*python("paddle"), __file__]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> RealPaddle:
        self.kinds = self._read()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.communicate()

    def _read(self) -> Answer:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process with the real Paddle ended with {self.process.wait()}"
        answer: Answer = json.loads(line)
        return answer

    def ask(self, env: dict[str, str], build: str = "cpu", **more: Any) -> Answer:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"env": env, "build": build, **more}) + "\n")
        self.process.stdin.flush()
        return self._read()


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import paddle.distributed as dist
    from paddle.distributed import backup_env, parallel

    names = [name for name in dir(dist.ParallelEnv) if not name.startswith("_")]

    def answer(question: dict[str, Any]) -> Answer:
        os.environ.clear()
        os.environ.update(question["env"])
        backup_env.g_backup_envs = parallel._global_parallel_env = None
        build = question["build"]
        parallel.core.is_compiled_with_cuda = lambda: build == "gpu"
        parallel.core.is_compiled_with_xpu = lambda: build == "xpu"
        parallel.get_all_custom_device_type = lambda: [build] if build == "npu" else []
        group = [dist.collective.Group(*question["group"])] if "group" in question else []
        functions = {f.__name__: valued(partial(f, *group)) for f in (dist.get_rank, dist.get_world_size)}
        try:
            env = dist.ParallelEnv()
        except Exception as error:
            return {"constructed": described(error), "properties": {}, "functions": functions}
        properties = {name: valued(partial(getattr, env, name)) for name in names}
        return {"constructed": None, "properties": properties, "functions": functions}

    kinds = {name: type(inspect.getattr_static(dist.ParallelEnv, name)).__name__ for name in names}
    print(json.dumps(kinds), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    serve()
