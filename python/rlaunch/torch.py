"""For users of torch: what ``torch.multiprocessing`` has too. Imports no torch."""

from __future__ import annotations

import os
import sys

from .errors import ProcessException, ProcessExitedException, ProcessRaisedException

TYPE_CHECKING = False  # Importing typing for this name takes longer than this module.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ._installation import Installation
    from ._launch_config import LaunchConfig
    from ._outbox import Outbox
    from ._torch_context import ProcessContext
    from ._worker import Lifeline, Told

__all__ = [
    "LaunchConfig",
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "elastic_launch",
    "install",
    "spawn",
    "start_processes",
    "uninstall",
]


def __getattr__(name: str) -> Any:
    # multiprocessing and dataclasses each take longer to import than all of this.
    if name == "ProcessContext":
        from ._torch_context import ProcessContext

        return ProcessContext
    if name == "LaunchConfig":
        from ._launch_config import LaunchConfig

        return LaunchConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class elastic_launch:
    """Runs a function, or a program, on ranks that are restarted together.

    ``elastic_launch(config, entrypoint)(*args)``. Contract: ``torch.distributed.launcher.api`` of 2.15.

    Args:
        config: how; a ``LaunchConfig``, torch's own too.
        entrypoint: a function, which is pickled for every rank (one that ranks cannot import by name, such
            as a lambda, needs cloudpickle), or the name of a program. ``config.start_method`` is for torch:
            each rank is a Python of its own.
        health_check_server: has to be None: nothing asks rlaunch for its health.

    Calling it returns what each rank of this machine has returned, by its global number; None for a program.

    Raises:
        ChildFailedError: a rank failed, and no restart is left; torch's class too, where that has been
            imported.
        WorkerError: a signal stopped the job, or the loss of node 0's store did.
        LaunchError: the launcher could not do what was asked.
        NoResultError: a rank ended well without returning, as by ``os._exit(0)``.
        TypeError: a ``health_check_server``, or ``config.logs_specs`` that is none of torch's own.
    """

    def __init__(
        self, config: LaunchConfig, entrypoint: Callable[..., Any] | str, health_check_server: None = None
    ) -> None:
        if health_check_server is not None:
            raise TypeError("health_check_server: rlaunch has no health checks; leave it out, or give None")
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        from ._elastic import elastic

        return elastic(self._config, self._entrypoint, args)


def install() -> Installation:
    """Puts ``rlaunch.run`` under ``torch.distributed.run`` in this process, for programs that call that (as
    ``accelerate launch`` does); imports torch if need be.

    Calling it again changes nothing; what it returns then undoes nothing. What it returns may be used in a
    ``with`` statement.

    Raises:
        ImportError: there is no torch.
    """
    global _current
    from ._installation import Installation

    if _current is not None and _current.stands:
        return Installation([])
    import torch.distributed.run

    from . import run

    _current = Installation((torch.distributed.run, name, getattr(run, name)) for name in run.__all__)
    return _current


def uninstall() -> None:
    """Undoes ``install``."""
    if _current is not None:
        _current.uninstall()


_current: Installation | None = None


def spawn(
    fn: Callable[..., Any],
    args: Iterable[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """``start_processes`` with the start method ``spawn``. Contract: ``torch.multiprocessing.spawn`` of 2.15.

    Another ``start_method`` is a FutureWarning, and not used.
    """
    if start_method != "spawn":
        import warnings

        warnings.warn(
            f"This method only supports start_method=spawn (got: {start_method}).\n"
            "To use a different start_method use:\n\t\t rlaunch.torch.start_processes(...)",
            FutureWarning,
            stacklevel=2,
        )
    return start_processes(fn, args, nprocs, join, daemon, start_method="spawn")


def start_processes(
    fn: Callable[..., Any],
    args: Iterable[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str | None = "spawn",
) -> ProcessContext | None:
    """Runs ``fn(i, *args)`` in ``nprocs`` processes.

    Contract: ``torch.multiprocessing.start_processes`` of 2.15.
    No variable of any framework is set. Whatever happens to this process, its ranks and what they have
    started end with it, by SIGKILL.

    Args:
        fn: what each rank runs; it is given its index first, 0 to ``nprocs`` - 1. With the start methods
            ``spawn`` and ``forkserver`` it is pickled: by name if it is defined at the top level of a module
            that ranks can import, else by value, for which cloudpickle has to be installed.
        args: its further arguments; pickled likewise, except with ``fork``.
        nprocs: how many ranks. 0 or less: none.
        join: whether to wait until all have ended. If that wait is interrupted (Ctrl-C), all are ended
            first.
        daemon: whether the ranks are daemonic processes, which may have no children of multiprocessing.
        start_method: ``"spawn"``, ``"fork"`` or ``"forkserver"``; None: multiprocessing's default. An
            extension of rlaunch: ``"zygote"``, so off a process that has imported torch and is there for
            later calls too (``rlaunch.end_zygotes``).
            Ranks are started one after another: TORCH_MP_PARALLEL_START is ignored.

    Returns:
        None if ``join``, else the context, whose ``join()`` is to be called until it returns True.

    Raises:
        ProcessRaisedException: a rank raised (only if ``join``); with its traceback.
        ProcessExitedException: a rank ended otherwise, and not with exit code 0 (only if ``join``).
        ValueError: a start method that does not exist.
        ZygoteError: torch cannot be imported, or a fork would be unsafe afterwards.
        PicklingError, AttributeError, TypeError: ``fn`` or ``args`` cannot be pickled; the first line names
            what in them, and no rank was started.
        OSError: the system would not start a rank; those started before it have been ended.
    """
    if start_method != "fork":
        from .spawn import check_main_is_imported

        check_main_is_imported()
    import multiprocessing

    from ._process import process_class
    from ._ranks import Ranks
    from ._torch_context import PATIENCE, ProcessContext
    from ._worker import Told

    method = start_method or multiprocessing.get_start_method()
    zygote = None
    if method == "zygote":
        from ._preload import zygote_of

        zygote = zygote_of(["torch"])
    sent = {"fn": fn, "args": args}
    with Ranks(process_class(method), bool(daemon), PATIENCE, sent, zygote=zygote) as ranks:
        for index in range(nprocs):
            ranks.start(_run, (fn, index, args), Told({}), None)
        context = ProcessContext(ranks.processes, ranks.outboxes, ranks.key)
        while join and not context.join():
            pass
    return None if join else context


def _run(
    fn: Callable[..., Any], i: int, args: Iterable[Any], outbox: Outbox, told: Told, lifeline: Lifeline
) -> None:
    """Runs ``fn(i, *args)`` as a rank, and hands over the traceback if it raises."""
    from ._worker import enter, put_error

    enter(lifeline, told)
    told.take_effect()
    parent = os.getppid()
    try:
        fn(i, *args)
    except KeyboardInterrupt:
        # Who has no parent any more has nobody to tell.
        if os.getppid() == parent:
            put_error(outbox)
            sys.exit(130)
    except Exception:
        put_error(outbox)
        sys.exit(1)


if __name__ == "__main__":
    from rlaunch._on_torch import main

    main()
