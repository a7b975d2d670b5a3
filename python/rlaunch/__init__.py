"""rlaunch starts and supervises the processes of a distributed training job.

Functions: ``import rlaunch as dist; dist.spawn(train, nprocs=2)`` runs a function on ranks.
Scripts: ``python -m rlaunch --nproc_per_node 2 train.py``, or ``dist.launch("train.py", nproc_per_node=2)``.
In a rank: ``get_rank()``, ``get_world_size()`` and ``ParallelEnv()`` return its place in the job.
"""

# Before any import from a file (`__future__` is one): a Ctrl-C during an import prints a traceback.
import sys

if sys.argv[:1] == ["-m"] and any(
    ("-m", name) in zip(sys.orig_argv, sys.orig_argv[1:], strict=False) for name in ("rlaunch", "rlaunch.run")
):
    # `python -m rlaunch` or `python -m rlaunch.run` is starting: until the launcher has its own handlers, a
    # Ctrl-C ends it without a traceback. Importing `signal` takes longer than all of rlaunch.
    _signal = __import__("_signal")
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    del _signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._launch.launch import launch
    from ._lib import __version__
    from ._preload.registry import end_zygotes
    from ._rank.checkpoint import checkpoint_guard, lease_valid
    from ._rank.heartbeat import heartbeat
    from ._rank.stop import should_stop, time_left
    from ._spawn.context import MultiprocessContext
    from ._spawn.plan.options import SpawnOptions
    from ._spawn.spawn import spawn
    from .env import ParallelEnv, get_rank, get_world_size, init_parallel_env
    from .errors import (
        JobError,
        LaunchError,
        NoResultError,
        RankError,
        StaleRoundError,
        WorkerError,
        ZygoteError,
    )
    from .report import AttemptResult, JobCulprit, RankResult, Report

__all__ = [
    "AttemptResult",
    "JobCulprit",
    "JobError",
    "LaunchError",
    "MultiprocessContext",
    "NoResultError",
    "ParallelEnv",
    "RankError",
    "RankResult",
    "Report",
    "SpawnOptions",
    "StaleRoundError",
    "WorkerError",
    "ZygoteError",
    "__version__",
    "checkpoint_guard",
    "end_zygotes",
    "get_rank",
    "get_world_size",
    "heartbeat",
    "init_parallel_env",
    "launch",
    "lease_valid",
    "should_stop",
    "spawn",
    "time_left",
]

# The module of each name, imported on first use: every pytest with rlaunch's plugin imports this package.
_LAZY = {
    "_lib": ("_lib", "__version__"),
    "_launch.launch": ("launch",),
    "_preload.registry": ("end_zygotes",),
    "_rank.checkpoint": ("checkpoint_guard", "lease_valid"),
    "_rank.heartbeat": ("heartbeat",),
    "_rank.stop": ("should_stop", "time_left"),
    "_spawn.context": ("MultiprocessContext",),
    "_spawn.plan.options": ("SpawnOptions",),
    "_spawn.spawn": ("spawn",),
    "env": ("env", "ParallelEnv", "get_rank", "get_world_size", "init_parallel_env"),
    "errors": (
        "errors",
        "JobError",
        "LaunchError",
        "NoResultError",
        "RankError",
        "StaleRoundError",
        "WorkerError",
        "ZygoteError",
    ),
    "report": ("AttemptResult", "JobCulprit", "RankResult", "Report"),
}


def __getattr__(name: str) -> "Any":
    for module, names in _LAZY.items():
        if name in names:
            # Not by importlib, whose import takes longer than most of these modules'.
            imported = __import__(f"{__name__}.{module}", fromlist=names)
            globals()[name] = value = imported if name == module else getattr(imported, name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})
