"""Exceptions of rlaunch: typed, picklable, plain Python."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from ._failures import ChildFailedError as ChildFailedError
    from ._failures import ProcessFailure as ProcessFailure
    from ._record import record as record
    from .report import Report

    _E = TypeVar("_E", bound=Exception)

# Where torch has its classes of the same names as some here.
TORCH_SPAWN = "torch.multiprocessing.spawn"
TORCH_ERRORS = "torch.distributed.elastic.multiprocessing.errors"


def __getattr__(name: str) -> Any:
    # Most programs need none of these, and what they import takes longer than all of rlaunch.
    if name == "record":
        from ._record import record

        return record
    if name in ("ChildFailedError", "ProcessFailure"):
        from . import _failures

        return getattr(_failures, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class RankError(Exception):
    """A rank failed. The text is the one that ``paddle.distributed.spawn`` has.

    Attributes:
        rank: the rank's number.
        exitcode: its exit code, or minus the number of the signal that ended it.
        traceback: the rank's traceback as text; None if it raised nothing.
    """

    def __init__(self, message: str, rank: int, exitcode: int, traceback: str | None = None) -> None:
        super().__init__(message, rank, exitcode, traceback)
        self.rank = rank
        self.exitcode = exitcode
        self.traceback = traceback

    def __str__(self) -> str:
        return str(self.args[0])


class NoResultError(EOFError):
    """A rank's queue holds nothing and never will: it has ended, or its one item has been taken."""


class ZygoteError(RuntimeError):
    """There is no zygote to fork ranks off: it is gone, or an import failed, or makes a fork unsafe."""


class MissingRank(RuntimeError):
    """A barrier, gather or broadcast of a test on ranks that can never be complete.

    A rank has ended, or is in another one. The text names it.
    """


class WorkerError(RuntimeError):
    """``rlaunch.launch``: a rank failed, or a signal stopped the job. The text is the launcher's verdict.

    Attributes:
        report: how the job ended.
    """

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message, report)
        self.report = report

    def __str__(self) -> str:
        return str(self.args[0])


class LaunchError(RuntimeError):
    """``rlaunch.launch``: the launcher could not do what was asked. The text is what it said.

    Attributes:
        status: the launcher's exit status; minus the number of the signal if one ended it.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class ProcessException(Exception):
    """A process of ``rlaunch.torch.start_processes`` failed. Contract: torch's of the same name.

    Where ``torch.multiprocessing`` has been imported by the time it is raised, or unpickled, it is an
    instance of torch's class too, so that ``except torch.multiprocessing.ProcessRaisedException`` has it.

    Attributes:
        msg: the text.
        error_index: which process.
        error_pid: its process id.
    """

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        # Not super(): torch's class may come next, and wants more.
        Exception.__init__(self, msg)
        self.msg = msg
        self.error_index = error_index
        self.error_pid = error_pid

    def __reduce__(self) -> Any:
        return _again, (_own(type(self)), (self.msg, self.error_index, self.error_pid))


class ProcessRaisedException(ProcessException):
    """The process raised an exception; the text has its traceback."""


class ProcessExitedException(ProcessException):
    """The process ended by a signal, or with an exit code that is not 0.

    Attributes:
        exit_code: its exit code, or minus the number of the signal that ended it.
        signal_name: that signal's name; None without one.
    """

    def __init__(
        self, msg: str, error_index: int, error_pid: int, exit_code: int, signal_name: str | None = None
    ) -> None:
        ProcessException.__init__(self, msg, error_index, error_pid)
        self.exit_code = exit_code
        self.signal_name = signal_name

    def __reduce__(self) -> Any:
        kind = _own(type(self))
        return _again, (kind, (self.msg, self.error_index, self.error_pid, self.exit_code, self.signal_name))


# --- Classes that are a peer's too ----------------------------------------------------------------------

_joint: dict[tuple[type, type], Any] = {}


def counterpart(own: type[Exception], module: str) -> type[Exception] | None:
    """The class of the same name in a peer's ``module``; None where that is not imported."""
    theirs = getattr(sys.modules.get(module), own.__name__, None)
    return theirs if isinstance(theirs, type) and issubclass(theirs, Exception) else None


def peer_class(own: type[_E], module: str) -> type[_E]:
    """A class that is ``own`` and its counterpart in a peer's ``module``; ``own`` where there is none."""
    theirs = counterpart(own, module)
    if theirs is None:
        return own
    if (own, theirs) not in _joint:
        said = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__}
        try:
            made = type(own.__name__, (own, theirs), {**said, "_own": own})
        except TypeError:  # A later torch's class may be laid out in another way.
            made = own
        _joint[own, theirs] = made
    joint: type[_E] = _joint[own, theirs]
    return joint


def _own(kind: type[Exception]) -> type[Exception]:
    """The class that a joint one was made of: joint ones are not to be found by name."""
    return getattr(kind, "_own", kind)


def _again(own: type[Exception], args: tuple[Any, ...]) -> Exception:
    return peer_class(own, TORCH_SPAWN)(*args)
