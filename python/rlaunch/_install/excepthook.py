"""Shows how a job ended in place of a traceback, in programs that call rlaunch without knowing it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

# Not in the hook: after an import there, Python would not end this process by SIGINT for a KeyboardInterrupt.
from .._errors.failures import ChildFailedError
from .._launch import launcher_process
from ..errors import LaunchError, WorkerError

if TYPE_CHECKING:
    from types import TracebackType


def show_reports_without_traceback() -> None:
    """Makes uncaught exceptions of a job print their text, and a Ctrl-C during a job nothing."""
    previous: Any = sys.excepthook
    if getattr(previous, "__module__", None) == __name__:
        return

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = _describe(error)
        if text is None:
            previous(kind, error, trace)
        elif text and sys.stderr is not None:
            print(text, file=sys.stderr)

    sys.excepthook = show


def _describe(error: BaseException) -> str | None:
    """Returns what to print for an exception that a job's end has raised; None for any other."""
    if isinstance(error, KeyboardInterrupt):
        return "" if _is_from_launcher(error) else None
    if isinstance(error, ChildFailedError):
        return str(error)
    if isinstance(error, LaunchError):
        return f"rlaunch: error: {error}"
    if isinstance(error, WorkerError):
        # The launcher has printed why it stopped.
        return "" if error.report.outcome == "stopped" else str(error)
    return None


def _is_from_launcher(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == launcher_process.__name__:
            return True
        trace = trace.tb_next
    return False
