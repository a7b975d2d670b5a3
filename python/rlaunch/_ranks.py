"""Starting the ranks of one call: all of them, or none is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _guardian
from ._outbox import Outbox
from ._popen import hold, new_nursery
from ._process import Birth
from ._sending import Sender
from ._worker import Lifeline, Told
from .context import end_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from . import _lib
    from ._preload import Zygote
    from ._process import RankProcess


class Ranks:
    """Starts ranks, one after another. If the ``with`` block raises, those started are ended first.

    ``sent`` is what of the ranks' arguments is the user's, by the names that the user knows.

    Attributes:
        processes, outboxes: of the ranks, in the order of their starts.
        key: known by which the ranks, and what they start, are found.
    """

    def __init__(
        self,
        process_class: Any,
        daemon: bool,
        grace: float,
        sent: Mapping[str, Any],
        leases: _lib.PortLeases | None = None,
        backup: _lib.Descriptor | None = None,
        zygote: Zygote | None = None,
    ) -> None:
        self._class = process_class
        self._daemon = daemon
        self._grace = grace
        self._nursery = new_nursery()
        self.key = _guardian.new_key()
        self._sender = Sender(sent, "the ranks")
        self._leases = leases
        self._backup = backup
        self._zygote = zygote
        if leases is not None:
            hold(leases)
        self.processes: list[RankProcess] = []
        self.outboxes: list[Outbox] = []

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._nursery.forget()
            return
        # First of all: what fails may well be for want of descriptors, and ending ranks takes some.
        if self._leases is not None:
            self._leases.release()
        end_ranks(self._nursery, self._grace, self.key)

    def start(self, target: Callable[..., None], args: tuple[Any, ...], told: Told, log: str | None) -> None:
        """Starts one more, which calls ``target(*args, outbox, told, lifeline)``.

        Raises:
            OSError: the system would not.
        """
        rank = len(self.processes)
        told = told.and_of(_guardian.of_rank(self.key, rank))
        lifeline = Lifeline(-1)
        try:
            outbox = Outbox()
            process = self._class(target=target, args=(*args, outbox, told, lifeline))
            process.birth = Birth(
                self._nursery, self._leases, lifeline, told, log, self._backup, self._sender, self._zygote
            )
            process.daemon = self._daemon
            process.start()
            del process.birth
        except OSError as error:
            raise OSError(error.errno, f"rank {rank} cannot be started: {error.strerror or error}") from error
        except Exception as error:
            if hasattr(error, "add_note"):  # Python 3.11.
                error.add_note(f"rank {rank} could not be started")
            raise
        self.processes.append(process)
        self.outboxes.append(outbox)
