"""Tests on ranks with Hypothesis and its own plugin."""

from __future__ import annotations

import pytest
from pytest_suites import Suite
from pytest_suites import suite_fixture as suite_fixture

HEAD = """
from hypothesis import HealthCheck, given, settings, strategies as st

few = settings(derandomize=True, max_examples=5, deadline=None)
"""
PLUGIN = ("-p", "hypothesispytest")


def test_examples_are_the_same_on_all_ranks(suite: Suite) -> None:
    done = suite(
        f"""{HEAD}
@ranks(2)
@few
@given(n=st.integers())
def test_same(rank, n):
    assert set(rank.gather(n)) == {{n}}

class TestClass:
    @ranks(1)
    @few
    @given(n=st.integers(0, 9))
    def test_method(self, rank, n):
        assert rank.world_size == 1 and n < 10

@pytest.fixture(scope="module")
def built():
    return os.environ["RANK"]

@ranks(2)
@few
@given(n=st.booleans())
def test_fixtures_of_the_ranks(rank, built, n):
    assert built == str(rank.rank)
""",
        *PLUGIN,
    )
    done.assert_outcomes(passed=3)


def test_a_falsifying_example_is_shown(suite: Suite) -> None:
    done = suite(
        f"""{HEAD}
@ranks(2)
@settings(derandomize=True, database=None, deadline=None)
@given(n=st.integers(0, 1000))
def test_small(rank, n):
    assert n < 10
""",
        *PLUGIN,
    )
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(
        ["*test case: test_small(*", "*n=10,*", "rank ?: failed: assert 10 < 10 (above)"]
    )


@pytest.mark.parametrize("ranks", ["", "@ranks(1)"])
def test_a_function_scoped_fixture_is_refused_as_without_ranks(suite: Suite, ranks: str) -> None:
    done = suite(
        f"""{HEAD}
@pytest.fixture
def each():
    return 1

{ranks}
@few
@given(n=st.integers())
def test_it(each, n):
    assert each == 1
""",
        *PLUGIN,
    )
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*uses a function-scoped fixture 'each'*"])


def test_the_fixture_rank_needs_the_marker(suite: Suite) -> None:
    done = suite(
        f"""{HEAD}
@few
@given(n=st.integers())
def test_it(rank, n):
    pass
""",
        *PLUGIN,
    )
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*no rank here: mark the test with @pytest.mark.ranks(n)*"])
