"""``python torch_cases.py MODULE LOGGER FILE``: what ``torch.multiprocessing``, or ``rlaunch.torch``, makes
of functions that end in one way or another, as JSON. Imports no more than it must: ranks import it too."""

from __future__ import annotations

import importlib
import json
import logging
import os
import pickle
import re
import signal
import sys
from multiprocessing import set_forkserver_preload
from typing import Any

# --- Ranks: rank 1 ends, rank 0 would stay ----------------------------------------------------------------


def _stay(i: int) -> None:
    if i == 0:
        while True:
            signal.pause()


def returns(i: int, *args: Any) -> tuple[Any, ...]:
    assert args == (), args
    return (i,)


def takes(i: int, *args: Any) -> None:
    _stay(i)
    raise ValueError(f"{i} {args}")


def raises(i: int) -> None:
    _stay(i)
    raise RuntimeError("this rank has had enough\nand says so in two lines")


def exits_0(i: int) -> None:
    sys.exit(0)


def exits_none(i: int) -> None:
    sys.exit()


def exits_3(i: int) -> None:
    _stay(i)
    sys.exit(3)


def exits_with_a_text(i: int) -> None:
    _stay(i)
    sys.exit("enough")


def exits_at_once(i: int) -> None:
    _stay(i)
    os._exit(7)


def is_killed(i: int) -> None:
    _stay(i)
    os.kill(os.getpid(), signal.SIGKILL)


def is_asked_to_stop(i: int) -> None:
    _stay(i)
    os.kill(os.getpid(), signal.SIGTERM)


def ends_by_a_nameless_signal(i: int) -> None:
    _stay(i)
    os.kill(os.getpid(), signal.SIGRTMIN + 3)


def is_interrupted(i: int) -> None:
    _stay(i)
    raise KeyboardInterrupt


def raises_because(i: int) -> None:
    _stay(i)
    try:
        {}["missing"]
    except KeyError as error:
        raise OSError(5, "for want of a nail") from error


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("not me")


def raises_an_unpicklable_error(i: int) -> None:
    _stay(i)
    raise Unpicklable("nor sent")


def raises_at_length(i: int) -> None:
    _stay(i)
    raise ValueError("ä" * 3_000_000)


def raises_no_exception(i: int) -> None:
    _stay(i)
    raise GeneratorExit("neither an Exception nor an exit")


ENDINGS = [
    returns,
    raises,
    exits_0,
    exits_none,
    exits_3,
    exits_with_a_text,
    exits_at_once,
    is_killed,
    is_asked_to_stop,
    ends_by_a_nameless_signal,
    is_interrupted,
    raises_because,
    raises_an_unpicklable_error,
    raises_at_length,
    raises_no_exception,
]


def exits_on_sigterm(i: int, ends: list[tuple[int, int]], code: int = 0) -> None:
    for index, (_, write) in enumerate(ends):
        if index != i:
            os.close(write)
    os.close(ends[i][1])
    os.read(ends[i][0], 1)
    sys.exit(code)


def fails_beside_a_rank_that_notices(i: int, read: int, write: int) -> None:
    if i == 1:
        os.write(write, b"!")
        os._exit(3)
    os.read(read, 1)


def fails_beside_the_deaf(i: int, read: int, write: int) -> None:
    if i == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(write, b"!")
        _stay(i)
    os.read(read, 1)
    os._exit(4)


# --- The reports of both ----------------------------------------------------------------------------------

FRAME = re.compile(
    r'  File "[^"]*/(torch/multiprocessing/spawn|rlaunch/_spawn/start_processes)\.py", line \d+, in \w+\n'
    r"(    .*\n)+"
)


def of_failure(call: Any, pids: list[int]) -> Any:
    try:
        return repr(call())
    except Exception as error:
        again: Any = pickle.loads(pickle.dumps(error))
        said = {name: getattr(error, name, None) for name in ("error_index", "exit_code", "signal_name")}
        return {
            "type": type(error).__name__,
            "text": FRAME.sub("  <how it is called>\n", str(error)),
            "is the message": error.args == (error.msg,) == (str(error),),  # type: ignore[attr-defined]
            "is of the process": not pids or pids[error.error_index] == error.error_pid,  # type: ignore[attr-defined]
            "is the same when pickled": [type(again), again.args] == [type(error), error.args],
            **said,
            **{f"{name} again": getattr(again, name, None) for name in said},
        }


def of_endings(mp: Any) -> Any:
    answers = {}
    # Each rank of torch's that is spawned imports torch: the others are for `make test-full`.
    is_full = os.environ.get("RLAUNCH_TEST_FULL", "0") not in ("", "0")
    spawned = [returns, raises, is_killed] if is_full else [raises]
    for method, functions in {"fork": ENDINGS, "forkserver": ENDINGS, "spawn": spawned}.items():
        for function in functions:
            call = lambda f=function, m=method: mp.start_processes(f, nprocs=2, start_method=m)  # noqa: E731
            answers[f"{function.__name__} {method}"] = of_failure(call, [])
    answers["arguments"] = of_failure(lambda: mp.start_processes(takes, ("a", 7), 2, True, True, "fork"), [])
    for wrong in ({"nprocs": 0}, {"nprocs": -1}, {"start_method": "none such"}, {"nprocs": "2"}, {"args": 7}):
        try:
            answers[f"{wrong}"] = repr(mp.start_processes(returns, **{"start_method": "fork", **wrong}))
        except Exception as error:
            answers[f"{wrong}"] = type(error).__name__
    return answers


def of_joins(mp: Any) -> Any:
    ends = [os.pipe() for _ in range(3)]
    context = mp.start_processes(exits_on_sigterm, (ends,), 3, join=False, start_method="fork")
    said = [context.join(-1), context.join(0), context.join(0.01), len(context.sentinels)]
    os.write(ends[1][1], b"!")
    said += [context.join(), context.join(0), sorted(context.sentinels.values())]
    os.write(ends[0][1], b"!")
    said += [context.join(30), context.sentinels == {context.processes[2].sentinel: 2}]
    os.write(ends[2][1], b"!")
    said += [context.join(), context.join(), context.join(0), context.sentinels]
    pids = context.pids() == [process.pid for process in context.processes]
    return [*said, pids, [process.exitcode for process in context.processes]]


def of_a_failure_in_steps(mp: Any) -> Any:
    ends = [os.pipe() for _ in range(3)]
    context = mp.start_processes(exits_on_sigterm, (ends, 9), 3, join=False, start_method="fork")
    said: list[Any] = [context.join(0)]
    os.write(ends[2][1], b"!")
    said.append(of_failure(context.join, context.pids()))
    return [*said, [process.exitcode for process in context.processes]]


def of_grace(mp: Any, function: Any, grace: float | None) -> Any:
    context = mp.start_processes(function, os.pipe(), 2, join=False, start_method="fork")

    def join() -> None:
        while not context.join(grace_period=grace):
            pass

    read = of_failure(join, context.pids())
    return [read, [process.exitcode for process in context.processes]]


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {re.sub('[0-9]+', 'N', record.getMessage())}")


def main(module: str, logger: str, path: str) -> None:
    set_forkserver_preload([module])
    mp, kept = importlib.import_module(module), Kept()
    logging.getLogger(logger).addHandler(kept)
    answers: dict[str, Any] = {
        "endings": of_endings(mp),
        "joins": of_joins(mp),
        "steps": of_a_failure_in_steps(mp),
    }
    answers["lines"], kept.lines = kept.lines, []
    answers["in grace"] = [of_grace(mp, fails_beside_a_rank_that_notices, 60), kept.lines]
    kept.lines = []
    answers["grace over"] = [of_grace(mp, fails_beside_the_deaf, 0.1), kept.lines]
    with open(path, "w") as file:
        json.dump(answers, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
