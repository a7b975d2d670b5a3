"""The pytest plugin: tests marked ``@pytest.mark.ranks(n)`` run on n ranks.

With RLAUNCH_INSTALL=1, a suite that calls the launchers of Paddle or torch runs on rlaunch.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

# The header of a traceback, and the first line of its exception. The lines of an exception group begin with a
# frame of "|" and "+". The tracebacks of the exceptions that it contains are deeper in it.
_TRACEBACK = re.compile(r"^ *(?:\+ Exception Group )?Traceback \(most recent call last\):\n", re.MULTILINE)
_EXCEPTION = re.compile(r"^(?:  \| )?([^\s|+].*)", re.MULTILINE)


def _read_requested_frameworks() -> list[str]:
    from ._install.import_hook import read_variable

    try:
        return read_variable()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def _read_seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < 1e9:
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a number of seconds, 0 for no limit, but got {text!r}")


def pytest_addoption(parser: pytest.Parser) -> None:
    timeout = "seconds for a test on ranks, unless its marker or pytest-timeout sets them; 0: no limit"
    startup_timeout = (
        "seconds for ranks to start and import the test's file, unless the marker sets them; 0: no limit"
    )
    parser.addini("ranks_timeout", f"{timeout} (default: 300)")
    parser.addini("ranks_startup_timeout", f"{startup_timeout} (default: 120)")
    parser.addini(
        "ranks_preload",
        "modules to import once for all tests on ranks whose markers set neither preload nor start_method "
        "(torch, paddle)",
    )
    parser.addini(
        "ranks_leaks",
        "what to do if ranks leave processes, ports or shared memory behind: error (default), warn or ignore",
    )
    group = parser.getgroup("rlaunch", "tests on ranks")
    group.addoption(
        "--ranks-pdb",
        type=int,
        default=None,
        metavar="RANK",
        help="rank that enters the debugger when a test on ranks fails (--pdb: the first rank that fails)",
    )
    for name, text in (("--ranks-timeout", timeout), ("--ranks-startup-timeout", startup_timeout)):
        group.addoption(name, type=_read_seconds, default=None, metavar="SECONDS", help=text)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "ranks(n, *, timeout=None, startup_timeout=None, start_method=None, gpus=None, "
        "frameworks='paddle,torch', preload=None, shared=()): run the test on n ranks, each a process of its "
        "own.",
    )
    for name in ("ranks_timeout", "ranks_startup_timeout"):
        try:
            _read_seconds(config.getini(name) or "0")
        except argparse.ArgumentTypeError as error:
            raise pytest.UsageError(f"{name} {error}") from None
    is_distributed = config.getoption("tx", None) and config.getoption("dist", "no") != "no"
    if is_distributed and config.getoption("ranks_pdb") is not None:
        raise pytest.UsageError(
            "--ranks-pdb is incompatible with distributing tests, because workers of pytest-xdist have no "
            "terminal; try -n 0"
        )
    if not hasattr(config, "workerinput"):
        from ._pytest.import_times import ImportTimes

        config.pluginmanager.register(ImportTimes(), "rlaunch-import-times")
    if names := _read_requested_frameworks():
        from ._install.import_hook import InstallingFinder

        finder = InstallingFinder(names)
        finder.install()
        config.add_cleanup(finder.uninstall)


def pytest_report_header() -> list[str]:
    names = _read_requested_frameworks()
    return [f"rlaunch: installed in place of the launchers of {' and '.join(names)}"] if names else []


def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    if config.pluginmanager.has_plugin("rlaunch-rank"):
        return
    marked = [item for item in session.items if item.get_closest_marker("ranks") is not None]
    if marked:
        # Imported only for sessions with marked tests.
        from ._pytest.hooks import run_on_ranks

        run_on_ranks(config, marked)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows in pytest's summary what a rank of ``rlaunch.spawn``, ``rlaunch.launch`` and the like raised."""
    summary = None
    if call.excinfo is not None and "rlaunch.errors" in sys.modules:
        summary = _summarize(call.excinfo.value)
    report = yield
    crash = getattr(report.longrepr, "reprcrash", None)
    if summary is not None and crash is not None:
        crash.message = summary
    return report


def _summarize(error: BaseException) -> str | None:
    """Returns one line, ``rank 0: ValueError: why``; None if the exception is not one of failed ranks."""
    from . import errors

    if isinstance(error, errors.ChildFailedError):
        rank, failure = error.get_first_failure()
        message = failure.message
        text = str(message.get("message", "") if isinstance(message, dict) else message)
        return f"rank {rank}: {_find_exception(text)}"
    if isinstance(error, errors.WorkerError) and error.rank is not None and error.report.reason:
        return f"rank {error.rank}: {error.report.reason}"
    if isinstance(error, errors.RankError) and error.traceback is not None:
        return f"rank {error.rank}: {_find_exception(error.traceback)}"
    if isinstance(error, errors.ProcessRaisedException):
        return f"rank {error.error_index}: {_find_exception(error.msg)}"
    if isinstance(error, (errors.JobError, errors.ProcessException, errors.LaunchError)):
        return str(error).strip().partition("\n")[0]
    return None


def _find_exception(text: str) -> str:
    """Returns the first line of the exception at the end of a traceback."""
    last = _TRACEBACK.split(text.strip())[-1]
    found = _EXCEPTION.search(last)
    return found[1] if found is not None else last.rpartition("\n")[2]


@pytest.fixture(scope="session")
def rank(pytestconfig: pytest.Config) -> Any:
    """The rank that this process is in its test: ``rank.rank``, ``world_size``, ``local_rank``.

    Operations of all ranks: ``rank.barrier()``, ``rank.gather(obj)``, ``rank.broadcast(obj, src=0)``.
    """
    session: Any = pytestconfig.pluginmanager.get_plugin("rlaunch-rank")
    if session is not None:
        return session.rank
    pytest.fail("no rank here: mark the test with @pytest.mark.ranks(n)", pytrace=False)
