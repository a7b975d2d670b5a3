"""The exceptions of rlaunch, and ``record``, which reports a rank's exception to its launcher.

All of them can be pickled.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._errors.error_file import record as record
    from ._errors.failures import ChildFailedError as ChildFailedError
    from ._errors.failures import ProcessFailure as ProcessFailure
    from ._errors.torch_classes import TORCH_ERRORS as TORCH_ERRORS
    from ._errors.torch_classes import TORCH_SPAWN as TORCH_SPAWN
    from ._errors.torch_classes import counterpart as counterpart
    from ._errors.torch_classes import peer_class as peer_class
    from .report import Report

__all__ = [
    "ChildFailedError",
    "JobError",
    "LaunchError",
    "LaunchValueError",
    "MissingRankError",
    "NoResultError",
    "ProcessException",
    "ProcessExitedException",
    "ProcessFailure",
    "ProcessRaisedException",
    "RankError",
    "StaleRoundError",
    "WorkerError",
    "ZygoteError",
    "record",
]

# Imported on first use: together they take longer to import than the rest of rlaunch.
_LAZY = {
    "record": "error_file",
    "ChildFailedError": "failures",
    "ProcessFailure": "failures",
    "TORCH_ERRORS": "torch_classes",
    "TORCH_SPAWN": "torch_classes",
    "counterpart": "torch_classes",
    "peer_class": "torch_classes",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        # Not by importlib, whose import takes longer than most of these modules'.
        return getattr(__import__(f"{__package__}._errors.{_LAZY[name]}", fromlist=(name,)), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class JobError(Exception):
    """Ranks failed, or a signal stopped them: the base of ``RankError`` and ``WorkerError``.

    Attributes:
        rank: number of the rank that failed first; None if no rank failed by itself.
        exitcode: its exit code, or minus the number of the signal that ended it; None if that is unknown.
    """

    rank: int | None
    exitcode: int | None


class RankError(JobError):
    """A rank of ``rlaunch.spawn`` failed. The text is that of ``paddle.distributed.spawn``.

    Attributes:
        rank: the rank's number.
        exitcode: its exit code, or minus the number of the signal that ended it.
        traceback: the rank's traceback as text; None if it raised nothing.
    """

    rank: int
    exitcode: int

    def __init__(self, message: str, rank: int, exitcode: int, traceback: str | None = None) -> None:
        super().__init__(message, rank, exitcode, traceback)
        self.rank = rank
        self.exitcode = exitcode
        self.traceback = traceback

    def __str__(self) -> str:
        return str(self.args[0])


class NoResultError(EOFError):
    """A rank's queue is empty and stays so: the rank has ended, or its one item was taken."""


class ZygoteError(RuntimeError):
    """No preload server to fork ranks from: it has ended, an import failed, or a fork would be unsafe."""


class StaleRoundError(RuntimeError):
    """``rlaunch.checkpoint_guard``: the round of this rank is over, and a newer one may have saved."""


class MissingRankError(RuntimeError):
    """A barrier, gather or broadcast of a test on ranks can never be complete.

    A rank has ended, or is in another operation. The text names it.
    """


class WorkerError(JobError, RuntimeError):
    """``rlaunch.launch``: a rank failed, the job was stopped or preempted, or another node was lost.

    The text is the failure report, or says how the job ended.

    Attributes:
        report: how the job ended; its ``exit_status`` is that of the launcher.
        rank: the culprit's number; None if no rank failed by itself.
        exitcode: the culprit's exit code, as in ``RankResult``; None if there is none.
    """

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message, report)
        self.report = report
        self.rank = report.culprit
        culprit = (report.culprit, report.culprit_role)
        codes = (rank.exitcode for rank in report.ranks if (rank.rank, rank.role) == culprit)
        self.exitcode = next(codes, None)

    def __str__(self) -> str:
        return str(self.args[0])


class LaunchError(RuntimeError):
    """``rlaunch.launch``: the launcher could not start the job. The text is the launcher's error message.

    Attributes:
        status: the launcher's exit status; minus the number of the signal if one ended it.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class LaunchValueError(LaunchError, ValueError):
    """A ``LaunchError`` about an option's value, which is a ValueError in torchrun too."""


class ProcessException(Exception):
    """A process of ``rlaunch.torch.start_processes`` failed. Contract: torch's of the same name.

    If ``torch.multiprocessing`` is imported when it is raised or unpickled, it is also an instance of torch's
    class: ``except torch.multiprocessing.ProcessRaisedException`` catches it.

    Attributes:
        msg: the text.
        error_index: index of the process.
        error_pid: its process id.
    """

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        # Not by super(): torch's class may be next, and takes more arguments.
        Exception.__init__(self, msg)
        self.msg = msg
        self.error_index = error_index
        self.error_pid = error_pid

    def __reduce__(self) -> Any:
        from ._errors.torch_classes import own_class

        return _make_process_exception, (own_class(type(self)), (self.msg, self.error_index, self.error_pid))


class ProcessRaisedException(ProcessException):
    """The process raised an exception; the text contains its traceback."""


class ProcessExitedException(ProcessException):
    """The process was ended by a signal or exited with a status other than 0.

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
        from ._errors.torch_classes import own_class

        args = (self.msg, self.error_index, self.error_pid, self.exit_code, self.signal_name)
        return _make_process_exception, (own_class(type(self)), args)


def _make_process_exception(own: type[Exception], args: tuple[Any, ...]) -> Exception:
    from ._errors.torch_classes import TORCH_SPAWN, peer_class

    return peer_class(own, TORCH_SPAWN)(*args)
