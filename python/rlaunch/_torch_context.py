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
        self._pids = [rank.pid for rank in self._ranks]
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
        if self._failure is None and self.sentinels:
            culprit = None
            try:
                culprit = self._await_some(timeout)
                if culprit is not None:
                    self._end(grace_period)
            except BaseException:
                _lib.Joiner(self._ranks, PATIENCE).stop(say)
                self._settle(set(self._living()))
                # Who was ended half-way is no success either.
                culprit = self._first_failed(range(len(self._ranks))) if culprit is None else culprit
                raise
            finally:
                if culprit is not None:
                    self._failure = self._describe(culprit)
                self._conclude()
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        return not self.sentinels

    def _await_some(self, timeout: float | None) -> int | None:
        """Waits until some rank has ended; the first of them that failed."""
        _lib.await_readable(list(self.sentinels), timeout)
        living = self._living()
        ended = sorted(set(self.sentinels.values()) - set(living))
        self._settle(set(living))
        return self._first_failed(ended)

    def _first_failed(self, indices: Iterable[int]) -> int | None:
        return next((index for index in indices if self._ranks[index].poll() not in (0, None)), None)

    def _living(self) -> list[int]:
        return [index for index, rank in enumerate(self._ranks) if rank.poll() is None]

    def _await_all(self, seconds: float) -> list[int]:
        """Waits until all ranks have ended; those that have not after so long."""
        deadline = time.monotonic() + seconds
        while living := self._living():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            _lib.await_readable([self._ranks[index].fileno() for index in living], left)
        return living

    def _end(self, grace_period: float | None) -> None:
        living = self._living() if grace_period is None else self._await_all(grace_period)
        for index in living:
            _log.warning("Terminating process %s via signal SIGTERM", self._pids[index])
            self._ranks[index].signal(signal.SIGTERM)
        living = self._await_all(PATIENCE if grace_period is None else grace_period)
        for index in living:
            _log.warning(
                "Unable to shutdown process %s via SIGTERM , forcefully exiting via SIGKILL",
                self._pids[index],
            )
            self._ranks[index].signal(signal.SIGKILL)
        # Beside torch, not for ever: a process may be stuck in the kernel.
        self._settle(set(self._await_all(PATIENCE)))

    def _describe(self, index: int) -> ProcessException:
        pid, exitcode = self._pids[index], self._ranks[index].poll()
        traceback = RankQueue(self._outboxes[index], ERROR, index).peek()
        if traceback is not None:
            raised = peer_class(ProcessRaisedException, TORCH_SPAWN)
            return raised(
                f"\n\n-- Process {index} terminated with the following error:\n{traceback}", index, pid
            )
        exited = peer_class(ProcessExitedException, TORCH_SPAWN)
        if exitcode is None or exitcode >= 0:
            code = exitcode or 0
            return exited(f"process {index} terminated with exit code {code}", index, pid, code)
        name = f"<Unknown signal {-exitcode}>"
        with contextlib.suppress(ValueError):
            name = signal.Signals(-exitcode).name
        return exited(f"process {index} terminated with signal {name}", index, pid, exitcode, name)
