"""Functions of ``torch.multiprocessing`` and ``torch.distributed`` on rlaunch. Does not import torch.

``python -m rlaunch.torch PROGRAM ARGS`` runs a program that calls torchrun, such as ``accelerate``.
"""

from __future__ import annotations

from .errors import ProcessException, ProcessExitedException, ProcessRaisedException

TYPE_CHECKING = False  # Importing typing takes longer than this module.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ._elastic.launch_config import LaunchConfig
    from ._install.monkeypatch import Installation
    from ._spawn.torch_context import ProcessContext

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
# pytest shows the caller's frames alone. IPython reads the name in each frame.
__tracebackhide__ = True


def __getattr__(name: str) -> Any:
    # On first use: multiprocessing and dataclasses take longer to import than this module.
    if name == "ProcessContext":
        from ._spawn.torch_context import ProcessContext

        return ProcessContext
    if name == "LaunchConfig":
        from ._elastic.launch_config import LaunchConfig

        return LaunchConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class elastic_launch:
    """Runs a function or a program on ranks that restart together: ``elastic_launch(config, f)(*args)``.

    Contract: ``torch.distributed.launcher.api`` of 2.15. The call returns what each rank of this node
    returned, by global rank; None for each rank of a program.

    Args:
        config: a ``LaunchConfig``, rlaunch's or torch's. ``start_method`` has no effect: each rank is a new
            interpreter.
        entrypoint: a function or the name of a program. A function is pickled for every rank; one that ranks
            cannot import by name, such as a lambda, needs cloudpickle.
        health_check_server: must be None: rlaunch has no health checks.

    Raises:
        ChildFailedError: a rank failed and no restart is left. The text is the failure report, which is not
            printed besides. Also an instance of torch's class, if torch's errors are imported.
        WorkerError: a signal stopped the job, it was preempted (``rlaunch.should_stop``), or node 0's store
            was lost. What the ranks returned is lost.
        LaunchError: the launcher could not start the job.
        NoResultError: a rank exited successfully without returning, as by ``os._exit(0)``.
        TypeError: a ``health_check_server``, or a ``config.logs_specs`` of an unknown type.
    """

    def __init__(
        self, config: LaunchConfig, entrypoint: Callable[..., Any] | str, health_check_server: None = None
    ) -> None:
        from ._elastic.elastic_launch import refuse_health_checks

        refuse_health_checks(health_check_server)
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        __tracebackhide__ = True
        from ._elastic.elastic_launch import run_elastic

        return run_elastic(self._config, self._entrypoint, args)


def install() -> Installation:
    """Replaces ``torch.distributed.run`` by ``rlaunch.run`` in this process. Imports torch.

    For programs that call it, such as ``accelerate launch``. ``torch.distributed.launcher.elastic_launch``,
    which accelerate's ``notebook_launcher`` calls, runs on ``rlaunch.torch.elastic_launch``. If rlaunch is
    installed already, nothing changes, and the returned object undoes nothing.

    Returns:
        An object whose ``uninstall()`` undoes it, also at the end of a ``with`` block.

    Raises:
        ImportError: torch is not installed.
    """
    from ._install import installed

    return installed.install("torch")


def uninstall() -> None:
    """Undoes ``install``."""
    from ._install import installed

    installed.uninstall("torch")


def spawn(
    fn: Callable[..., Any],
    args: Iterable[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Calls ``start_processes`` with the start method ``spawn``.

    Contract: ``torch.multiprocessing.spawn`` of 2.15. Another ``start_method`` raises a FutureWarning and has
    no effect.
    """
    __tracebackhide__ = True
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

    Contract: ``torch.multiprocessing.start_processes`` of 2.15. It sets no variable of any framework. Ranks,
    and the processes that they start, end with this process, even if that is killed.

    Args:
        fn: what each rank runs; its first argument is the rank's index, 0 to ``nprocs - 1``. With every start
            method but ``fork`` it is pickled: by name if it is defined at the top level of a module that
            ranks can import, otherwise by value, which needs cloudpickle.
        args: its further arguments; pickled likewise.
        nprocs: number of ranks. 0 or less: none.
        join: whether to wait until all ranks have ended. If the wait is interrupted (Ctrl-C), all ranks are
            ended first.
        daemon: whether the ranks are daemonic processes, which cannot have multiprocessing children.
        start_method: ``"spawn"``, ``"fork"`` or ``"forkserver"``; None: multiprocessing's default. rlaunch
            adds ``"zygote"``: ranks are forked off a process that has imported torch, which later calls use
            too (see ``rlaunch.end_zygotes``). Ranks start one after another; TORCH_MP_PARALLEL_START has no
            effect.

    Returns:
        None with ``join``; otherwise the context. Call its ``join()`` until it returns True.

    Raises:
        ProcessRaisedException: a rank raised an exception (only with ``join``); the text has its traceback.
        ProcessExitedException: a rank was killed, or exited with a code other than 0 (only with ``join``).
        ValueError: the start method does not exist.
        ZygoteError: torch cannot be imported, or a fork would be unsafe afterwards.
        PicklingError, AttributeError, TypeError: ``fn`` or ``args`` cannot be pickled. The first line names
            the culprit. No rank was started.
        OSError: the system cannot start a rank. The ranks that were started before it have been ended.
    """
    __tracebackhide__ = True
    from ._spawn.start_processes import start_processes

    return start_processes(fn, args, nprocs, join, daemon, start_method)


if __name__ == "__main__":
    from rlaunch._install.torch_main import main

    main()
