"""What ``rlaunch.torch.start_processes`` returns."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from typing import TYPE_CHECKING

from . import _lib
from ._outbox import ERROR, Outbox, RankQueue
from .context import RanksContext, say
from .errors import TORCH_SPAWN, ProcessException, ProcessExitedException, ProcessRaisedException, peer_class

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._process import RankProcess

# Seconds for ranks to stop in, where the caller names none; as in torch.
PATIENCE = 30.0

_log = logging.getLogger("rlaunch.torch")


class _Group:
    """The ranks by their handles, which somebody else's ``close()`` of the process objects does not touch."""

    def __init__(self, processes: list[RankProcess]) -> None:
        self._ranks = [process._popen.rank for process in processes]
        self.pids = [rank.pid for rank in self._ranks]

    def living(self) -> list[int]:
        return [index for index, rank in enumerate(self._ranks) if rank.poll() is None]

    def exitcode(self, index: int) -> int:
        return self._ranks[index].poll() or 0

    def first_failed(self, indices: Iterable[int]) -> int | None:
        return next((index for index in indices if self.exitcode(index) != 0), None)

    def end(self, grace_period: float | None) -> None:
        """Ends those that live, as ``ProcessContext.join`` says."""
        living = self.living() if grace_period is None else self._wait(grace_period)
        for index in living:
            _log.warning("Terminating process %s via signal SIGTERM", self.pids[index])
            self._ranks[index].signal(signal.SIGTERM)
        for index in self._wait(PATIENCE if grace_period is None else grace_period):
            pid = self.pids[index]
            _log.warning("Unable to shutdown process %s via SIGTERM , forcefully exiting via SIGKILL", pid)
            self._ranks[index].signal(signal.SIGKILL)
        # Beside torch, not for ever: a process may be stuck in the kernel.
        self._wait(PATIENCE)

    def end_at_once(self) -> None:
        """Ends all by SIGTERM, and by SIGKILL when they are not gone in time or a signal handler raises."""
        _lib.Joiner(self._ranks, PATIENCE).stop(say)

    def _wait(self, seconds: float) -> list[int]:
        """Waits until all have ended; those that have not after so long."""
        deadline = time.monotonic() + seconds
        while living := self.living():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            _lib.await_readable([self._ranks[index].fileno() for index in living], left)
        return living


class ProcessContext(RanksContext):
    """The ranks of one ``start_processes``. Contract: ``torch.multiprocessing.ProcessContext`` of 2.15.

    There are no ``error_files``: tracebacks come through memory.

    Attributes:
        processes: the ranks' processes, by index; ``multiprocessing`` processes in every way.
        sentinels: a descriptor that is readable once its rank has ended, to the rank's index; ranks
            that ``join`` has seen end are gone from it.
    """

    def __init__(self, processes: list[RankProcess], outboxes: list[Outbox], key: str) -> None:
        super().__init__(processes, outboxes, None, key)
        self._failure: ProcessException | None = None
        self._group: _Group | None = _Group(processes)
        self._pids = self._group.pids
        self._conclude()

    def pids(self) -> list[int]:
        """The ranks' process ids, by index."""
        return list(self._pids)

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Waits for a rank to end: ``timeout`` seconds at most, None for ever, 0 or less not at all.

        Returns whether all have ended, so it is called until it returns True. Once a rank has failed, the
        others are ended first, whatever the timeout: they are waited for ``grace_period`` seconds (None:
        not at all), sent SIGTERM, waited for ``grace_period`` seconds again (None: 30), and killed. If the
        wait is interrupted (Ctrl-C, a signal handler that raises), all ranks are ended likewise, and what
        interrupted it is raised.

        Raises:
            ProcessRaisedException, ProcessExitedException: a rank failed; raised again by every later
                call. Torch's later calls blame those that the first has ended, or nobody.
        """
        group = self._group
        if group is not None and self.sentinels:
            self._wait(group, timeout, grace_period)
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        return not self.sentinels

    def _wait(self, group: _Group, timeout: float | None, grace_period: float | None) -> None:
        culprit = None
        try:
            before = sorted(self.sentinels.values())
            _lib.await_readable(list(self.sentinels), timeout)
            living = group.living()
            culprit = group.first_failed(index for index in before if index not in living)
            if culprit is not None:
                group.end(grace_period)
        except BaseException:
            group.end_at_once()
            # Who was ended half-way is no success either.
            culprit = group.first_failed(range(len(self._pids))) if culprit is None else culprit
            raise
        finally:
            self._settle(set(group.living()))
            if culprit is not None and self._failure is None:
                self._failure = self._describe(culprit, group.exitcode(culprit))
            if culprit is not None or not self.sentinels:
                self._group = None
            self._conclude()

    def _describe(self, index: int, exitcode: int) -> ProcessException:
        pid = self._pids[index]
        traceback = RankQueue(self._outboxes[index], ERROR, index).peek()
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
