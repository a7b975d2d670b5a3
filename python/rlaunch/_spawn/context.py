"""``rlaunch.MultiprocessContext``: the ranks of one ``rlaunch.spawn``."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from .. import _lib
from .._process.guardian import find_guardian, sweep_leftovers, swept_message
from ..errors import RankError
from .messages import print_if_possible, print_message
from .results import ERROR, RESULT, RankQueue, ResultSlot
from .start.rank_process import leave_behind

if TYPE_CHECKING:
    from typing import Any

    from .start.rank_process import RankProcess

_RULE = "-" * 46
# pytest shows the caller's frames alone. IPython reads the name in each frame.
__tracebackhide__ = True


class RanksContext:
    """The ranks of one call, while some run and after all have ended.

    Attributes:
        processes: the ranks' processes, by index.
        sentinels: maps a descriptor, which is readable once its rank has ended, to the rank's index. Ranks
            that ``join`` has seen end are removed.
    """

    def __init__(
        self,
        processes: list[RankProcess],
        result_slots: list[ResultSlot],
        leases: _lib.PortLeases | None,
        key: str,
    ) -> None:
        """
        Args:
            leases: leases of the ranks' ports, released once all ranks have ended.
            key: marks the processes of these ranks; see ``guardian``.
        """
        self.processes = processes
        self.sentinels = {process.sentinel: i for i, process in enumerate(processes)}
        self._slots = result_slots
        self._leases = leases
        self._key: str | None = key
        self._creator = _lib.Creator()
        self._forked = any(process.is_forked for process in processes)
        # The pid and name of each process that the ranks left behind, and of those that live on; known once
        # all have ended.
        self._swept: list[tuple[int, str]] = []
        self._left: list[tuple[int, str]] = []
        # The name and size of each file in /dev/shm that the sweep removed.
        self._removed_memory: list[tuple[str, int]] = []
        # Whether all ranks count as failed, whatever their exit status.
        self._have_failed = False
        self._is_over = False
        # The pids of the ranks that have failed, and of the processes that they have forked.
        self._failed_pids: list[int] = []
        for process, slot in zip(processes, result_slots, strict=True):
            slot.set_rank(_SentinelOf(process))

    def stacks(self) -> str:
        """Returns where each rank that runs is: its Python stack, equal ones once, the odd one last.

        The stacks are read from outside, by a process of its own, without stopping the ranks: also those of
        ranks that are stuck in C. Empty if no rank runs.

        Raises:
            OSError: that process cannot be started, or does not answer in 30 s.
        """
        alive = [(i, process.pid) for i, process in enumerate(self.processes) if process.is_alive()]
        ranks = [(i, pid) for i, pid in alive if pid is not None]
        return _lib.describe_stacks(ranks, sys.executable) if ranks else ""

    def is_over(self) -> bool:
        """Returns whether all ranks have ended or were given up, and what they left has been swept."""
        return self._is_over

    def _take_results_of_ended(self, running: set[int]) -> None:
        """Joins the ranks that are not running any more, and keeps their results."""
        if not self._creator.is_this_process():
            return  # A signal handler has forked during a wait.
        for sentinel, rank in list(self.sentinels.items()):
            if rank not in running and self.sentinels.pop(sentinel, None) is not None:
                forks = self._slots[rank].forks()
                self._slots[rank].take_content()
                with contextlib.suppress(ValueError):  # The user has closed the process object.
                    self.processes[rank].join(0)
                    pid, status = self.processes[rank].pid, self.processes[rank].exitcode
                    if pid is not None and (status or self._have_failed):
                        self._failed_pids += [pid, *forks]

    def _leave_behind(self, rank: int, line: str) -> None:
        """Gives up a rank that SIGKILL has not ended; prints a line about it."""
        for sentinel, index in list(self.sentinels.items()):
            # A join in another thread may do the same.
            if index == rank and self.sentinels.pop(sentinel, None) is not None:
                self._slots[rank].give_up()
                leave_behind([self.processes[rank].handle.pid])
                print_if_possible(line)

    def _clean_up_if_ended(self) -> None:
        """Once all ranks have ended: releases their ports, and ends the processes that they left behind."""
        if self.sentinels:
            return
        if self._leases is not None:
            self._leases.release()
        key, self._key = self._key, None
        if key is not None:
            self._before_sweep(key)
            swept = sweep_leftovers(key, self._failed_pids, self._forked)
            self._swept, self._left, self._removed_memory = swept
            self._report_swept()
        self._is_over = True

    def _before_sweep(self, key: str) -> None:
        """Hook: called after all ranks have ended and before the sweep."""

    def _report_swept(self) -> None:
        """Hook: reports the swept processes on stderr."""
        if message := swept_message(self._swept, self._left):
            print_if_possible(message)


class MultiprocessContext(RanksContext):
    """The ranks of one ``rlaunch.spawn``. Contract: the context of ``paddle.distributed.spawn``.

    Attributes:
        processes: the ranks' processes, by local rank; each is a ``multiprocessing`` process.
        return_queues: ``return_queues[i].get()`` is the return value of rank i.
        error_queues: ``error_queues[i].get()`` is the traceback of rank i, if it raised.
        sentinels: maps a descriptor, which is readable once its rank has ended, to the rank's index. Ranks
            that ``join`` has seen end are removed.
    """

    def __init__(
        self,
        processes: list[RankProcess],
        result_slots: list[ResultSlot],
        leases: _lib.PortLeases,
        grace: float,
        key: str,
    ) -> None:
        super().__init__(processes, result_slots, leases, key)
        self.error_queues = [RankQueue(slot, ERROR, i) for i, slot in enumerate(result_slots)]
        self.return_queues = [RankQueue(slot, RESULT, i) for i, slot in enumerate(result_slots)]
        self._failure: RankError | None = None
        handles = [process.handle for process in processes]
        joiner = _lib.Joiner(handles, grace, key, self._forked, find_guardian(key))
        self._joiner: _lib.Joiner | None = joiner
        self._update_from(joiner)

    def join(self, timeout: float | None = None) -> bool:
        """Waits until a rank ends. Call it until it returns True.

        If a rank has failed, ``join`` first ends the others, whatever the timeout: SIGTERM, and SIGKILL after
        the grace period. If the wait is interrupted (Ctrl-C, a signal handler that raises), it ends all
        ranks in the same way and then raises that exception.

        Args:
            timeout: seconds to wait at most; None: no limit; 0: do not wait.

        Returns:
            Whether all ranks have ended.

        Raises:
            RankError: a rank failed. Every later call raises it again.
            AssertionError: this process was forked from the one that called ``spawn``.
        """
        __tracebackhide__ = True
        joiner = self._joiner
        if joiner is not None and self.sentinels:
            self._creator.check()
            try:
                joiner.join(timeout, print_message)
            finally:
                self._update_from(joiner)
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        return not self.sentinels

    def results(self) -> list[Any]:
        """Waits for all ranks as ``join`` does; returns their return values, by local rank.

        It may be called repeatedly, before or after ``return_queues`` were read. Each call unpickles anew.
        The value of a rank that called ``sys.exit(0)`` is None.

        Raises:
            RankError: a rank failed.
            NoResultError: a rank exited successfully without returning, as by ``os._exit(0)``.
        """
        __tracebackhide__ = True
        while not self.join():
            pass
        return [queue.result() for queue in self.return_queues]

    def stop(self) -> None:
        """Ends all running ranks (SIGTERM, and SIGKILL after the grace period) and waits for them.

        It prints nothing and does not raise the ranks' failures; ``join`` does.

        Raises:
            AssertionError: as ``join``.
        """
        joiner = self._joiner
        if joiner is not None and self.sentinels:
            self._creator.check()
            try:
                joiner.stop(_discard_message)
            finally:
                self._update_from(joiner)

    def _update_from(self, joiner: _lib.Joiner) -> None:
        """Takes over what the joiner knows: which ranks have ended, and which failed first."""
        if not self._creator.is_this_process():
            return
        running, failure = set(joiner.living()), joiner.failure()
        if failure is not None:
            # Processes that the failed rank has left may have ended by themselves since then.
            ranks = {process.handle.pid for process in self.processes}
            self._failed_pids += [pid for pid in joiner.seen() if pid not in ranks]
            # First, so that a join in another thread cannot see that all have ended and miss the failure.
            self._failure = self._make_error(*failure)
        for rank, line in joiner.unkillable():
            self._leave_behind(rank, line)
        self._take_results_of_ended(running)
        if not self.sentinels:
            self._joiner = None
        self._clean_up_if_ended()

    def _make_error(self, rank: int, exitcode: int, how: str) -> RankError:
        traceback = self.error_queues[rank].peek()
        if traceback is None:
            return RankError(f"Process {rank} terminated with {how}.", rank, exitcode)
        head = f"\n\n{_RULE}\nProcess {rank} terminated with the following error:\n{_RULE}\n\n"
        return RankError(head + traceback, rank, exitcode, traceback)


class _SentinelOf:
    """Returns the sentinel of a process when called."""

    def __init__(self, process: RankProcess) -> None:
        self._process = process

    def __call__(self) -> int:
        return int(self._process.sentinel)


def _discard_message(_: str) -> None:
    pass
