"""The process classes of ranks, one for each start method.

Ranks import this module to unpickle their process object, so it imports the Popen classes when it needs them.
"""

from __future__ import annotations

from .rank_process import RankProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .popen import Popen


class SpawnProcess(RankProcess):
    """A rank of the start method ``spawn``."""

    _start_method = "spawn"

    @staticmethod
    def _Popen(process_obj: RankProcess) -> Popen:
        from .popen import SpawnPopen

        return SpawnPopen(process_obj)


class ForkProcess(RankProcess):
    """A rank of the start method ``fork``."""

    _start_method = "fork"

    @staticmethod
    def _Popen(process_obj: RankProcess) -> Popen:
        from .popen import ForkPopen

        return ForkPopen(process_obj)


class ForkServerProcess(RankProcess):
    """A rank of the start method ``forkserver``."""

    _start_method = "forkserver"

    @staticmethod
    def _Popen(process_obj: RankProcess) -> Popen:
        from .popen import ForkServerPopen

        return ForkServerPopen(process_obj)


class ZygoteProcess(RankProcess):
    """A rank of the start method ``zygote``: a preload server forks it."""

    # The default start method of the processes that the rank itself starts.
    _start_method = "spawn"

    @staticmethod
    def _Popen(process_obj: RankProcess) -> Popen:
        from .popen import ZygotePopen

        return ZygotePopen(process_obj)


def process_class(start_method: str | None) -> type[RankProcess]:
    """Returns the process class of a start method; None means ``"spawn"``.

    Raises:
        ValueError: multiprocessing's own, for an unknown name.
    """
    import multiprocessing

    if start_method == "zygote":
        return ZygoteProcess
    method = multiprocessing.get_context(start_method or "spawn").get_start_method()
    return {"spawn": SpawnProcess, "fork": ForkProcess, "forkserver": ForkServerProcess}[method]
