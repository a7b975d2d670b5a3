"""Tests on ranks within a session: options, other plugins, an interrupt, and that nothing is left."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree

import pytest
from effort import ALL, cases
from launching import await_none_marked
from pytest_suites import Suite, suite_fixture  # noqa: F401

LIGHT = """
import sys, pytest
before = set(sys.modules)
import rlaunch.pytest_plugin
print(*sorted(set(sys.modules) - before))
"""


def test_the_plugin_imports_nothing_until_it_is_needed() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    own = ["pytest_plugin"]
    assert done.stdout.split() == ["rlaunch", *(f"rlaunch.{name}" for name in own)]


PAIR = """
@ranks(2)
def test_good(rank):
    print("out of", rank.rank)
    rank.barrier()

@ranks(2)
def test_bad(rank):
    print("out of", rank.rank)
    rank.barrier()
    assert rank.rank == 0
    rank.barrier()

@ranks(1)
def test_other():
    print("never seen")
"""


def test_first_failure_ends_the_session(suite: Suite) -> None:
    done = suite(PAIR, "-x", "--tb=short")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*stopping after 1 failures*"])


def test_selection_and_written_straight_to_the_terminal(suite: Suite) -> None:
    done = suite(PAIR, "-k", "good", "-s", "-v")
    done.assert_outcomes(passed=1, deselected=2)
    done.stdout.fnmatch_lines_random(["*out of 0*", "*out of 1*"])
    done.stdout.no_fnmatch_line("*Captured*")


def test_captured_output_is_shown_by_pytests_own_rules(suite: Suite) -> None:
    done = suite(PAIR, "-k", "bad", "--show-capture=stderr", "--tb=line", "--color=yes")
    done.assert_outcomes(failed=1)
    done.stdout.no_fnmatch_line("*out of*")
    done.stdout.fnmatch_lines(["*test_it.py:13: rank 1: assert 1 == 0*"])


def test_junit(suite: Suite, pytester: pytest.Pytester) -> None:
    suite(PAIR, "--junitxml=report.xml", "-o", "junit_logging=all").assert_outcomes(passed=2, failed=1)
    (run,) = ElementTree.parse(pytester.path / "report.xml").getroot()
    assert {name: run.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "3",
        "failures": "1",
        "errors": "0",
    }
    cases = {case.get("name"): case for case in run}
    failure = cases["test_bad"].find("failure")
    assert failure is not None
    assert str(failure.get("message")).startswith("rank 1: assert 1 == 0")
    assert "rank 0: stopped in test_it.py:1" in str(failure.text)
    said = str(cases["test_good"].findtext("system-out"))
    assert "out of 0" in said
    assert "out of 1" in said
    assert float(cases["test_good"].get("time", "0")) > 0


def test_under_xdist(suite: Suite) -> None:
    done = suite(
        """
        @ranks(2)
        @pytest.mark.parametrize("i", range(4))
        def test_many(rank, i, worker_id, tmp_path):
            assert worker_id in ("gw0", "gw1")
            assert len(set(rank.gather(os.environ["MASTER_PORT"]))) == 1
            assert i != 3 or rank.rank == 0
            rank.barrier()
        """,
        "-p",
        "xdist",
        "-n2",
    )
    done.assert_outcomes(passed=3, failed=1)
    done.stdout.fnmatch_lines(
        [
            ">*assert i != 3 or rank.rank == 0",
            "*- ranks -*",
            "rank 0: stopped in test_it.py:* in test_many*",
            "FAILED test_it.py::test_many[[]3] - rank 1: assert *",
        ]
    )


HANGS = """
import time

@ranks(1)
@pytest.mark.timeout(4)
def test_marked():
    time.sleep(100)

@ranks(1)
def test_by_default():
    time.sleep(100)

@ranks(1, timeout=5)
def test_own():
    time.sleep(100)
"""


def test_pytest_timeouts_limits_hold(suite: Suite, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntimeout = 6\nranks_timeout = 50\n")
    done = suite(HANGS, "-p", "timeout")
    done.assert_outcomes(failed=3)
    done.stdout.fnmatch_lines(
        [f"FAILED *timeout: the ranks had not all ended after {s} s" for s in (4, 6, 5)]
    )


def test_without_pytest_timeout_the_limit_is_ours(suite: Suite, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nranks_timeout = 4\nmarkers = timeout: none\n")
    done = suite(HANGS, "-k", "default")
    done.assert_outcomes(failed=1, deselected=2)
    done.stdout.fnmatch_lines(["FAILED *timeout: the ranks had not all ended after 4 s"])


def test_nothing_is_left_of_many_tests(
    suite: Suite, pytester: pytest.Pytester, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLAUNCH_TEST_MARK", mark)
    pytester.mkdir("temporary")
    monkeypatch.setenv("TMPDIR", "temporary")
    pytester.makeconftest(
        """
        import os, psutil

        def pytest_runtest_logfinish():
            if "RANK" not in os.environ:
                here = psutil.Process()
                standing = here.num_fds(), len(here.children(recursive=True)), os.listdir("temporary")
                with open("standing", "a") as notes:
                    print(*standing, file=notes)
        """
    )
    rounds = cases(1, 4, in_ci=2)
    done = suite(
        f"""
        @pytest.mark.ranks(1)
        @pytest.mark.parametrize("i", range({5 * rounds}))
        def test_one(i, rank):
            if i % 5 == 1:
                rank.gather(bytes(3_000_000))
            if i % 5 == 2:
                os._exit(1)
            assert i % 5 != 3
        """
    )
    done.assert_outcomes(passed=3 * rounds, failed=2 * rounds)
    lines = (pytester.path / "standing").read_text().splitlines()
    assert len(lines) == 5 * rounds
    # The first start of all leaves multiprocessing's helper, and rlaunch's guardian.
    assert set(lines[1:]) == {lines[0]}
    assert lines[0].endswith("[]")
    # multiprocessing's resource tracker ends a moment after its program.
    await_none_marked(mark)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_an_interrupt_that_waited_for_the_start_ends_the_ranks(
    method: str, suite: Suite, pytester: pytest.Pytester, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --pdb Ctrl-C waits until ranks have been started."""
    monkeypatch.setenv("RLAUNCH_TEST_MARK", mark)
    pytester.makeconftest(
        """
        import os, signal
        import rlaunch._pytest.run as module

        start = module.spawn

        def spawn(*args, **kwargs):
            context = start(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGINT)
            open("started", "w").close()
            return context

        module.spawn = spawn
        """
    )
    done = suite(
        f"""
        import time

        @pytest.mark.ranks(2, start_method={method!r})
        def test_waits(rank):
            time.sleep(600)
        """,
        "--pdb",
    )
    assert (pytester.path / "started").exists()
    done.stdout.fnmatch_lines(
        [
            "test_it.py::test_waits was interrupted while its ranks were started",
            "*Interrupted: KeyboardInterrupt*",
        ]
    )
    await_none_marked(mark)


def test_warnings_as_errors(suite: Suite) -> None:
    source = '@pytest.mark.ranks(2, start_method="spawn")\ndef test_new(rank):\n    rank.barrier()\n'
    suite(source, "-W", "error").assert_outcomes(passed=1)


def test_without_capturing(suite: Suite) -> None:
    suite(PAIR, "-p", "no:capture", "-k", "good").assert_outcomes(passed=1)


def test_a_failure_to_release_resources_does_not_fail_the_next_test(
    suite: Suite, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        from rlaunch._pytest import run

        def fail(self):
            raise OSError("no space left")

        run.RankPeer.close = fail
        """
    )
    source = """
        @pytest.fixture(autouse=True)
        def fixture():
            yield

        @ranks(1)
        def test_on_a_rank():
            pass

        def test_next():
            pass
        """
    done = suite(source)
    done.assert_outcomes(passed=2, errors=1)
    done.stdout.fnmatch_lines(["*ERROR at teardown of test_on_a_rank*", "ERROR *OSError: no space left"])


def test_an_interrupt_while_ranks_are_released_ends_the_session(
    suite: Suite, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        from rlaunch._pytest import run

        def interrupt(self):
            raise KeyboardInterrupt

        run.RankPeer.close = interrupt
        """
    )
    done = suite(
        """
        @pytest.fixture
        def fixture():
            yield
            assert False

        @ranks(1)
        def test_on_a_rank(fixture):
            pass

        def test_next():
            pass
        """
    )
    assert done.ret == pytest.ExitCode.INTERRUPTED
    assert done.parseoutcomes()["passed"] == 1


STARTS = [
    {"start_method": "spawn"},
    {"start_method": "fork"},
    {"preload": "json"},
    {"start_method": "forkserver"},
]


@pytest.mark.parametrize("is_set", [False, True])
def test_start_method_of_multiprocessing(is_set: bool, suite: Suite, pytester: pytest.Pytester) -> None:
    """It is that of a plain test, not that by which the rank was started."""
    starts = [options for number, options in enumerate(STARTS) if ALL or (number % 2 == 1) == is_set]
    if is_set:
        # Fails if there is one already.
        pytester.makeconftest("import multiprocessing\nmultiprocessing.set_start_method('forkserver')")
    source = f"""
        import multiprocessing

        at_import = multiprocessing.get_start_method(allow_none=True)

        def test_plain():
            with open("plain", "w") as file:
                print(at_import, multiprocessing.get_start_method(), file=file)

        @pytest.mark.parametrize("start", [pytest.param(i, marks=pytest.mark.ranks(1, **options))
                                           for i, options in enumerate({starts})])
        def test_on_a_rank(start):
            with open("plain") as file:
                assert file.read().split() == [str(at_import), multiprocessing.get_start_method()]
        """
    suite(source).assert_outcomes(passed=1 + len(starts))


def test_start_method_of_multiprocessing_in_forked_ranks(suite: Suite) -> None:
    source = """
        import multiprocessing

        @pytest.mark.ranks(1, start_method="fork")
        def test_may_set_it():
            assert multiprocessing.get_start_method(allow_none=True) is None
            multiprocessing.set_start_method("spawn")
        """
    suite(source).assert_outcomes(passed=1)
