"""Ctrl-C, Ctrl-\\ and KeyboardInterrupt while a test runs: the stacks shown, and that no rank is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from effort import each
from launching import await_none_marked, until
from pytest_suites import Suite, suite_fixture  # noqa: F401
from pytest_terminal import StartSession, TerminalSession, start_session_fixture  # noqa: F401

# A rank is in the same line while it tells that it is there and afterwards.
WAITS = """
    import os, time, pytest

    def load(rank):
        open(f"ready.{rank}", "w").close() or time.sleep(600)

    @pytest.mark.ranks(3, preload="json")
    def test_waits(rank):
        if rank.rank == 1:
            load(rank.rank)
        open(f"ready.{rank.rank}", "w").close() or time.sleep(600)
    """


@pytest.fixture(params=['preload="json"'])
def waiting(
    request: pytest.FixtureRequest,
    start_session: StartSession,
    tmp_path: Path,
    mark: str,
    monkeypatch: pytest.MonkeyPatch,
) -> TerminalSession:
    """A session whose ranks wait. The parameter says how they are started."""
    monkeypatch.setenv("RLAUNCH_TEST_MARK", mark)
    session = start_session(WAITS.replace('preload="json"', request.param))
    for rank in range(3):
        until((tmp_path / f"ready.{rank}").exists, f"rank {rank} to wait", 60)
    return session


def check_stacks(report: str) -> None:
    """Asserts that the stacks of all ranks are there, without those of rlaunch."""
    lines = report.replace("\r", "").splitlines()
    at = lines.index("test_it.py::test_waits was interrupted")
    shown = [line.rpartition("/")[2].strip() for line in lines[at + 2 : at + 7]]
    others, first, second = (
        ["test_it.py:11 in test_waits"],
        "test_it.py:10 in test_waits",
        "test_it.py:5 in load",
    )
    assert shown == ["ranks 0, 2:", *others, "rank 1, the odd one:", first, second]
    assert "rlaunch/_pytest/" not in report


def test_ctrl_c_shows_the_test_and_the_stacks_of_its_ranks(waiting: TerminalSession, mark: str) -> None:
    waiting.type("\x03")
    report = waiting.until("use --full-trace")
    assert "!! KeyboardInterrupt !!" in report
    check_stacks(report)
    assert waiting.wait() == pytest.ExitCode.INTERRUPTED
    await_none_marked(mark)


def test_sigint_to_pytest_alone_shows_the_same(waiting: TerminalSession, mark: str) -> None:
    os.kill(waiting.pid, signal.SIGINT)
    check_stacks(waiting.until("use --full-trace"))
    assert waiting.wait() == pytest.ExitCode.INTERRUPTED
    await_none_marked(mark)


IMPORTS = """
    import os, time

    if "RANK" in os.environ:
        open("imports." + os.environ["RANK"], "w").close()
        time.sleep(600)

    import pytest

    @pytest.mark.ranks(2)
    def test_waits(rank, tmp_path):
        pass
    """


def test_ctrl_c_while_the_ranks_import_the_test_file(start_session: StartSession, tmp_path: Path) -> None:
    session = start_session(IMPORTS)
    for rank in range(2):
        until((tmp_path / f"imports.{rank}").exists, f"rank {rank} to import the file", 60)
    session.type("\x03")
    assert "test_it.py::test_waits was interrupted" in session.until("use --full-trace")
    assert session.wait() == pytest.ExitCode.INTERRUPTED


BETWEEN = """
    import os, time
    import pytest

    if "RANK" not in os.environ:
        class Plugin:
            @pytest.hookimpl(tryfirst=True)
            def pytest_runtest_logreport(self, report):
                if report.when == "setup":
                    while not os.path.exists("waits"):
                        time.sleep(0.01)
                    os.kill(os.getpid(), int(os.environ["BY"]))

        @pytest.fixture(scope="session", autouse=True)
        def between(request):
            request.config.pluginmanager.register(Plugin())

    @pytest.mark.ranks(2, shared=["between"], start_method="fork")
    def test_waits(rank):
        if rank.rank == 1:
            open("waits", "w").close() or time.sleep(600)
        rank.barrier()
    """


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGQUIT])
def test_an_interrupt_between_two_phases_of_pytest_shows_the_stacks(
    start_session: StartSession, monkeypatch: pytest.MonkeyPatch, by: signal.Signals
) -> None:
    monkeypatch.setenv("BY", str(int(by)))
    session = start_session(BETWEEN)
    report = session.until("in test_waits")
    assert "test_it.py::test_waits was interrupted" in report
    if by == signal.SIGINT:
        session.until("use --full-trace")
    assert session.wait() == (pytest.ExitCode.INTERRUPTED if by == signal.SIGINT else -by)


@pytest.mark.parametrize("waiting", ['preload="json"', 'start_method="fork"'], indirect=True)
@pytest.mark.parametrize("is_typed", [True, False])
def test_sigquit_shows_the_stacks_and_ends_pytest_as_without_ranks(
    is_typed: bool, waiting: TerminalSession, mark: str
) -> None:
    if is_typed:
        waiting.type("\x1c")
    else:
        os.kill(waiting.pid, signal.SIGQUIT)
    last = "test_it.py:5 in load"
    check_stacks(waiting.until(last) + last)
    assert waiting.wait() == -signal.SIGQUIT
    await_none_marked(mark)


OWN_HANDLER = """
import faulthandler, os, signal, sys
from rlaunch._pytest.stacks.at_quit import stacks_at_quit
faulthandler.register(signal.SIGQUIT)
with stacks_at_quit(lambda: sys.exit("was called")):
    os.kill(os.getpid(), signal.SIGQUIT)
os.kill(os.getpid(), signal.SIGQUIT)
"""


def test_a_handler_that_the_session_has_for_sigquit_stays() -> None:
    done = subprocess.run([sys.executable, "-c", OWN_HANDLER], capture_output=True, text=True, check=True)
    assert done.stderr.count("most recent call first") == 2


@each("options", [pytest.param({}, id="spawn"), pytest.param({"preload": "json"}, id="zygote")])
def test_a_rank_that_raises_keyboard_interrupt_is_named_with_its_line(
    options: dict[str, str], suite: Suite
) -> None:
    source = """
        def stop(rank):
            raise KeyboardInterrupt

        @pytest.mark.ranks(2, **OPTIONS)
        def test_stops(rank):
            if rank.rank == 1:
                stop(rank)
            rank.barrier()
        """
    done = suite(source.replace("OPTIONS", repr(options)))
    assert done.ret == pytest.ExitCode.INTERRUPTED
    lines = done.stdout.lines
    at = lines.index("test_it.py::test_stops was interrupted: rank 1 raised KeyboardInterrupt")
    rank_1 = lines[lines.index("rank 1, the odd one:", at) + 1 :][:3]
    shown = [line.rpartition("/")[2].strip() for line in rank_1]
    assert shown[:2] == ["test_it.py:10 in test_stops", "test_it.py:5 in stop"]
    assert shown[2].startswith("(to show a full traceback")
