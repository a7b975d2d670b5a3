"""The ``rank`` fixture: a rank's place in its test, and operations that all ranks take part in."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

from ..._spawn.sending.pickling import Pickler
from ...errors import MissingRankError

if TYPE_CHECKING:
    from ..messages import Link


class Rank:
    """The value of the ``rank`` fixture. ``operator.index`` of it is the rank's number.

    Attributes:
        rank: the rank's number, from 0.
        world_size: number of ranks.
        local_rank: its number on this machine; the same as ``rank``.
    """

    def __init__(self, rank: int, world_size: int, link: Link) -> None:
        self.rank = self.local_rank = rank
        self.world_size = world_size
        self._link = link

    def __index__(self) -> int:
        return self.rank

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.world_size}>"

    def barrier(self) -> None:
        """Waits until all ranks have called it.

        Raises:
            rlaunch.errors.MissingRankError: a rank has ended, or waits in another operation.
        """
        __tracebackhide__ = True
        self._exchange("barrier", b"")

    def gather(self, obj: Any) -> list[Any]:
        """Returns, on every rank, the objects of all ranks, in the order of the ranks. Pickles ``obj``.

        Closures, lambdas and local classes are sent by value, which needs cloudpickle.

        Raises:
            rlaunch.errors.MissingRankError: a rank has ended, or waits in another operation.
        """
        __tracebackhide__ = True
        return [pickle.loads(payload) for payload in self._exchange("gather", _pickle(obj))]

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Returns, on every rank, the object of rank ``src``. The objects of other ranks are ignored.

        Raises:
            rlaunch.errors.MissingRankError: a rank has ended, or waits in another operation.
            ValueError: there is no rank ``src``.
        """
        __tracebackhide__ = True
        if not 0 <= src < self.world_size:
            raise ValueError(f"src must be a rank, 0 to {self.world_size - 1}, but got {src!r}")
        own = _pickle(obj) if src == self.rank else b""
        return pickle.loads(self._exchange(f"broadcast from rank {src}", own)[src])

    def _exchange(self, operation: str, payload: bytes) -> list[bytes]:
        __tracebackhide__ = True
        kind, content = self._link.request("operation", (operation, payload))
        if kind == "impossible":
            raise MissingRankError(content)
        payloads: list[bytes] = content
        return payloads


def _pickle(obj: Any) -> bytes:
    __tracebackhide__ = True
    file = io.BytesIO()
    try:
        Pickler({"obj": obj}, "the other ranks", copies_tensors=True).dump(obj, file)
    except Exception as error:
        # A test's report shows the call of the test, not the picklers.
        raise error.with_traceback(None) from None
    return file.getvalue()
