"""Subtests of tests on ranks: each is one report, as in plain pytest."""

from __future__ import annotations

import re

import pytest
from pytest_suites import Suite, suite_fixture  # noqa: F401

SUBTESTS = """
    import unittest

    pytestmark = [pytest.mark.ranks(2, start_method="fork")] * (os.environ.get("ON_RANKS") == "yes")

    def test_odd(subtests):
        for i in range(4):
            with subtests.test("is even", i=i, kind=int):
                assert i % 2 == 0

    def test_fails_itself(subtests):
        with subtests.test():
            assert False
        with subtests.test():
            raise ValueError("of the second one")
        assert os is None

    def test_skips(subtests):
        with subtests.test("skips"):
            pytest.skip("not here")
        with subtests.test("xfails"):
            pytest.xfail("known")

    @pytest.mark.xfail(raises=ZeroDivisionError)
    def test_expected(subtests):
        with subtests.test("divides"):
            1 / 0

    @pytest.fixture
    def fixture_with_subtests(subtests):
        with subtests.test("in the setup"):
            assert False
        yield
        with subtests.test("in the teardown"):
            assert False

    def test_fixture(fixture_with_subtests):
        pass

    class TestUnit(unittest.TestCase):
        def test_unit(self):
            for i in range(4):
                with self.subTest("is even", i=i):
                    if i == 2:
                        self.skipTest("not here")
                    self.assertEqual(i % 2, 0)
"""


@pytest.mark.parametrize("arguments", [("-v",), ("-q", "-x")], ids=["all", "exitfirst"])
def test_subtests_count_as_in_plain_pytest(
    suite: Suite, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    plain = suite(SUBTESTS, *arguments)
    monkeypatch.setenv("ON_RANKS", "yes")
    done = suite(SUBTESTS, *arguments)
    assert plain.parseoutcomes()["failed"] > 1
    assert done.parseoutcomes() == plain.parseoutcomes()
    start = next(i for i, line in enumerate(plain.outlines) if "= short test summary info =" in line)
    for line in plain.outlines[start + 1 : -1]:
        node, dash, message = line.partition(" - ")
        ranks = r"(rank \d|ranks 0, 1): " if message and not message.startswith("contains ") else ""
        pattern = re.escape(node + dash) + f"({ranks})?" + re.escape(message)
        assert any(re.fullmatch(pattern, one) for one in done.outlines), (line, done.outlines)


def test_a_subtest_is_reported_once_with_its_ranks(suite: Suite) -> None:
    done = suite(
        """
        @pytest.mark.ranks(3, start_method="fork")
        def test_it(rank, subtests):
            for i in range(2):
                with subtests.test("differs", i=i):
                    assert rank.rank <= i, "for rank %d" % rank.rank
            with subtests.test("of one", rank=rank.rank):
                assert rank.rank != 1
            rank.barrier()
        """
    )
    done.assert_outcomes(failed=4)
    done.stdout.fnmatch_lines(
        [
            "*_ test_it [[]differs] (i=0) _*",
            "rank 0: passed",
            "rank 1: failed: AssertionError: for rank 1 (above)",
            "rank 2: failed too: AssertionError: for rank 2",
            "*_ test_it [[]of one] (rank=1) _*",
            "rank 0: did not report it",
            "rank 1: failed: assert 1 != 1 (above)",
            "SUBFAILED[[]differs] (i=0) test_it.py::test_it - ranks 1, 2: AssertionError: for rank 1",
            "SUBFAILED[[]differs] (i=1) test_it.py::test_it - rank 2: AssertionError: for rank 2",
            "SUBFAILED[[]of one] (rank=1) test_it.py::test_it - rank 1: assert 1 != 1*",
            "FAILED test_it.py::test_it - contains 3 failed subtests",
        ],
    )


def test_subtests_before_a_crash_are_reported(suite: Suite) -> None:
    done = suite(
        """
        @pytest.mark.ranks(2, start_method="fork")
        def test_it(rank, subtests):
            with subtests.test("before"):
                assert False
            rank.barrier()
            if rank.rank == 1:
                os.kill(os.getpid(), 9)
            rank.barrier()
        """
    )
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(
        [
            "SUBFAILED[[]before] test_it.py::test_it - ranks 0, 1: assert False",
            "FAILED test_it.py::test_it - rank 1 was killed by SIGKILL (Killed)",
        ]
    )
