"""Says at the end of a session when ranks spent much of their time in imports, and how to spare it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .run import Run

# The attribute of a report: it reaches the main process of pytest-xdist too.
ATTRIBUTE = "ranks_imports"
# Seconds of imports in a session that are worth a line.
_WORTH = 5.0
# Of the time of all tests on ranks, the share of imports that is worth a line.
_WORTH_SHARE = 1 / 3
# Of all imports, the share of a module that is named.
_SHARE = 0.1


def add_to_report(report: pytest.TestReport, run: Run) -> None:
    """Notes in a report what the rank imported that imported longest, in seconds by module."""
    slowest = max((peer.imports for peer in run.peers), key=lambda imports: sum(imports.values()), default={})
    setattr(report, ATTRIBUTE, slowest)


class ImportTimes:
    """Adds up the tests on ranks of a session."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._tests = 0
        # Seconds of each test so far, of those whose last report has not come.
        self._running: dict[str, float] = {}
        self._total = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        lasted = self._running.pop(report.nodeid, 0.0) + report.duration
        imports: dict[str, float] | None = getattr(report, ATTRIBUTE, None)
        if imports is None:
            if report.when != "teardown":
                self._running[report.nodeid] = lasted
            return
        self._total += lasted
        self._tests += 1
        for name, seconds in imports.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        line = self._advise(config.getini("ranks_preload"))
        if line is not None:
            terminalreporter.write_line(line, yellow=True)

    def _advise(self, preload: str) -> str | None:
        imported = sum(self._seconds.values())
        if imported < _WORTH or imported < self._total * _WORTH_SHARE:
            return None
        slow = [name for name, seconds in self._seconds.items() if seconds >= imported * _SHARE]
        modules = ",".join(dict.fromkeys([*filter(None, preload.split(",")), *slow]))
        tests = "1 test" if self._tests == 1 else f"{self._tests} tests"
        return (
            f"ranks imported {', '.join(slow)} for {imported:.0f} s of {self._total:.0f} s in {tests}; "
            f"ranks_preload = {modules} in pytest.ini imports once (or preload in the marker)"
        )
