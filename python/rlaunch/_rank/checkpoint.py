"""Whether this rank's round is still the job's: ``lease_valid`` and ``checkpoint_guard``."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from .._lib import RankLease

# The lease that this process has opened, by RLAUNCH_ROUND_LEASE and RLAUNCH_ROUND: a fork of a rank keeps it.
_opened: tuple[tuple[str, str], RankLease] | None = None


def lease_valid() -> bool:
    """Whether this rank may still save: its round runs, and its node has contact with the others.

    Costs no system call after the first time. True where no other round can begin beside this one: on one
    node, in jobs that end with a lost node, and without a launcher.

    False from the moment in which rlaunch kills the ranks of this node (docs/rendezvous.md, "The lease").
    Only a rank that was stopped and goes on, or that cannot be killed, ever sees it. It must not save: a
    newer round may have saved already.

    Raises:
        OSError: the launcher that RLAUNCH_ROUND_LEASE names is gone, or is not visible from here (another PID
            namespace).
        ValueError: RLAUNCH_ROUND is not a number.
    """
    global _opened
    path, number = os.environ.get("RLAUNCH_ROUND_LEASE"), os.environ.get("RLAUNCH_ROUND", "0")
    if not path:
        return True
    if _opened is None or _opened[0] != (path, number):
        from .._lib import RankLease

        _opened = (path, number), RankLease(path, int(number))
    return _opened[1].is_valid()


class checkpoint_guard:
    """Saves only while this rank's round is the job's: ``with rlaunch.checkpoint_guard(): save(...)``.

    Works without a launcher too, and then does nothing.

    Raises:
        StaleRoundError: on entry, if the round is over: nothing is saved. At the end, if it ended meanwhile:
            what was written is not to be used. An exception of the block itself is passed on.
        OSError, ValueError: see ``lease_valid``.
    """

    def __enter__(self) -> None:
        if not lease_valid():
            raise _stale("nothing was saved")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not lease_valid():
            raise _stale("it ended while this rank saved, so what was written is not to be used")


def _stale(what: str) -> Exception:
    from ..errors import StaleRoundError

    number = os.environ.get("RLAUNCH_ROUND", "0")
    return StaleRoundError(f"round {number} of the job is over, and a newer one may run: {what}")
