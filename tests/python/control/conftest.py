"""Which tests of the command ``rlaunch`` are for ``make test-full`` alone."""

from __future__ import annotations

from effort import FULL

# Not skipped: in `make test` a skipped test is a missing tool, which CI takes for a failure.
collect_ignore = [] if FULL else ["test_report_browser.py"]
