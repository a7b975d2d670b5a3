"""What ``spawn`` returns."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from . import _guardian, _lib
from ._outbox import ERROR, RESULT, Outbox, RankQueue
from .errors import RankError

if TYPE_CHECKING:
    from typing import Any

    from ._process import RankProcess

_RULE = "-" * 46


class RanksContext:
    """The ranks of one start, while some of them live and when all have ended."""

    def __init__(
        self,
        processes: list[RankProcess],
        outboxes: list[Outbox],
        leases: _lib.PortLeases | None,
        key: str,
    ) -> None:
        self.processes = processes
        self.sentinels = {process.sentinel: i for i, process in enumerate(processes)}
        self._outboxes = outboxes
        self._leases = leases
        self._key: str | None = key
        # What the ranks had left when all had ended: it has been ended, too.
        self._swept: list[tuple[int, str]] = []
        for process, outbox in zip(processes, outboxes, strict=True):
            outbox.belongs_to(_EndOf(process))

    def _settle(self, living: set[int]) -> None:
        """Ranks that have ended are joined, and what they handed over is kept."""
        for sentinel, rank in list(self.sentinels.items()):
            if rank not in living and self.sentinels.pop(sentinel, None) is not None:
                self._outboxes[rank].settle()
                with contextlib.suppress(ValueError):  # Somebody has closed the process object.
                    self.processes[rank].join(0)

    def _conclude(self) -> None:
        """Once all have ended: gives back what they needed, and ends what they have left."""
        if self.sentinels:
            return
        if self._leases is not None:
            self._leases.release()
        key, self._key = self._key, None
        if key is not None:
            self._before_sweep(key)
            self._swept = _guardian.sweep(key)
            self._tell_swept()

    def _before_sweep(self, key: str) -> None:
        """Called when all ranks have ended, and what they have left has not."""

    def _tell_swept(self) -> None:
        """Says what was swept."""
        if self._swept:
            _say_if_possible(_guardian.told(self._swept))


class MultiprocessContext(RanksContext):
    """The ranks of one ``spawn``. Contract: ``paddle.distributed.spawn``'s context.

    Attributes:
        processes: the ranks' processes, by local rank; ``multiprocessing`` processes in every way.
        return_queues: ``return_queues[i].get()`` is what rank i returned.
        error_queues: ``error_queues[i].get()`` is the traceback of rank i, if it raised.
        sentinels: a descriptor that is readable once its rank has ended, to the rank's index; ranks
            that ``join`` has seen end are gone from it.
    """

    def __init__(
        self,
        processes: list[RankProcess],
        outboxes: list[Outbox],
        leases: _lib.PortLeases,
        grace: float,
        key: str,
    ) -> None:
        super().__init__(processes, outboxes, leases, key)
        self.error_queues = [RankQueue(outbox, ERROR, i) for i, outbox in enumerate(outboxes)]
        self.return_queues = [RankQueue(outbox, RESULT, i) for i, outbox in enumerate(outboxes)]
        self._failure: RankError | None = None
        joiner = _lib.Joiner([process._popen.rank for process in processes], grace)
        self._joiner: _lib.Joiner | None = joiner
        self._absorb(joiner)

    def join(self, timeout: float | None = None) -> bool:
        """Waits for a rank to end: ``timeout`` seconds at most, None for ever, 0 not at all.

        Returns whether all have ended, so it is called until it returns True. Once a rank has failed,
        the others are ended first (SIGTERM, and SIGKILL after the grace) whatever the timeout. If the
        wait is interrupted (Ctrl-C, a signal handler that raises), all ranks are ended likewise, and
        what interrupted it is raised.

        Raises:
            RankError: a rank failed; raised again by every later call.
        """
        joiner = self._joiner
        if joiner is not None and self.sentinels:
            try:
                joiner.join(timeout, say)
            finally:
                self._absorb(joiner)
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        return not self.sentinels

    def results(self) -> list[Any]:
        """What the ranks returned, by local rank, once all have ended; waits for that as ``join`` does.

        It may be called again and again, and ``return_queues`` neither lose by it nor matter to it: each call
        unpickles anew. A rank that left by ``sys.exit(0)`` returned None.

        Raises:
            RankError: a rank failed.
            NoResultError: one ended well without returning, as by ``os._exit(0)``.
        """
        while not self.join():
            pass
        return [queue.result() for queue in self.return_queues]

    def stop(self) -> None:
        """Ends all ranks that live (SIGTERM, and SIGKILL after the grace), and waits until they have ended.

        Says nothing, and raises nothing of what they failed by; ``join`` does.
        """
        joiner = self._joiner
        if joiner is not None and self.sentinels:
            try:
                joiner.stop(_keep_quiet)
            finally:
                self._absorb(joiner)

    def _absorb(self, joiner: _lib.Joiner) -> None:
        """Takes over what the joiner has seen: ended ranks are joined, their results kept."""
        living, failure = set(joiner.living()), joiner.failure()
        if failure is not None:
            # Before another thread's join can see that all have ended.
            self._failure = self._describe(*failure)
        self._settle(living)
        if not self.sentinels:
            self._joiner = None
        self._conclude()

    def _describe(self, rank: int, exitcode: int, how: str) -> RankError:
        traceback = self.error_queues[rank].peek()
        if traceback is None:
            return RankError(f"Process {rank} terminated with {how}.", rank, exitcode)
        head = f"\n\n{_RULE}\nProcess {rank} terminated with the following error:\n{_RULE}\n\n"
        return RankError(head + traceback, rank, exitcode, traceback)


def _say_if_possible(line: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # An odd stderr stops nothing.
        say(line)


def end_ranks(nursery: _lib.Nursery, grace: float, key: str) -> None:
    """Ends all ranks of a start that failed half-way, those included that nobody else knows yet."""
    ranks = nursery.ranks()
    try:
        if ranks:
            _lib.Joiner(ranks, grace).stop(say)
    finally:
        # What the fork server may have started and not yet told us dies of its lifeline.
        nursery.abandon()
        nursery.forget()
        swept = _guardian.sweep(key)
        if swept:
            _say_if_possible(_guardian.told(swept))


class _EndOf:
    """A descriptor that is readable once a process has ended."""

    def __init__(self, process: RankProcess) -> None:
        self._process = process

    def __call__(self) -> int:
        return int(self._process.sentinel)


def _keep_quiet(_: str) -> None:
    pass


def say(line: str) -> None:
    """A line for people."""
    print(line, file=sys.stderr, flush=True)
