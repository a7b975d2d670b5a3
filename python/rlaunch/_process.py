"""Ranks as ``multiprocessing`` processes: one process class for each start method.

They are processes of our own making, so that queues, locks, pipes and shared memory pass as arguments
and ``active_children()`` knows them; but they are started and watched by rlaunch.
"""

from __future__ import annotations

from multiprocessing import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import _lib
    from ._popen import Popen
    from ._preload import Zygote
    from ._sending import Sender
    from ._worker import Told


class Birth:
    """What a rank is started with, kept out of what it is sent."""

    def __init__(
        self,
        nursery: _lib.Nursery,
        leases: _lib.PortLeases | None,
        lifeline: Any,
        told: Told,
        log: str | None,
        backup: _lib.Descriptor | None,
        sender: Sender,
        zygote: Zygote | None = None,
    ) -> None:
        self.nursery = nursery
        self.leases = leases
        self.lifeline = lifeline
        self.told = told
        self.log = log
        self.backup = backup
        self.sender = sender
        self.zygote = zygote


class RankProcess(process.BaseProcess):
    """A rank."""

    birth: Birth
    _popen: Popen

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state.pop("birth", None)
        return state


class SpawnProcess(RankProcess):
    _start_method = "spawn"

    @staticmethod
    def _Popen(process_obj: RankProcess) -> Popen:
        from ._popen import SpawnPopen

        return SpawnPopen(process_obj)


class ForkProcess(RankProcess):
    _start_method = "fork"

    @staticmethod
    def _Popen(process_obj: RankProcess) -> Popen:
        from ._popen import ForkPopen

        return ForkPopen(process_obj)


class ForkServerProcess(RankProcess):
    _start_method = "forkserver"

    @staticmethod
    def _Popen(process_obj: RankProcess) -> Popen:
        from ._popen import ForkServerPopen

        return ForkServerPopen(process_obj)


class ZygoteProcess(RankProcess):
    _start_method = "spawn"  # What it starts itself is started as below a rank of that method.

    @staticmethod
    def _Popen(process_obj: RankProcess) -> Popen:
        from ._popen import ZygotePopen

        return ZygotePopen(process_obj)


def process_class(start_method: str | None) -> type[RankProcess]:
    """The process class of a start method; None is ``"spawn"``.

    Raises:
        ValueError: multiprocessing's own, for a name that it does not know.
    """
    import multiprocessing

    if start_method == "zygote":
        return ZygoteProcess
    method = multiprocessing.get_context(start_method or "spawn").get_start_method()
    return {"spawn": SpawnProcess, "fork": ForkProcess, "forkserver": ForkServerProcess}[method]
