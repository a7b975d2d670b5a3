"""rlaunch starts and supervises the processes of a distributed training job.

``import rlaunch as dist; dist.spawn(train, nprocs=2)`` runs a function on ranks; ``python -m rlaunch
--nproc_per_node 2 train.py`` runs a script on them. In a rank, ``get_rank()``, ``get_world_size()`` and
``ParallelEnv()`` say who it is.
"""

from ._lib import __version__
from .env import ParallelEnv, get_rank, get_world_size, init_parallel_env
from .errors import NoResultError, RankError
from .spawn import spawn

__all__ = [
    "NoResultError",
    "ParallelEnv",
    "RankError",
    "__version__",
    "get_rank",
    "get_world_size",
    "init_parallel_env",
    "spawn",
]
