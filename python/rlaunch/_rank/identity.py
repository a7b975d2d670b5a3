"""Whether this process speaks for its rank: daemons inherit the rank's variables too."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._lib import RankStop

# The place that this process has opened: a fork of a rank keeps it.
_opened: RankStop | None = None

# Whether this process is of the rank, once that is known.
_is_of_rank: bool | None = None


def open_slot() -> RankStop | None:
    """Opens what the launcher shares with this rank; None without a launcher.

    Raises:
        OSError: the launcher that RLAUNCH_STOP_SLOT names is gone, or is not visible from here.
    """
    global _opened
    if _opened is None and (address := os.environ.get("RLAUNCH_STOP_SLOT")):
        from .._lib import RankStop

        _opened = RankStop(address)
    return _opened


def is_of_rank(slot: RankStop) -> bool:
    """Whether this process is the rank, or one that it has started and that has not lost its parents.

    The answer of the first call counts, also if the parent ends later.
    """
    global _is_of_rank
    if _is_of_rank is None:
        if not _forks_ask_anew:
            _forks_ask_anew.append(True)
            os.register_at_fork(after_in_child=_forget)
        process = getattr(sys.modules.get("rlaunch_rank"), "rank_process", "self")
        _is_of_rank = slot.is_of_rank(os.getpid() if process == "self" else int(process))
    return _is_of_rank


_forks_ask_anew: list[bool] = []


def _forget() -> None:
    global _is_of_rank
    _is_of_rank = None
