"""``rlaunch.torch.start_processes``. Contract: ``torch.multiprocessing.start_processes`` of 2.15."""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import TYPE_CHECKING

from .main_guard import check_main_guard
from .start.rank_starter import RankStarter
from .start.start_methods import process_class
from .torch_context import DEFAULT_GRACE, ProcessContext
from .worker import EnvDelta, Lifeline, arm_cleanup, put_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from .results import ResultSlot
    from .sending.call import Call

# pytest shows the caller's frames alone.
__tracebackhide__ = True


def start_processes(
    fn: Callable[..., Any],
    args: Iterable[Any],
    nprocs: int,
    join: bool,
    daemon: bool,
    start_method: str | None,
) -> ProcessContext | None:
    """See ``rlaunch.torch.start_processes``."""
    if start_method != "fork":
        check_main_guard()
    method = start_method or multiprocessing.get_start_method()
    zygote = None
    if method == "zygote":
        from .._preload.registry import get_zygote

        zygote = get_zygote(["torch"])
    user_arguments = {"fn": fn, "args": args}
    rank_class = process_class(method)
    with RankStarter(rank_class, bool(daemon), DEFAULT_GRACE, user_arguments, zygote=zygote) as starter:
        for index in range(nprocs):
            starter.start(run_process, (index,), EnvDelta({}), None)
        context = ProcessContext(starter.processes, starter.result_slots, starter.key)
        starter.is_over = context.is_over
        while join and not context.join():
            pass
    return None if join else context


def run_process(
    call: Call,
    index: int,
    result_slot: ResultSlot,
    env_delta: EnvDelta,
    lifeline: Lifeline,
) -> None:
    """Runs ``func(index, *args)`` as a rank; puts its traceback into the result slot if it raises."""
    arm_cleanup(lifeline, env_delta, result_slot)
    env_delta.apply()
    parent = os.getppid()
    try:
        func, args = call.take()
        func(index, *args)
    except KeyboardInterrupt:
        # Without its parent there is no process to read the traceback.
        if os.getppid() == parent:
            put_error(result_slot)
            sys.exit(130)
    except Exception:
        # Of `sys.exit("text")` and other exceptions that are none, torch's parent knows the exit code alone.
        put_error(result_slot)
        sys.exit(1)
