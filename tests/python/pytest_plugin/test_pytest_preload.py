"""Tests whose ranks are to be forked from a process that has imported something: when it cannot be."""

from __future__ import annotations

import os
import sys

import pytest
from paths import ROOT
from pytest_suites import QUICK, Suite, suite_fixture, write_packages  # noqa: F401


def test_a_module_that_makes_a_fork_unsafe_is_reported_in_a_line(
    suite: Suite, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        background="""
        import threading
        threading.Thread(target=threading.Event().wait, name="loader", daemon=True).start()
        """
    )
    pytester._monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    done = suite(
        """
        @pytest.mark.ranks(2, preload="background")
        def test_thread():
            pass

        @pytest.mark.ranks(2, preload="no_such")
        def test_none():
            pass

        @pytest.mark.ranks(2, preload="auto,background")
        def test_or_not(rank):
            assert rank.gather(rank.rank) == [0, 1]
        """
    )
    done.assert_outcomes(passed=1, errors=2)
    done.stdout.fnmatch_lines(
        [
            "*ERROR at setup of test_thread*",
            "the ranks cannot be started: no preload server: importing background, pytest, * and * more "
            "left a thread running (loader), which a fork would lose",
            "*ERROR at setup of test_none*",
            "the ranks cannot be started: no preload server: import no_such: ModuleNotFoundError: *",
        ]
    )
    assert "direct cause" not in str(done.stdout)


def test_a_module_whose_import_hangs_meets_the_limit_of_the_startup(pytester: pytest.Pytester) -> None:
    """Only its own frames are shown, also if rlaunch is in a folder with a space and a non-ASCII letter."""
    (pytester.path / "a ü").symlink_to(ROOT / "python")
    pytester.makepyfile(
        hangs="import time\n\ndef load():\n    time.sleep(600)\n\nload()\n",
        test_it="""
        import pytest

        @pytest.mark.ranks(2, preload="hangs", startup_timeout=5)
        def test_it():
            pass
        """,
    )
    path = [str(pytester.path / "a ü"), str(pytester.path)]
    pytester._monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    done = pytester.run(sys.executable, "-m", "pytest", *QUICK, timeout=100)
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(
        [
            "the ranks cannot be started: no preload server: importing hangs, pytest, * and * more had not "
            "ended after 5 s (ranks_startup_timeout); it was here:",
            "Thread * (most recent call first):",
            '  File "*/hangs.py", line 4 in load',
            '  File "*/hangs.py", line 6 in <module>',
            "=*",
        ],
        consecutive=True,
    )


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "1")], ids=["alone", "workers"])
def test_ranks_report_their_imports(
    suite: Suite, pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    installed = write_packages(pytester.path)
    pytester._monkeypatch.setenv("PYTHONPATH", f"{installed}:{pytester.path}")
    pytester.makeconftest(
        """
        from rlaunch._pytest import import_times
        import_times._WORTH = import_times._WORTH_SHARE = import_times._SHARE = 0.0
        """
    )
    done = suite(
        """
        @ranks(2)
        def test_it():
            import users
        """,
        *workers,
    )
    done.assert_outcomes(passed=1)
    lines = [line for line in done.outlines if line.startswith("ranks imported ")]
    assert len(lines) == 1
    assert {"heavy", "heavy.later"} <= set(
        lines[0].split(" for ")[0].removeprefix("ranks imported ").split(", ")
    )
