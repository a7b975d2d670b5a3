"""Turns the launcher's record into a report or an exception."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..report import Report

# pytest shows the caller's frames alone.
__tracebackhide__ = True


def make_report(record: bytes, exit_status: int | None) -> Report:
    """Returns the report of a job that completed.

    Args:
        record: what the launcher wrote to its status pipe: one JSON object, or nothing.
        exit_status: the launcher's exit status.

    Raises:
        LaunchError: the launcher could not start the job.
        WorkerError: the job ended in any other way.
    """
    import json

    from ..errors import LaunchError, WorkerError

    fields = json.loads(record or b"{}")
    if "outcome" not in fields:
        status = fields.get("exit_status", exit_status)
        silent = f"the launcher ended with {status} and has not said why"
        raise LaunchError(fields.get("error", silent), status)
    from ..report import make_report_from

    report = make_report_from(fields)
    if report.outcome == "completed":
        return report
    if report.outcome == "not_started":
        why = next((rank.why for rank in report.ranks if rank.why), "")
        raise LaunchError(f"cannot start {why}", report.exit_status)
    if report.outcome in ("too_few_nodes", "refused"):
        raise LaunchError(report.job_end or report.outcome, report.exit_status)
    raise WorkerError(report.verdict or report.job_end or f"the job ended with {report.outcome}", report)


def print_unraised_report(record: bytes) -> None:
    """Prints the failure report or the error of a job that failed, if no exception with it is raised."""
    import contextlib
    import json

    # The launcher may have been killed in the middle of the record; stderr may be closed, missing or broken.
    with contextlib.suppress(ValueError, OSError, AttributeError):
        fields = json.loads(record or b"{}")
        outcome, text = fields.get("outcome"), ""
        if outcome is None and "error" in fields:
            text = f"rlaunch: error: {fields['error']}\n"
        elif outcome == "not_started":
            why = next((rank["why"] for rank in fields["ranks"] if rank.get("why")), "")
            text = f"rlaunch: error: cannot start {why}\n"
        elif outcome == "failed":
            text = fields.get("verdict") or ""
        print(text, end="", file=sys.stderr, flush=True)
