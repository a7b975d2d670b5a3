"""Tests on ranks that fail: the failure that is shown, stacks of the others, and no rank waits for ever."""

from __future__ import annotations

import re

import pytest
from pytest_suites import Suite, suite_fixture  # noqa: F401


def test_the_culprits_own_failure_comes_first_then_the_others(suite: Suite) -> None:
    done = suite(
        """
        @ranks(3)
        def test_one(rank):
            print("from", rank.rank)
            rank.barrier()
            rows = [1, 2, 3]
            if rank.rank == 1:
                assert rows == [1, 2, 4]
            rank.barrier()

        class Odd(Exception):
            def __init__(self, a, b):
                self.lock = __import__("threading").Lock()

        @ranks(2)
        def test_cannot_be_pickled(rank):
            if rank.rank == 1:
                raise Odd(1, 2)
            rank.barrier()

        @pytest.fixture
        def broken(rank):
            rank.barrier()
            assert rank.rank != 0
            yield

        @ranks(2)
        def test_set_up(broken, rank):
            rank.barrier()

        @pytest.fixture
        def leaves(rank):
            yield
            rank.barrier()
            assert rank.rank != 0

        @ranks(2)
        def test_torn_down(leaves):
            print("was here")

        @ranks(1)
        def test_asks_for_a_missing_fixture(no_such_fixture):
            pass

        @ranks(1)
        def test_has_no_text_in_the_first_line():
            raise ValueError("\\n\\nthe text")

        @ranks(2)
        def test_exits(rank):
            if rank.rank == 0:
                raise SystemExit(7)
            rank.barrier()
        """
    )
    done.assert_outcomes(passed=1, failed=4, errors=3)
    text = str(done.stdout)
    # Rewritten, the whole of it, and no other rank's.
    assert text.count("At index 2 diff: 3 != 4") == 1
    done.stdout.fnmatch_lines(
        [
            "*ERROR at setup of test_set_up*",
            ">*assert rank.rank != 0",
            "rank 0: failed: *(above)",
            "*ERROR at teardown of test_torn_down*",
            ">*assert rank.rank != 0",
            "rank 0: failed: *(above)",
            "*ERROR at setup of test_asks_for_a_missing_fixture*",
            "E  *fixture 'no_such_fixture' not found",
            "*_ test_one _*",
            ">*assert rows == [[]1, 2, 4]",
            "test_it.py:10: AssertionError",
            "*- ranks -*",
            "rank 0: stopped in test_it.py:* in test_one*",
            "rank 1: failed: assert [[]1, 2, 3] == [[]1, 2, 4] (above)",
            "rank 2: stopped in test_it.py:* in test_one*",
            "*- Captured stdout of rank 0 -*",
            "from 0",
            "*- Captured stdout of rank 1 -*",
            "from 1",
            "*- Captured stdout of rank 2 -*",
            "from 2",
            "*_ test_cannot_be_pickled _*",
            "E  *test_it.Odd: (1, 2)",
            "*SystemExit: 7",
            "ERROR test_it.py::test_asks_for_a_missing_fixture - rank 0: fixture 'no_such_fixture' not found",
            "FAILED test_it.py::test_one - rank 1: assert *",
            "FAILED test_it.py::test_has_no_text_in_the_first_line - rank 0: ValueError: the text",
        ]
    )


def test_deaths(suite: Suite) -> None:
    done = suite(
        """
        @ranks(2)
        def test_crash(rank):
            rank.barrier()
            if rank.rank == 1:
                print("final text", flush=True)
                import ctypes
                ctypes.string_at(0)
            rank.barrier()

        @ranks(2)
        @pytest.mark.parametrize("code", [0, 3])
        def test_leaves(rank, code):
            if rank.rank == 0:
                os._exit(code)
            rank.barrier()

        @ranks(1)
        def test_killed(rank):
            os.kill(os.getpid(), 9)

        @pytest.fixture
        def together(rank):
            yield
            rank.barrier()

        @pytest.mark.ranks(2)
        def test_dies_late(rank, together):
            import atexit
            atexit.register(lambda: rank.rank and os._exit(4))

        def test_after():
            pass
        """
    )
    # A rank that dies after its test, when the others have passed it as well, is an error of the teardown.
    done.assert_outcomes(passed=2, failed=4, errors=1)
    done.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_dies_late*",
            "rank 1 has ended with exit code 4 after the test",
            "rank 1 was killed by SIGSEGV (Segmentation fault)",
            "Fatal Python error: Segmentation fault",
            '  File "*test_it.py", line 10 in test_crash',
            "rank 0: stopped in test_it.py:* in test_crash*",
            "rank 1: killed by SIGSEGV (Segmentation fault) (above)",
            "*- Captured stdout of rank 1 -*",
            "final text",
            "rank 0 has ended with exit code 0 in the middle of the test",
            "rank 0 has ended with exit code 3 in the middle of the test",
            "rank 0: exit code 3 (above)",
            "FAILED test_it.py::test_crash - rank 1 was killed by SIGSEGV (Segmentation fault)",
            "FAILED test_it.py::test_killed - rank 0 was killed by SIGKILL (Killed)",
        ]
    )


def test_a_hang_fails_its_test_alone_with_the_stacks_of_all(suite: Suite) -> None:
    done = suite(
        """
        import signal, time

        @ranks(2, timeout=3)
        def test_hangs(rank):
            if rank.rank == 1:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                while True:
                    time.sleep(100)
            rank.barrier()

        @ranks(2)
        def test_after(rank):
            rank.barrier()
        """,
        "--ranks-timeout=60",
    )
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        [
            "timeout: the ranks had not all ended after 3 s",
            "rank 0:",
            "    *test_it.py:12 in test_hangs",
            "    *_pytest/rank/fixture.py:* in barrier",
            "rank 1, the odd one:",
            "    *test_it.py:11 in test_hangs",
            "rank 0: stopped in test_it.py:12 in test_hangs (barrier)",
            "rank 1: stopped in test_it.py:11 in test_hangs",
        ]
    )


def test_an_import_that_hangs_meets_the_limit_of_the_startup(suite: Suite, pytester: pytest.Pytester) -> None:
    # Forked ranks start within a fraction of the limits, even on a busy machine.
    pytester.makeini("[pytest]\nranks_preload = json\nranks_startup_timeout = 500\n")
    hang = "import os, time\nif os.environ.get('RANK') == '1':\n    time.sleep(600)\n"
    marked = "@pytest.mark.ranks(2, startup_timeout=5)\ndef test_marked(rank):\n    rank.barrier()\n"
    pytester.mkpydir("sub").joinpath("conftest.py").write_text(hang)
    (pytester.path / "sub" / "test_sub.py").write_text(f"import pytest\n{marked}")
    done = suite(
        hang + "@pytest.mark.ranks(2, timeout=1)\ndef test_it(rank):\n    rank.barrier()\n",
        "--ranks-startup-timeout=6",
        "sub",
        "test_it.py",
    )
    done.assert_outcomes(errors=2)
    done.stdout.fnmatch_lines(
        [
            "rank 1 has not imported sub/test_sub.py after 5 s (ranks_startup_timeout)",
            "rank 0:",
            "    *sub/test_sub.py:4 in test_marked",
            "rank 1, the odd one:",
            "rank 0: stopped in sub/test_sub.py:4 in test_marked (barrier)",
            "rank 1: stopped in sub/conftest.py:3 in <module>, before its test began",
            "rank 1 has not imported test_it.py after 6 s (ranks_startup_timeout)",
            "rank 1: stopped in test_it.py:6 in <module>, before its test began",
            "ERROR sub/test_sub.py::test_marked - rank 1 has not imported sub/test_sub.py after 5 s *",
        ]
    )


def test_a_rank_that_waits_for_one_that_never_comes_fails_at_once(suite: Suite) -> None:
    done = suite(
        """
        @ranks(2)
        def test_other_operation(rank):
            rank.barrier() if rank.rank == 0 else rank.gather(1)

        @ranks(2)
        def test_other_source(rank):
            rank.broadcast(1, src=rank.rank)

        @ranks(2)
        def test_ended(rank):
            if rank.rank == 0:
                rank.barrier()

        @ranks(2)
        def test_caught(rank):
            if rank.rank == 0:
                with pytest.raises(RuntimeError, match="rank 1 has ended without it"):
                    rank.barrier()
                with pytest.raises(ValueError, match="src must be a rank, 0 to 1, but got 2"):
                    rank.broadcast(1, src=2)
        """
    )
    done.assert_outcomes(passed=1, failed=3)
    text = str(done.stdout)
    assert re.search(r"MissingRankError: (barrier.*rank 1 is in gather|gather.*rank 0 is in barrier)", text)
    assert re.search(r"MissingRankError: broadcast from rank (0.*from rank 1|1.*from rank 0)", text)
    assert "MissingRankError: barrier can never be complete: rank 1 has ended without it" in text
    assert "FAILED test_it.py::test_ended - rank 0: MissingRankError: barrier can never" in text
    assert "rank 1: passed" in text


def test_the_culprit_comes_before_ranks_that_lost_their_peer(suite: Suite) -> None:
    done = suite(
        """
        @ranks(2)
        def test_lost(rank):
            if rank.rank == 0:
                open("lost", "w").close()
                raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1")
            while not os.path.exists("lost"):
                pass
            raise ValueError("the true one")
        """
    )
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(
        [
            "E  *ValueError: the true one",
            "rank 0: failed too: RuntimeError: *Connection closed by peer*",
            "rank 1: failed: ValueError: the true one (above)",
        ]
    )


def test_ranks_that_cannot_run_the_test(suite: Suite, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_import="""
        import os, pytest
        if "RANK" in os.environ:
            raise ImportError("not on a rank")

        @pytest.mark.ranks(2)
        def test_import():
            pass
        """,
        test_exit="""
        import os, pytest
        if "RANK" in os.environ:
            os._exit(3)

        @pytest.mark.ranks(1)
        def test_exit():
            pass
        """,
    )
    done = suite(
        """
        @pytest.mark.ranks(1)
        @pytest.mark.parametrize("where", [os.environ.get("RANK", "none")])
        def test_differs(where):
            pass

        @pytest.mark.ranks(1, preload="no_such_module")
        def test_not_started():
            pass

        @pytest.mark.ranks(0)
        def test_none():
            pass

        def test_after():
            pass
        """,
        *("-o", "ranks_preload=json"),
        *("test_import.py", "test_exit.py", "test_it.py"),
    )
    outcomes = done.parseoutcomes()
    assert outcomes["passed"] == 1
    assert outcomes["errors"] == 5
    done.stdout.fnmatch_lines(
        [
            "*ImportError: not on a rank",
            "rank 0 has ended with exit code 3 before its test began: while it imported the test file, *",
            "rank 0 could not run the test:",
            "this rank has no test_differs*: the test's name or parameters differ between processes*",
            "n must be the number of ranks, 1 or more, but got 0 (@pytest.mark.ranks of *test_none)",
            "ERROR test_it.py::test_none - Failed: n must be the number of ranks, 1 or more, but got 0*",
        ]
    )


def test_an_exit_while_the_test_file_is_imported(suite: Suite) -> None:
    done = suite(
        """
        import sys
        if "RANK" in os.environ:
            sys.exit("no disk")

        @pytest.mark.ranks(1)
        def test_it():
            pass
        """
    )
    done.assert_outcomes(errors=1)
    start = done.outlines.index(
        "sys.exit() was called while this rank imported the test file or a conftest.py."
    )
    assert done.outlines[start - 2].endswith(" could not run the test:")
    # No frame of pytest.
    assert done.outlines[start + 1 : start + 4] == [
        "test_it.py:6: in <module>",
        '    sys.exit("no disk")',
        "E   SystemExit: no disk",
    ]
    done.stdout.fnmatch_lines(
        ["ERROR test_it.py::test_it - rank * could not run the test: SystemExit: no disk"]
    )
    done.stdout.no_fnmatch_line("*in the middle of the test*")


def test_a_rank_that_is_stopped_inside_pytest(suite: Suite) -> None:
    done = suite(
        """
        import functools, pathlib, time

        @ranks(2)
        def test_it(rank, request):
            path = pathlib.Path("in_teardown")
            if rank.rank == 0:
                request.addfinalizer(functools.partial(time.sleep, 100))  # Has no Python frame.
                request.addfinalizer(path.touch)
                return
            while not path.exists():
                time.sleep(0.01)
            assert False
        """
    )
    done.stdout.fnmatch_lines(["rank 0: passed, then stopped in pytest's teardown of the test"])


def test_a_conftest_that_cannot_be_imported_is_reported_as_by_pytest(
    suite: Suite, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest(
        """
        import os

        def check():
            raise ImportError("not on a rank")

        if "RANK" in os.environ:
            check()
        """
    )
    test = """
        @pytest.mark.ranks(1)
        def test_it():
            pass
        """
    done = suite(test)
    monkeypatch.setenv("RANK", "0")
    expected = suite(test).errlines
    assert expected[-1] == "E   ImportError: not on a rank"
    start = done.outlines.index(expected[0])
    assert done.outlines[start - 2 : start] == ["rank 0 could not run the test:", ""]
    assert done.outlines[start : start + len(expected)] == expected
    assert done.outlines[start + len(expected)].startswith("====")
    done.stdout.fnmatch_lines(
        ["ERROR test_it.py::test_it - rank 0 could not run the test: ImportError: not on a rank"]
    )


def test_ranks_that_reach_their_teardown_complete_it(suite: Suite, pytester: pytest.Pytester) -> None:
    done = suite(
        """
        import pathlib
        import time
        import warnings

        @pytest.fixture
        def resource(rank, request):
            yield request.node.name
            pathlib.Path(f"{request.node.name}.teardown").touch()
            time.sleep(0.5)  # A rank that is stopped does not come to the end.
            warnings.warn("released")
            open(f"{request.node.name}.{rank.rank}", "w").close()

        @ranks(1)
        def test_fails(resource):
            assert 0

        @ranks(2)
        def test_all_fail(resource):
            assert 0

        @ranks(2)
        def test_skips(rank, resource):
            if rank.rank == 1:
                pytest.skip("not on this rank")
            rank.barrier()

        @ranks(2)
        def test_passes_on_one(rank, resource):
            if rank.rank == 0:
                path = pathlib.Path(f"{resource}.teardown")
                while not path.exists():
                    time.sleep(0.01)
            assert rank.rank == 1

        @pytest.fixture
        def farewell(rank):
            yield
            rank.barrier()

        @ranks(2)
        def test_waits_in_its_teardown(rank, farewell, resource):
            assert rank.rank == 1
            time.sleep(600)
        """
    )
    done.assert_outcomes(failed=4, skipped=1)
    files = {path.name for path in pytester.path.glob("test_*.[01]")}
    # The other rank is stopped if it has not reached its teardown soon.
    first = {"test_all_fail.0", "test_all_fail.1"} & files or {"the first rank to fail"}
    assert files == first | {
        *("test_fails.0", "test_skips.1", "test_passes_on_one.0", "test_passes_on_one.1"),
        "test_waits_in_its_teardown.0",
    }
    # The teardown that is not completed has none.
    assert done.parseoutcomes()["warnings"] == len(files) - 1
