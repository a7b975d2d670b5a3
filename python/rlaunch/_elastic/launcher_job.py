"""Runs ``python -m rlaunch.run`` and raises torch's exceptions for failed ranks."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from .._errors.torch_classes import TORCH_ERRORS, peer_class
from .._launch.launcher_process import run_launcher
from .._launch.outcome import make_report
from ..errors import WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .._errors.failures import ChildFailedError, ProcessFailure
    from ..report import RankResult, Report

# pytest shows the caller's frames alone. IPython reads the name in each frame.
__tracebackhide__ = True


def run_job(arguments: Iterable[str], name: str) -> Report:
    """Runs ``python -m rlaunch.run`` with these arguments; PET_ variables have no effect.

    Args:
        arguments: the whole command line.
        name: name of the program or function, for messages.

    Raises:
        ChildFailedError: a rank failed.
        WorkerError: a signal stopped the job, it was preempted, or node 0's store was lost.
        LaunchError: the launcher could not start the job.
    """
    __tracebackhide__ = True
    argv = [os.fsencode(word) for word in [sys.executable, "-m", "rlaunch.run", *arguments]]
    environ = {**os.environ, "RLAUNCH_RUN_SPELT_OUT": "1", "RLAUNCH_TITLE": name}
    try:
        return make_report(*run_launcher(argv, environ, None))
    except WorkerError as error:
        failed = _make_child_failed_error(error, name)
        if failed is None:
            raise
        raise failed from None


def _make_child_failed_error(error: WorkerError, name: str) -> ChildFailedError | None:
    """Returns the exception for ranks that failed by themselves; None if none did.

    The culprit counts as one even if the launcher stopped it: a rank that has recorded its error may take
    long to end.
    """
    from .._errors.failures import NOT_AVAILABLE, ChildFailedError, ProcessFailure

    failures, report = {}, error.report
    for rank in report.ranks:
        if rank.exitcode is not None and (rank.status == "failed" or rank.rank == report.culprit):
            folder = os.path.join(report.log_dir, f"attempt_{rank.attempt}", str(rank.local_rank))
            error_file = os.path.join(folder, "error.json")
            failure = ProcessFailure(rank.local_rank, rank.pid or 0, rank.exitcode, error_file)
            if failure.error_file == NOT_AVAILABLE:
                _fill_from_report(failure, rank, report)
            failures[rank.rank] = failure
    if report.culprit not in failures:
        return None
    return peer_class(ChildFailedError, TORCH_ERRORS)(name, failures, report.culprit, report, f"\n{error}")


def _fill_from_report(failure: ProcessFailure, rank: RankResult, report: Report) -> None:
    """Sets time and message of a failed rank that wrote no error file."""
    if rank.ended is not None:
        failure.timestamp = int(rank.ended)
    if rank.rank == report.culprit:
        reason, lines = report.reason or "", report.last_lines or ""
    else:
        reason, lines = f"exit code {rank.exitcode}; see {rank.log}" if rank.log else "", ""
    if failure.exitcode < 0:
        # Torch's text about the signal.
        reason, lines = str(failure.message), f"{failure.message}\n{lines}".rstrip()
    if reason:
        # The form of an error file, which torch's classes format too.
        extra = {"py_callstack": lines or reason, "timestamp": str(failure.timestamp)}
        failure.message = {"message": reason, "extraInfo": extra}
        failure.error_file_data["message"] = failure.message


def get_entrypoint_name(entrypoint: Callable[..., Any] | str, args: Sequence[Any]) -> str:
    """Returns the name of what the ranks run. Contract: ``_get_entrypoint_name`` of torch 2.15's launcher."""
    if not isinstance(entrypoint, str):
        return getattr(entrypoint, "__name__", type(entrypoint).__name__)
    if entrypoint != sys.executable:
        return entrypoint
    return next((arg for arg in map(str, args) if not arg.startswith("-")), "")
