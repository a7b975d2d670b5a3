"""Exceptions of rlaunch: typed, picklable, plain Python."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .report import Report


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
