"""A rank as a ``multiprocessing`` process.

Queues, locks, pipes and shared memory can be its arguments, and ``multiprocessing.active_children()`` lists
it. rlaunch starts it and watches it.
"""

from __future__ import annotations

from multiprocessing import process

TYPE_CHECKING = False
if TYPE_CHECKING:
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
        children: set[process.BaseProcess] = process._children  # type: ignore[attr-defined]
        children.discard(self)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state.pop("start_spec", None)
        return state
