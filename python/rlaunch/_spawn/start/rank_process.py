"""A rank as a ``multiprocessing`` process.

Queues, locks, pipes and shared memory can be its arguments, and ``multiprocessing.active_children()`` lists
it. rlaunch starts it and watches it.
"""

from __future__ import annotations

import sys
from multiprocessing import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from ... import _lib
    from .start_spec import StartSpec


class RankProcess(process.BaseProcess):
    """A rank. Its subclasses are the start methods.

    Attributes:
        start_spec: how to start it; deleted after the start, and never pickled.
    """

    start_spec: StartSpec
    _popen: Any

    def start(self) -> None:
        """Starts the rank, in a daemonic process too.

        multiprocessing refuses that, because a daemon is killed and would leave its children behind. A rank
        ends with its parent.
        """
        config: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]
        daemon = config.pop("daemon", None)
        try:
            super().start()
        finally:
            if daemon is not None:
                config["daemon"] = daemon

    @property
    def handle(self) -> _lib.Rank:
        """The rank's handle, which stays valid after ``close()``."""
        handle: _lib.Rank = self._popen.rank
        return handle

    @property
    def is_forked(self) -> bool:
        """Whether it was forked from a Python process without an execve."""
        forked: bool = self._popen.is_forked
        return forked

    def send_signal(self, number: int) -> None:
        """Sends a signal to the rank, unless it has ended."""
        self._popen._send_signal(number)

    def forget(self) -> None:
        """Makes multiprocessing forget it: at the exit of this process, it is neither ended nor joined."""
        _children().discard(self)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state.pop("start_spec", None)
        return state


def forget_all() -> None:
    """Makes multiprocessing forget all ranks."""
    for child in list(_children()):
        if isinstance(child, RankProcess):
            child.forget()


def leave_behind(pids: Collection[int]) -> None:
    """Makes the exit of this process not wait for ranks that SIGKILL has not ended."""
    for child in list(_children()):
        if isinstance(child, RankProcess) and child.handle.pid in pids:
            child.forget()
    # They hold the write end of the resource tracker's pipe, so that the tracker does not end either. At
    # exit, `ResourceTracker.__del__` (Python 3.12.10 and later) waits for it, unless its pid is unknown.
    tracker: Any = sys.modules.get("multiprocessing.resource_tracker")
    if pids and tracker is not None and hasattr(tracker.ResourceTracker, "__del__"):
        tracker._resource_tracker._pid = None


def _children() -> set[process.BaseProcess]:
    children: set[process.BaseProcess] = process._children  # type: ignore[attr-defined]
    return children
