"""Starts the ranks of one call: all of them, or none is left running."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from ... import _lib
from ..._process.guardian import NO_SWEEP, key_variable, new_key, sweep_leftovers, swept_message
from ..._process.spawners import new_spawner, release_after_fork
from ..messages import print_if_possible, print_message
from ..results import ResultSlot
from ..sending.call import Call
from ..sending.doubtful_modules import DoubtfulModules
from ..sending.pickling import Pickler
from ..worker import EnvDelta, Lifeline
from .rank_process import forget_all, leave_behind
from .start_spec import StartSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..._preload.client import Zygote
    from .rank_process import RankProcess


class RankStarter:
    """Starts ranks one after another. If the ``with`` block raises, the ranks started so far are ended.

    Attributes:
        processes: the ranks, in the order of their starts.
        result_slots: the result slot of each rank, in the same order.
        key: marks the ranks and the processes that they start; ``guardian`` finds them by it.
        is_over: returns whether a context has ended the ranks, and has swept what they left.
    """

    def __init__(
        self,
        process_class: Any,
        daemon: bool,
        grace: float,
        user_arguments: Mapping[str, Any],
        leases: _lib.PortLeases | None = None,
        env_overflow: _lib.Descriptor | None = None,
        zygote: Zygote | None = None,
    ) -> None:
        """
        Args:
            grace: seconds between SIGTERM and SIGKILL if the ranks have to be ended.
            user_arguments: the function that the ranks call and its arguments, by parameter name; a pickle
                error names the value that failed.
        """
        self._class = process_class
        self._daemon = daemon
        self._grace = grace
        self._spawner = new_spawner()
        self.key = new_key()
        if (line := _lib.procfs_line()) is not None:
            print_if_possible(f"rlaunch: {line}")
        self._func, self._args = user_arguments.values()
        self._pickler = Pickler(user_arguments, "the ranks", doubtful=DoubtfulModules())
        self._leases = leases
        self._env_overflow = env_overflow
        self._zygote = zygote
        self._creator = _lib.Creator()
        if leases is not None:
            release_after_fork(leases)
        self.processes: list[RankProcess] = []
        self.result_slots: list[ResultSlot] = []
        self.is_over: Callable[[], bool] = lambda: False

    def __enter__(self) -> RankStarter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # The type of the exception does not tell: user code, called by pickle, may raise a RankError, too.
        if kind is None or self.is_over():
            self._spawner.forget()
            return
        if not self._creator.is_this_process():
            return  # The user's code, called by pickle, has forked.
        # Before anything else: ending ranks takes descriptors, and a lack of them may be what failed.
        if self._leases is not None:
            self._leases.release()
        _end_ranks(self._spawner, self._grace, self.key)

    def start(
        self, target: Callable[..., None], args: tuple[Any, ...], env_delta: EnvDelta, log: str | None
    ) -> None:
        """Starts the next rank, which calls ``target(call, *args, result_slot, env_delta, lifeline)``.

        Raises:
            OSError: the system cannot start it; the text names the rank.
        """
        rank = len(self.processes)
        env_delta = env_delta.with_variables(key_variable(self.key, rank), unset=NO_SWEEP)
        lifeline = Lifeline(-1)
        try:
            slot = ResultSlot()
            call = Call(self._func, self._args)
            process = self._class(target=target, args=(call, *args, slot, env_delta, lifeline))
            process.start_spec = StartSpec(
                self._spawner,
                self._leases,
                lifeline,
                env_delta,
                log,
                self._env_overflow,
                call,
                self._pickler,
                self._zygote,
            )
            process.daemon = self._daemon
            process.start()
            del process.start_spec
        except OSError as error:
            text = f"rank {rank} cannot be started: {_describe(error)}"
            raise OSError(error.errno, text, *filter(None, [error.filename])) from error
        except Exception as error:
            from ..sending.pickle_diagnosis import trim_traceback

            # The arguments are the same for all ranks: only of a later one the number says something.
            if not (trim_traceback(error) and rank == 0) and hasattr(error, "add_note"):  # Python 3.11.
                error.add_note(f"rank {rank} could not be started")
            raise error
        self.processes.append(process)
        self.result_slots.append(slot)


def _describe(error: OSError) -> str:
    """Returns why the system refused, also where its text names no file."""
    if error.errno == errno.ENOENT and error.filename is None:
        try:
            os.getcwd()
        except FileNotFoundError:
            return "the current folder has been deleted; change to one that exists"
    return error.strerror or str(error)


def _end_ranks(spawner: _lib.Spawner, grace: float, key: str) -> None:
    """Ends all ranks of a failed start, including those that have no process object yet."""
    ranks = spawner.ranks()
    try:
        if ranks:
            _stop_ranks(ranks, grace)
    finally:
        # A rank that the fork server has started without reporting it dies when its lifeline closes.
        spawner.abandon()
        spawner.forget()
        swept, left, _ = sweep_leftovers(key)
        if message := swept_message(swept, left):
            print_if_possible(message)


def _stop_ranks(ranks: list[_lib.Rank], grace: float) -> None:
    joiner = _lib.Joiner(ranks, grace)
    try:
        joiner.stop(print_message)
    finally:
        unkillable = joiner.unkillable()
        leave_behind([ranks[index].pid for index, _ in unkillable])
        for _, line in unkillable:
            print_if_possible(line)


# At the exit of a process forked off this one, multiprocessing would end daemons and join others.
os.register_at_fork(after_in_child=forget_all)
