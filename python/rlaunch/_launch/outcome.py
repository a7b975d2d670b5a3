"""Turns the launcher's record into a report or an exception."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..report import Report

# pytest shows the caller's frames alone. IPython reads the name in each frame.
__tracebackhide__ = True


def find_result(record: bytes) -> dict[str, Any] | None:
    """Returns the first whole JSON object, each of which is a line; None if there is none yet.

    Each of the launcher's two processes may have written one, or been killed in the middle of it.
    """
    import contextlib
    import json

    for line in record.splitlines():
        with contextlib.suppress(ValueError):
            fields: dict[str, Any] = json.loads(line)
            return fields
    return None


# The exit status of a command line that is refused.
_USAGE = 2


def make_report(record: bytes, exit_status: int | None) -> Report:
    """Returns the report of a job that completed.

    Args:
        record: what the launcher wrote to its status pipe.
        exit_status: the launcher's exit status.

    Raises:
        LaunchError: the launcher could not start the job. For an option's value: a LaunchValueError.
        WorkerError: the job ended in any other way.
    """
    __tracebackhide__ = True
    from ..errors import LaunchError, LaunchValueError, WorkerError

    fields = find_result(record) or {}
    if "outcome" not in fields:
        status: Any = fields.get("exit_status", exit_status)
        silent = f"the launcher ended with {status} and has not said why"
        text = fields.get("error", silent)
        # The number of GPUs is a property of the machine, but torchrun's error is the same.
        is_value = status == _USAGE or text.startswith("--nproc-per-node ")
        raise (LaunchValueError if is_value else LaunchError)(text, status)
    from ..report import make_report_from

    report = make_report_from(fields)
    if report.outcome == "completed":
        return report
    if report.outcome == "preempted":
        # The ranks exited with 0, but the training is not done: the caller must not go on with its results.
        said = report.job_end or "the job was preempted: its ranks stopped at a common step"
        raise WorkerError(f"{said}; the training is not done", report)
    if report.outcome == "not_started":
        why = next((rank.why for rank in report.ranks if rank.why), "")
        raise LaunchError(f"cannot start {why}", report.exit_status)
    if report.outcome in ("too_few_nodes", "refused"):
        raise LaunchError(report.job_end or report.outcome, report.exit_status)
    raise WorkerError(report.verdict or report.job_end or f"the job ended with {report.outcome}", report)


def print_unraised_report(record: bytes) -> None:
    """Prints the failure report or the error of a job that failed, if no exception with it is raised."""
    import contextlib

    # stderr may be closed, missing or broken.
    with contextlib.suppress(ValueError, OSError, AttributeError):
        fields = find_result(record) or {}
        outcome, text = fields.get("outcome"), ""
        if outcome is None and "error" in fields:
            text = f"rlaunch: error: {fields['error']}\n"
        elif outcome == "not_started":
            why = next((rank["why"] for rank in fields["ranks"] if rank.get("why")), "")
            text = f"rlaunch: error: cannot start {why}\n"
        elif outcome == "failed":
            text = fields.get("verdict") or ""
        print(text, end="", file=sys.stderr, flush=True)
