"""Real torchrun, for many command lines: each in a child forked from one process that has imported torch.

Reads a list of questions as JSON from stdin (``name``, ``argv``, ``env``, ``cwd``) and writes a line of JSON
with a name and an exit status, negative for a signal, as each ends. What a line writes is in ``out`` and
``err`` in its ``cwd``.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import signal
import sys
import tempfile
import traceback
from typing import Any, NoReturn

# Seconds: a line that hangs ends by SIGALRM.
LIMIT = 150


def main(width: int) -> None:
    answers = os.fdopen(os.dup(1), "w")
    asked = json.load(sys.stdin)
    import torch.distributed.run  # noqa: F401

    # Each event asks for the name of its caller. Torch never reads the callers' sources; to look for them
    # among all modules costs more than the rest of a launch.
    inspect.stack = functools.partial(inspect.stack, 0)
    inspect.getsourcefile = inspect.getfile  # type: ignore[assignment]
    running: dict[int, str] = {}
    while asked or running:
        while asked and len(running) < width:
            question = asked.pop(0)
            pid = os.fork()
            if pid == 0:
                be_torchrun(question)
            running[pid] = question["name"]
        pid, status = os.wait()
        answer = {"name": running.pop(pid), "status": os.waitstatus_to_exitcode(status)}
        print(json.dumps(answer), file=answers, flush=True)


def be_torchrun(question: dict[str, Any]) -> NoReturn:
    """Does what ``python -m torch.distributed.run`` does once it has imported torch, and ends as it ends."""
    from torch.distributed import run

    status = 1
    try:
        os.setsid()
        os.chdir(question["cwd"])
        os.environ.clear()
        os.environ.update(question["env"])
        tempfile.tempdir = None
        for descriptor, name in ((0, os.devnull), (1, "out"), (2, "err")):
            flags = os.O_RDWR | (0 if descriptor == 0 else os.O_CREAT)
            os.dup2(os.open(name, flags, 0o600), descriptor)
        with open("launcher.pid", "w") as file:
            file.write(str(os.getpid()))
        sys.argv = ["torchrun", *question["argv"]]
        signal.alarm(LIMIT)
        run.main(question["argv"])
        status = 0
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        if isinstance(ending.code, str):
            print(ending.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(int(sys.argv[1]))
