"""Reports of subtests: the ranks' reports of the same subtest become one report.

pytest's fixture ``subtests``, ``unittest.TestCase.subTest`` and pytest-subtests log them while a test runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from . import outcome
from .messages import SUBTEST
from .stacks.grouping import format_ranks

if TYPE_CHECKING:
    from .run import Run

# The outcome of a subtest is the worst one of its ranks.
_WORST_FIRST = ("failed", "skipped", "passed")


def log_subtests(item: pytest.Item, run: Run, phase: str, plugin: object) -> None:
    """Logs the subtests of a phase, and counts those that failed.

    Args:
        plugin: the plugin whose hooks are for the test's own reports alone.
    """
    makereport = item.config.pluginmanager.subset_hook_caller("pytest_runtest_makereport", [plugin])
    # Subtests may have the same description: the first one of a rank is the first one of the others, too.
    subtests: dict[tuple[str, int], dict[int, tuple[dict[str, Any], Any]]] = {}
    for peer in run.peers:
        counts: dict[str, int] = {}
        for report, raised in peer.subtests.pop(phase, []):
            name = repr(report.get(SUBTEST))
            counts[name] = counts.get(name, 0) + 1
            subtests.setdefault((name, counts[name]), {})[peer.number] = (report, raised)
    for by_rank in subtests.values():
        report = _merge(item, run, by_rank, makereport)
        if report.failed and not hasattr(report, "wasxfail"):
            run.failed_subtests += 1
        item.ihook.pytest_runtest_logreport(report=report)


def fail_if_subtests_failed(run: Run, report: pytest.TestReport) -> None:
    """Fails a test that has passed, if pytest has failed it in its ranks: from 9 on, for failed subtests."""
    marked = any(report.get("contains_failed_subtests") for peer in run.peers for report in peer.reports)
    if report.passed and report.when == "call" and marked and run.failed_subtests:
        report.outcome = "failed"
        plural = "s" if run.failed_subtests > 1 else ""
        report.longrepr = f"contains {run.failed_subtests} failed subtest{plural}"


def _merge(
    item: pytest.Item, run: Run, by_rank: dict[int, tuple[dict[str, Any], Any]], makereport: Any
) -> Any:
    """Returns the report of a subtest, whose outcome the marks of the test decide in this process."""
    worst = min(by_rank, key=lambda rank: _WORST_FIRST.index(by_rank[rank][0]["outcome"]))
    data, raised = by_rank[worst]

    def repeat() -> None:
        if data["outcome"] != "passed":
            raise outcome.repeat_exception(data, raised)

    call = pytest.CallInfo.from_call(repeat, "call")
    decided = makereport(item=item, call=call)
    report: Any = outcome.load_report(item, data)
    if SUBTEST in data:  # pytest 9 quotes the values once more.
        report.context.kwargs.update(data[SUBTEST]["kwargs"])
    report.sections = [(f"{title} of rank {worst}", text) for title, text in report.sections]
    report.outcome = decided.outcome
    if hasattr(decided, "wasxfail"):
        report.wasxfail = decided.wasxfail
    if report.longrepr is None:
        report.longrepr = decided.longrepr  # XPASS(strict)
    elif data["outcome"] == "failed":
        failed = [rank for rank in by_rank if by_rank[rank][0]["outcome"] == "failed"]
        states = [f"rank {peer.number}: {_describe(by_rank, peer.number, worst)}" for peer in run.peers]
        report.longrepr = outcome.add_ranks(item, report.longrepr, format_ranks(failed), states)
    return report


def _describe(by_rank: dict[int, tuple[dict[str, Any], Any]], rank: int, shown: int) -> str:
    if rank not in by_rank:
        return "did not report it"
    report = by_rank[rank][0]
    if report["outcome"] != "failed":
        return str(report["outcome"])
    line = outcome.get_first_line(report["longrepr"])
    return f"failed: {line} (above)" if rank == shown else f"failed too: {line}"
