"""Whether this rank is to stop, at a step that all ranks share: ``should_stop`` and ``time_left``."""

from __future__ import annotations

import os

from .identity import is_of_rank, open_slot

# How often a rank asks again while the launchers agree, in seconds.
_PAUSE = 0.001

_is_sigterm_deferred = False


def _defer_sigterm() -> None:
    """Slurm sends SIGTERM to every process of a step at once."""
    global _is_sigterm_deferred
    if not _is_sigterm_deferred and "SLURM_JOB_ID" in os.environ:
        from .._lib import RankStop

        RankStop.defer_sigterm(os.environ["RLAUNCH_STOP_SLOT"])
    _is_sigterm_deferred = True


def should_stop(step: int) -> bool:
    """Whether to save a checkpoint and exit with 0 now, because the job is about to lose its machines.

    Call it once a step, at the same place in all ranks, with numbers that grow. It becomes true at the same
    step in all ranks of all nodes, after a notice of preemption to any of the launchers (docs/preemption.md).
    It needs no collective. A call costs about a microsecond and no system call. It returns at once, except
    while the launchers agree on the step: then a rank that reaches the step waits for them.

    A rank takes part from its first call on. A notice to a job without such ranks stops them by SIGTERM.

    False without a launcher and in ranks of ``rlaunch.spawn``, and in daemons that a rank has left
    (``setsid program &``): what they call says nothing about the rank.

    Slurm sends SIGTERM to the launcher and to all ranks alike. So in a Slurm job, the first call installs a
    handler, unless there is one, which ignores a SIGTERM that the launcher has not sent. Forks inherit it.

    Args:
        step: the number of the step that is about to begin, from 0 to 2**62 - 2.

    Raises:
        OverflowError: the step is negative, or does not fit into 64 bits.
        OSError: the launcher that RLAUNCH_STOP_SLOT names is gone, or is not visible from here (another PID
            namespace).
    """
    stop = open_slot()
    if stop is None or not is_of_rank(stop):
        return False
    _defer_sigterm()
    answer = stop.ask(step)
    if answer is None:
        from time import sleep

        while (answer := stop.ask(step)) is None:
            sleep(_PAUSE)
    return answer


def time_left() -> float | None:
    """The seconds until the launcher ends this rank by SIGTERM, once there is a notice; else None.

    0 when that time is over. After SIGTERM, SIGKILL follows (docs/preemption.md). None without a launcher and
    in ranks of ``rlaunch.spawn``.

    Raises:
        OSError: see ``should_stop``.
    """
    stop = open_slot()
    return None if stop is None else stop.time_left()
