"""Tests that run on ranks: kinds of tests, their arguments, and where their fixtures run."""

from __future__ import annotations

import pytest
from pytest_suites import Suite, suite_fixture  # noqa: F401


def test_functions_classes_and_parameters(suite: Suite) -> None:
    done = suite(
        """
        pytestmark = ranks(2)

        @pytest.mark.ranks(2)
        def test_function(rank):
            assert rank.world_size == 2 == int(os.environ["WORLD_SIZE"])
            assert os.environ["PADDLE_TRAINERS_NUM"] == "2"
            assert int(rank.__index__()) == rank.rank == rank.local_rank == int(os.environ["RANK"])
            assert rank.gather({"pid": os.getpid()})[rank.rank] == {"pid": os.getpid()}
            assert len({row["pid"] for row in rank.gather({"pid": os.getpid()})}) == 2
            big = os.urandom(5_000_000)
            assert [len(each) for each in rank.gather(big)] == [5_000_000] * 2
            assert rank.broadcast(big, src=1) == rank.gather(big)[1]
            rank.barrier()

        class TestClass:
            @pytest.mark.ranks(1, frameworks="paddle")
            def test_closest(self, rank):
                assert rank.world_size == 1
                assert "WORLD_SIZE" not in os.environ

            @pytest.mark.parametrize("x", ["a[0]", "b::c", "d/e é", "-k", " "])
            def test_odd(self, x, rank):
                assert {x} == set(rank.gather(x))

        @ranks(2)
        @pytest.mark.parametrize("n", [2, *(pytest.param(n, marks=ranks(n)) for n in (1, 3))])
        def test_count(n, rank):
            assert rank.world_size == n
        """
    )
    done.assert_outcomes(passed=10)


def test_what_ranks_cannot_import_is_sent_by_value(suite: Suite) -> None:
    done = suite(
        """
        import sys, threading

        @pytest.mark.ranks(2)
        def test_closures(rank):
            own = rank.rank

            class Local:
                number = 10 + own

            assert [call() for call in rank.gather(lambda: own + 1)] == [1, 2]
            assert [cls.number for cls in rank.gather(Local)] == [10, 11]
            assert rank.broadcast(Local(), src=1).number == 11

        @ranks(1)
        def test_a_lock(rank):
            rank.gather({"lock": threading.Lock()})

        @ranks(1)
        def test_without_cloudpickle(rank, monkeypatch):
            monkeypatch.setitem(sys.modules, "cloudpickle", None)
            rank.gather([1, lambda: 1])
        """
    )
    done.assert_outcomes(passed=1, failed=2)
    done.stdout.fnmatch_lines(
        [
            ">*rank.gather({*",
            "E *TypeError: cannot be sent to the other ranks: obj?'lock'?: _thread.lock",
            "E *obj?1?: *lambda*",
            "E *install cloudpickle*",
        ]
    )
    done.stdout.no_fnmatch_line("*pickling.py*")


def test_each_rank_sets_its_fixtures_up_but_shared_ones(suite: Suite, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import os, pathlib, pytest

        def note(what):
            with open(os.environ["NOTES"], "a") as notes:
                notes.write(f"{what} {os.environ.get('RANK', 'parent')}\\n")

        @pytest.fixture(scope="session")
        def expensive():
            note("expensive")
            return "costly"

        @pytest.fixture(scope="session")
        def server(expensive):
            note("server up")
            yield {"pid": os.getpid(), "of": expensive}
            note("server down")

        @pytest.fixture(scope="module", autouse=True)
        def automatic():
            note("automatic")

        @pytest.fixture
        def own(rank):
            note(f"own {rank.rank}")
            yield
            note(f"own down {rank.rank}")
        """
    )
    notes = pytester.path / "notes"
    pytester._monkeypatch.setenv("NOTES", str(notes))
    done = suite(
        """
        @ranks(2, shared=["server"])
        def test_it(server, own, rank, tmp_path, tmp_path_factory):
            assert {each["pid"] for each in rank.gather(server)} == {os.getppid()}
            assert server["of"] == "costly"
            assert len(set(rank.gather(tmp_path))) == 1
            (tmp_path / str(rank.rank)).touch()
            rank.barrier()
            assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
            made = tmp_path_factory.mktemp("data")
            assert len(set(rank.gather(made))) == 2
            assert made.parent == tmp_path_factory.getbasetemp() == tmp_path.parent

        @ranks(1, shared=["lock"])
        def test_no_way(lock): pass

        @pytest.fixture
        def lock():
            import threading
            return threading.Lock()

        def setup_module():
            print("module", os.environ["RANK"])
        """
    )
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines(
        ["the value of the fixture 'lock' cannot be sent to the ranks: *lock*; return a path or data instead"]
    )
    lines = notes.read_text().splitlines()
    assert lines[:2] == ["expensive parent", "server up parent"]
    assert lines[-1] == "server down parent"
    assert sorted(lines[2:-1]) == [
        *("automatic 0", "automatic 1"),
        *("own 0 0", "own 1 1"),
        *("own down 0 0", "own down 1 1"),
    ]


def test_fixtures_of_pytest_work_in_each_rank(suite: Suite) -> None:
    done = suite(
        """
        import logging, sys, warnings

        @ranks(2)
        def test_it(rank, capsys, caplog, monkeypatch, recwarn, request, record_property):
            print("printed", rank.rank)
            assert capsys.readouterr().out == f"printed {rank.rank}\\n"
            logging.warning("logged %s", rank.rank)
            assert caplog.messages == [f"logged {rank.rank}"]
            monkeypatch.setenv("X", "1")
            warnings.warn("seen")
            assert len(recwarn) == 1
            assert request.node.name == "test_it"
            assert len(set(rank.gather(request.getfixturevalue("tmp_path")))) == 1
            record_property("of", rank.rank)

        @ranks(2)
        def test_capfd(capfd, rank):
            os.write(1, b"raw")
            assert capfd.readouterr().out == "raw"

        @ranks(2)
        def test_output(rank):
            print("to stdout of", rank.rank)
            print("to stderr of", rank.rank, file=sys.stderr)
            os.system("echo from a child of $RANK")
            logging.error("log of %s", rank.rank)
            warnings.warn(UserWarning("careful"))
        """,
        "-rP",
    )
    done.assert_outcomes(passed=3, warnings=2)
    for rank in "01":
        done.stdout.fnmatch_lines(
            [
                f"*- Captured stdout of rank {rank} -*",
                f"to stdout of {rank}",
                f"from a child of {rank}",
                f"*- Captured stderr of rank {rank} -*",
                f"to stderr of {rank}",
                f"*- Captured log call of rank {rank} -*",
                f"ERROR * log of {rank}",
            ]
        )
    done.stdout.fnmatch_lines(["test_it.py::test_output", "*test_it.py:*: UserWarning: careful"])


def test_kinds_of_tests_that_are_no_plain_functions(suite: Suite) -> None:
    done = suite(
        """
        import unittest

        @ranks(2)
        class TestOfUnittest(unittest.TestCase):
            def setUp(self):
                self.rank = int(os.environ["RANK"])

            def test_passes(self):
                self.assertIn(self.rank, (0, 1))

            def test_fails(self):
                self.assertEqual(self.rank, 0)

            def test_skips(self):
                self.skipTest("why not")

        @ranks(1)
        async def test_async():
            pass

        def test_without_the_marker(rank):
            pass
        """
    )
    done.assert_outcomes(passed=1, failed=2, skipped=1, errors=1)
    done.stdout.fnmatch_lines(["*AssertionError: 1 != 0*"])
    done.stdout.fnmatch_lines(["*async def functions are not natively supported.*"])
    done.stdout.fnmatch_lines(["no rank here: mark the test with @pytest.mark.ranks(n)"])


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_start_methods(suite: Suite, method: str) -> None:
    done = suite(
        f"""
        @pytest.mark.ranks(2, start_method={method!r})
        def test_passes(rank, tmp_path):
            print("out", rank.rank)
            assert rank.gather(os.environ["RANK"]) == ["0", "1"]

        @pytest.mark.ranks(2, start_method={method!r})
        def test_fails(rank):
            print("of", rank.rank)
            rank.barrier()
            assert rank.rank == 0
            rank.barrier()
        """
    )
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        [
            ">*assert rank.rank == 0",
            "rank 0: stopped in test_it.py:* in test_fails*",
            "*Captured stdout of rank 0*",
            "of 0",
            "*Captured stdout of rank 1*",
            "of 1",
        ]
    )
