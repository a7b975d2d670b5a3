"""Exceptions of rlaunch: typed, picklable, plain Python."""

from __future__ import annotations


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
