"""The suite of examples/pytest_suite as users run it: passing tests, and the report of each other outcome."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import await_none_marked, environment, runs, until
from paths import ROOT
from pytest_suites import QUICK

SUITE = ROOT / "examples" / "pytest_suite"


class Session:
    """A finished run of pytest.

    Attributes:
        status: its exit status.
        text: what it has printed.
        seconds: how long it took.
        cases: of its junit XML, by the name of the test.
    """

    def __init__(self, folder: Path, mark: str, *words: str) -> None:
        report = folder / "report.xml"
        options = [*QUICK, "-ra", f"--junitxml={report}", f"--basetemp={folder / 'base'}"]
        changes: dict[str, str | None] = dict.fromkeys(n for n in os.environ if n.startswith("PYTEST_"))
        changes |= {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120", "MARK": mark}
        # In a folder of its own, because a rank that crashes may leave a core there.
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *words],
            cwd=folder,
            env=environment(**changes),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.seconds = time.monotonic() - begun
        self.status, self.text = done.returncode, done.stdout
        self.cases: dict[str, list[ElementTree.Element]] = {}
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            self.cases.setdefault(case.get("name", ""), []).append(case)

    def ending(self, test: str) -> tuple[str, str, str]:
        """How a test has ended, by its XML: the kind, its line, its text."""
        found = [part for case in self.cases[test] for part in case if part.tag != "properties"]
        found = [part for part in found if not part.tag.startswith("system-")]
        if not found:
            return "passed", "", ""
        (part,) = found
        return part.tag, part.get("message", ""), part.text or ""

    def screen(self, test: str) -> str:
        """The terminal's output about a test that has not passed."""
        (block,) = re.findall(
            rf"^_+ (?:ERROR at \w+ of )?{re.escape(test)} _+\n(.*?)(?=^[_=]+ [^\n]+ [_=]+$|\Z)",
            self.text,
            re.DOTALL | re.MULTILINE,
        )
        return str(block)


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: Path, mark: str) -> Iterator[Path]:
    yield tmp_path
    # multiprocessing's resource tracker ends a moment after its program.
    await_none_marked(mark)


def is_free(port: int) -> bool:
    with socket.socket() as server:
        # A connection that has just ended may still have the address, but no process listens.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.mark.timeout(400)
def test_passing_tests(folder: Path, mark: str) -> None:
    session = Session(folder, mark, str(SUITE))
    assert session.status == 0, session.text
    assert "20 passed" in session.text
    assert {session.ending(test)[0] for test in session.cases} == {"passed"}
    ports = {
        entry.get("value", "")
        for case in session.cases["test_ranks_meet_at_the_masters_port"]
        for entry in case.iter("property")
        if entry.get("name") == "master_port"
    }
    assert len(ports) == 1
    assert is_free(int(ports.pop()))


@pytest.mark.timeout(400)
def test_tests_that_do_not_pass_are_reported_by_their_end(folder: Path, mark: str) -> None:
    session = Session(folder, mark, str(SUITE / "endings"))
    text = session.text
    assert "5 failed, 3 passed, 1 skipped, 1 xfailed, 3 errors" in text, text
    assert session.status == 1
    # One test waits for its time to be over, 8 s; torch is imported once.
    assert session.seconds < 200
    check_failures(session)
    check_hang(session)
    check_deaths(session)
    check_leaks(session)
    check_others(session)


def check_failures(session: Session) -> None:
    kind, message, text = session.ending("test_fails_on_one_rank")
    assert (kind, message.splitlines()[0]) == ("failure", "rank 1: assert 3.0 == 2")
    shown = session.screen("test_fails_on_one_rank")
    for report in (text, shown):
        # The culprit's own traceback, rewritten; then the stack of each rank.
        in_order(
            report,
            ">           assert average([1, 2, 3]) == 2",
            "+  where 3.0 = average([1, 2, 3])",
            "rank 0: stopped",
            "rank 1: failed: assert 3.0 == 2 (above)",
        )
    in_order(shown, "Captured stdout of rank 1", "this is rank 1")
    shown = session.screen("test_fails_in_the_middle_of_a_collective")
    in_order(
        shown,
        ">           raise ValueError",
        "rank 0: ",
        "rank 1: failed: ValueError: the batch is empty",
    )
    assert shown.count("Traceback") == 0


def check_hang(session: Session) -> None:
    assert session.ending("test_hangs")[:2] == (
        "failure",
        "timeout: the ranks had not all ended after 8 s",
    )
    shown = session.screen("test_hangs")
    in_order(
        shown,
        "timeout: the ranks had not all ended after 8 s",
        "ranks 0, 2:",
        "in test_hangs",
        "in barrier",
        "rank 1, the odd one:",
        "in test_hangs",
        "in wait_for_data",
        "rank 0: stopped in endings/test_endings.py:",
        "in test_hangs (barrier)",
        "rank 1: stopped in endings/test_endings.py:",
        "in wait_for_data",
        "rank 2: stopped in endings/test_endings.py:",
    )
    # The test's own frames alone.
    assert "/_pytest/" not in shown.replace("/rlaunch/_pytest/", "")
    assert "_preload/server.py" not in shown


def check_deaths(session: Session) -> None:
    kind, message, _ = session.ending("test_crashes")
    assert (kind, message) == ("failure", "rank 1 was killed by SIGSEGV (Segmentation fault)")
    in_order(
        session.screen("test_crashes"),
        "rank 1 was killed by SIGSEGV",
        "Fatal Python error: Segmentation fault",
        "in test_crashes",
        "rank 0: stopped",
        "rank 1: killed by SIGSEGV (Segmentation fault) (above)",
    )
    kind, message, _ = session.ending("test_exits")
    assert (kind, message) == ("failure", "rank 0 has ended with exit code 3 in the middle of the test")
    in_order(session.screen("test_exits"), "rank 0: exit code 3 (above)", "rank 1: stopped")


def check_leaks(session: Session) -> None:
    kind, _, text = session.ending("test_leaves_a_process")
    named = re.search(r"process (\d+) \(.*\), listening on 127\.0\.0\.1:(\d+)", text)
    assert kind == "error"
    assert named is not None, text
    assert not runs(int(named[1]), "listening")
    until(lambda: is_free(int(named[2])), "the port that was leaked is free")
    kind, _, text = session.ending("test_leaves_shared_memory")
    named = re.search(r"shared memory (\S+) \(1024 KiB\)", text)
    assert kind == "error"
    assert named is not None, text
    assert not Path("/dev/shm", named[1]).exists()
    assert "ERROR at teardown of test_leaves_a_process" in session.text
    assert "resource_tracker" not in session.text


def check_others(session: Session) -> None:
    kind, message, _ = session.ending("test_is_skipped_by_one_rank")
    assert (kind, message) == ("skipped", "rank 1 has no device")
    assert session.ending("test_is_expected_to_fail")[:2] == ("skipped", "a bug that is known")
    kind, message, text = session.ending("test_cannot_be_set_up")
    assert kind == "error"
    assert "rank 0: ConnectionError: no such server" in message
    in_order(text, ">           raise ConnectionError", "rank 0: failed: ConnectionError: no such server")
    assert session.ending("test_after_all_that_the_session_goes_on")[0] == "passed"


def in_order(text: str, *parts: str) -> None:
    """Asserts that a text has these parts, one after another."""
    at = 0
    for part in parts:
        found = text.find(part, at)
        assert found >= 0, f"{part!r} is not there, or not after the one before it, in:\n{text}"
        at = found + len(part)
