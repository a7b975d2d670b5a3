"""rlaunch starts and supervises the processes of a distributed training job.

``import rlaunch as dist; dist.spawn(train, nprocs=2)`` runs a function on ranks; ``python -m rlaunch
--nproc_per_node 2 train.py`` or ``dist.launch("train.py", nproc_per_node=2)`` runs a script on them. In a
rank, ``get_rank()``, ``get_world_size()`` and ``ParallelEnv()`` say who it is.
"""

# Nothing comes before this that is imported from a file (`__future__` is): a Ctrl-C in it is a traceback.
import sys

if sys.argv[:1] == ["-m"] and any(
    ("-m", name) in zip(sys.orig_argv, sys.orig_argv[1:], strict=False) for name in ("rlaunch", "rlaunch.run")
):
    # `python -m rlaunch`, or `rlaunch.run`, is beginning: a Ctrl-C now ends it, as later, without a
    # traceback. Not by `signal`, whose import takes longer than all of rlaunch's.
    _signal = __import__("_signal")
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    del _signal

# Eagerly: a module that is imported later would take the place of the function that has its name.
from .launch import launch
from .spawn import spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._lib import __version__
    from ._preload import end_zygotes
    from .env import ParallelEnv, get_rank, get_world_size, init_parallel_env
    from .errors import LaunchError, NoResultError, RankError, WorkerError, ZygoteError
    from .report import AttemptResult, RankResult, Report

__all__ = [
    "AttemptResult",
    "LaunchError",
    "NoResultError",
    "ParallelEnv",
    "RankError",
    "RankResult",
    "Report",
    "WorkerError",
    "ZygoteError",
    "__version__",
    "end_zygotes",
    "get_rank",
    "get_world_size",
    "init_parallel_env",
    "launch",
    "spawn",
]


# Where to find what is imported when it is asked for: every pytest that has rlaunch's plugin imports this.
_LATER = {
    "_lib": ("_lib", "__version__"),
    "env": ("env", "ParallelEnv", "get_rank", "get_world_size", "init_parallel_env"),
    "errors": ("errors", "LaunchError", "NoResultError", "RankError", "WorkerError", "ZygoteError"),
    # multiprocessing takes even longer than dataclasses.
    "_preload": ("end_zygotes",),
    # dataclasses takes as long to import as all of rlaunch.
    "report": ("AttemptResult", "RankResult", "Report"),
}


def __getattr__(name: str) -> "Any":
    for module, names in _LATER.items():
        if name in names:
            from importlib import import_module

            found = import_module(f".{module}", __name__)
            globals()[name] = value = found if name == module else getattr(found, name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
