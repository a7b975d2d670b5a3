"""``rlaunch.torch.ProcessContext``: the ranks of ``rlaunch.torch.start_processes``."""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import time
from typing import TYPE_CHECKING

from .. import _lib
from .._errors.torch_classes import TORCH_SPAWN, peer_class
from .._process.guardian import keep_guardian
from ..errors import ProcessException, ProcessExitedException, ProcessRaisedException
from .context import RanksContext
from .messages import print_message
from .results import ERROR, RankQueue, ResultSlot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .start.rank_process import RankProcess

# Seconds between SIGTERM and SIGKILL if the caller sets none; as in torch.
DEFAULT_GRACE = 30.0
# Seconds between looks at a rank whose descriptor is readable, but which its debugger has not let go yet.
_TRACED_INTERVAL = 0.05

_log = logging.getLogger("rlaunch.torch")
# pytest shows the caller's frames alone.
__tracebackhide__ = True


class _RankGroup:
    """The ranks by their handles, which stay valid when the user closes a process object."""

    def __init__(self, processes: list[RankProcess], key: str) -> None:
        self._key = key
        self._ranks = [process.handle for process in processes]
        self.pids = [rank.pid for rank in self._ranks]
        # The ranks that SIGKILL has not ended, with a line about each.
        self.unkillable: list[tuple[int, str]] = []

    def find_running(self) -> list[int]:
        """Returns the ranks that run, except unkillable ones."""
        unkillable = [index for index, _ in self.unkillable]
        return [i for i, rank in enumerate(self._ranks) if rank.poll() is None and i not in unkillable]

    def exitcode(self, index: int) -> int:
        return self._ranks[index].poll() or 0

    def find_failed(self, indices: Iterable[int]) -> int | None:
        return next((index for index in indices if self.exitcode(index) != 0), None)

    def stop(self, grace_period: float | None) -> None:
        """Ends the running ranks in the order that ``ProcessContext.join`` documents."""
        running = self.find_running() if grace_period is None else self._wait(grace_period)
        for index in running:
            _log.warning("Terminating process %s via signal SIGTERM", self.pids[index])
            self._ranks[index].signal(signal.SIGTERM)
        for index in self._wait(DEFAULT_GRACE if grace_period is None else grace_period):
            pid = self.pids[index]
            _log.warning("Unable to shutdown process %s via SIGTERM , forcefully exiting via SIGKILL", pid)
            self._ranks[index].signal(signal.SIGKILL)
        # Unlike torch, with a limit: a process may be stuck in the kernel.
        self._stop_by_joiner(0, lambda _: None)

    def stop_after_interrupt(self) -> None:
        """Ends all ranks by SIGTERM; by SIGKILL after the grace period or if a signal handler raises."""
        self._stop_by_joiner(DEFAULT_GRACE, print_message)

    def _stop_by_joiner(self, grace: float, say: Callable[[str], None]) -> None:
        if self.find_running():
            joiner = _lib.Joiner(self._ranks, grace)
            try:
                joiner.stop(say)
            finally:
                self.unkillable = joiner.unkillable()

    def await_end(self, indices: list[int], seconds: float | None) -> None:
        """Waits until one of these ranks has ended, at most so long."""
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        ranks = [self._ranks[index] for index in indices]
        while True:
            left = max(deadline - time.monotonic(), 0)
            watched = [*(rank.fileno() for rank in ranks), keep_guardian(self._key)]
            ready = _lib.await_readable(watched, None if left == math.inf else left)
            if not ready or left == 0 or any(rank.poll() is not None for rank in ranks):
                return
            time.sleep(min(left, _TRACED_INTERVAL))

    def _wait(self, seconds: float) -> list[int]:
        """Waits until all ranks have ended, at most so long; returns those that still run."""
        deadline = time.monotonic() + seconds
        while running := self.find_running():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self.await_end(running, left)
        return running


class ProcessContext(RanksContext):
    """The ranks of one ``start_processes``. Contract: ``torch.multiprocessing.ProcessContext`` of 2.15.

    Unlike torch's it has no ``error_files``: tracebacks come through memory.

    Attributes:
        processes: the ranks' processes, by index; each is a ``multiprocessing`` process.
        sentinels: maps a descriptor, which is readable once its rank has ended, to the rank's index. Ranks
            that ``join`` has seen end are removed.
    """

    def __init__(self, processes: list[RankProcess], result_slots: list[ResultSlot], key: str) -> None:
        super().__init__(processes, result_slots, None, key)
        self._failure: ProcessException | None = None
        self._group: _RankGroup | None = _RankGroup(processes, key)
        self._pids = self._group.pids
        self._clean_up_if_ended()

    def pids(self) -> list[int]:
        """Returns the ranks' process ids, by index."""
        return list(self._pids)

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Waits until a rank ends. Call it until it returns True.

        If a rank has failed, ``join`` first ends the others, whatever the timeout: it waits ``grace_period``
        seconds, sends SIGTERM, waits ``grace_period`` seconds again, and sends SIGKILL. If the wait is
        interrupted (Ctrl-C, a signal handler that raises), it ends all ranks and then raises that exception.

        Args:
            timeout: seconds to wait at most; None: no limit; 0 or less: do not wait.
            grace_period: seconds; None: 0 before SIGTERM and 30 after it.

        Returns:
            Whether all ranks have ended.

        Raises:
            ProcessRaisedException, ProcessExitedException: a rank failed. Every later call raises it again.
                A later call of torch's blames a rank that the first call has ended, or no rank.
            AssertionError: this process was forked from the one that started the ranks.
        """
        group = self._group
        if group is not None and self.sentinels:
            self._creator.check()
            self._wait(group, timeout, grace_period)
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        return not self.sentinels

    def _wait(self, group: _RankGroup, timeout: float | None, grace_period: float | None) -> None:
        culprit = None
        try:
            before = sorted(self.sentinels.values())
            group.await_end(before, timeout)
            running = group.find_running()
            culprit = group.find_failed(index for index in before if index not in running)
            if culprit is not None:
                group.stop(grace_period)
        except BaseException:
            if not self._creator.is_this_process():
                raise  # A signal handler has forked.
            group.stop_after_interrupt()
            # A rank that was ended before it was done counts as failed, too.
            culprit = group.find_failed(range(len(self._pids))) if culprit is None else culprit
            raise
        finally:
            for index, line in group.unkillable:
                self._leave_behind(index, line)
            self._take_results_of_ended(set(group.find_running()))
            if culprit is not None and self._failure is None:
                self._failure = self._make_error(culprit, group.exitcode(culprit))
            if culprit is not None or not self.sentinels:
                self._group = None
            self._clean_up_if_ended()

    def _make_error(self, index: int, exitcode: int) -> ProcessException:
        pid = self._pids[index]
        traceback = RankQueue(self._slots[index], ERROR, index).peek()
        if traceback is not None:
            raised = peer_class(ProcessRaisedException, TORCH_SPAWN)
            head = f"\n\n-- Process {index} terminated with the following error:\n"
            return raised(head + traceback, index, pid)
        exited = peer_class(ProcessExitedException, TORCH_SPAWN)
        if exitcode >= 0:
            return exited(f"process {index} terminated with exit code {exitcode}", index, pid, exitcode)
        name = f"<Unknown signal {-exitcode}>"
        with contextlib.suppress(ValueError):
            name = signal.Signals(-exitcode).name
        return exited(f"process {index} terminated with signal {name}", index, pid, exitcode, name)
