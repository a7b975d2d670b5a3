"""A debugger in a rank, at a real terminal."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest
from effort import ALL
from pytest_suites import OPTIONS, QUICK
from pytest_terminal import StartSession, start_session_fixture  # noqa: F401

TESTS = f"""
    import functools, os, pytest

    ranks = functools.partial(pytest.mark.ranks, **({{}} if os.environ.get("START") else {OPTIONS}))

    @ranks(2)
    def test_fails(rank):
        secret = 40 + rank.rank
        assert rank.rank != 1, "oh"
        rank.barrier()

    @ranks(2)
    def test_stops(rank):
        secret = 50 + rank.rank
        breakpoint()
        assert rank.gather(secret) == [50, 51]

    @ranks(2)
    def test_both_fail(rank):
        secret = 60 + rank.rank
        assert False

    @ranks(1)
    def test_of_subtests(subtests):
        for secret in range(80, 83):
            with subtests.test(secret=secret):
                assert False

    def test_plain():
        secret = 70
        assert False
"""


@pytest.fixture
def session(start_session: StartSession) -> StartSession:
    return functools.partial(start_session, TESTS)


def test_the_rank_that_failed_is_looked_at(session: StartSession) -> None:
    pdb = session("--pdb", "-k", "test_fails")
    assert "oh" in pdb.until(">>> rank 1: entering PDB (post mortem)")
    pdb.until("(Pdb) ")
    pdb.type("p secret + 1\n")
    pdb.until("42")
    pdb.until("(Pdb) ")
    # At the prompt, Ctrl-C is the debugger's, and neither the session's nor the other rank's.
    pdb.interrupt()
    pdb.until("(Pdb) ")
    pdb.type("p secret + 2\n")
    pdb.until("43")
    pdb.type("c\n")
    report = pdb.until("1 failed")
    assert "rank 0: stopped" in report, report
    assert "PDB" not in report


STARTS_LATE = """
import os, time
while os.environ.get("RANK") == "0" and not os.path.exists("go"):
    time.sleep(0.01)
"""


def test_a_rank_that_still_starts_is_not_interrupted_at_the_prompt(
    session: StartSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(STARTS_LATE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("START", "spawn")
    pdb = session("--pdb", "-k", "test_fails")
    pdb.until("(Pdb) ")
    pdb.interrupt()
    pdb.until("(Pdb) ")
    (tmp_path / "go").touch()
    pdb.type("c\n")
    report = pdb.until("1 failed")
    assert "rank 0: stopped" in report, report


def test_one_rank_has_the_terminal_and_quitting_ends_the_session(session: StartSession) -> None:
    pdb = session("--pdb", "-k", "both_fail or plain")
    pdb.until("entering PDB")
    pdb.until("(Pdb) ")
    pdb.type("q\n")
    report = pdb.until("1 failed")
    assert "Quitting debugger" in report
    assert "entering PDB" not in report


def test_a_rank_that_fails_after_the_one_with_the_terminal_has_ended_gets_no_debugger(
    start_session: StartSession,
) -> None:
    pdb = start_session(
        """
        import os, pathlib, time, pytest

        @pytest.mark.ranks(2, start_method="fork")
        def test_fails(rank):
            first = pathlib.Path(f"/proc/{rank.broadcast(os.getpid())}/stat")
            while rank.rank == 1 and first.exists() and ") Z " not in first.read_text():
                time.sleep(0.001)
            assert False
        """,
        "--pdb",
    )
    pdb.until("rank 0: entering PDB")
    pdb.until("(Pdb) ")
    pdb.type("q\n")
    assert "entering PDB" not in pdb.until("1 failed")


def test_each_failing_subtest_is_looked_at_until_one_quits(session: StartSession) -> None:
    pdb = session("--pdb", "-k", "of_subtests or plain")
    for secret in (80, 81):
        pdb.until("entering PDB")
        pdb.until("(Pdb) ")
        pdb.type("p secret\n")
        pdb.until(str(secret))
        pdb.until("(Pdb) ")
        pdb.type("c\n" if secret == 80 else "q\n")
    report = pdb.until("4 failed")
    assert "Quitting debugger" in report
    assert "entering PDB" not in report


def test_a_rank_may_be_chosen_and_other_tests_are_unchanged(session: StartSession) -> None:
    pdb = session("--ranks-pdb", "1", "--pdb", "-k", "stops or plain")
    pdb.until(">>> rank 1: entering PDB (breakpoint)")
    pdb.until("(Pdb) ")
    pdb.type("p secret\n")
    pdb.until("51")
    pdb.type("c\n")
    pdb.until("entering PDB")
    pdb.until("(Pdb) ")
    pdb.type("p secret\n")
    pdb.until("70")
    pdb.type("c\n")
    pdb.until("1 failed, 1 passed")


def test_a_chosen_rank_that_no_test_has_is_refused(session: StartSession) -> None:
    pdb = session("--ranks-pdb", "2", "-k", "stops or subtests")
    pdb.until("--ranks-pdb 2: no selected test has this rank; the largest has ranks 0, 1")


def test_a_breakpoint_without_any_option_is_rank_0s(session: StartSession) -> None:
    pdb = session("-k", "stops")
    pdb.until(">>> rank 0: entering PDB (breakpoint)")
    pdb.until("(Pdb) ")
    pdb.type("p secret\n")
    pdb.until("50")
    pdb.type("c\n")
    pdb.until("1 passed")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["-p", "xdist", "-n1"], "gw0, a worker of pytest-xdist, has none; run the test with -n 0"),
        ([], "pytest has none"),
    ],
)
def test_a_breakpoint_without_a_terminal_fails_its_test(
    options: list[str], why: str, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_it=TESTS)
    command = [sys.executable, "-m", "pytest", *QUICK, "-k", "stops", *options]
    if ALL:
        command += ["-o", "ranks_preload=json"]
    # A session of its own has no terminal, whatever the tests run at.
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert f"E       Failed: breakpoint() needs a terminal, but {why}\n" in done.stdout
    assert ">       breakpoint()\n" in done.stdout
    assert "1 failed" in done.stdout


def test_a_rank_for_the_debugger_is_refused_with_workers(pytester: pytest.Pytester) -> None:
    done = pytester.runpytest_subprocess(*QUICK, "-p", "xdist", "--ranks-pdb=1", "-n2")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: --ranks-pdb is incompatible with distributing tests, *; try -n 0"])
