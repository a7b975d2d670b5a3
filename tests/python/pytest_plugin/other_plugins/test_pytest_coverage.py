"""Coverage of what runs in ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from effort import each
from pytest_suites import QUICK, Suite, suite_fixture  # noqa: F401

if TYPE_CHECKING:
    from coverage import CoverageData

# A rank of the first sets up coverage anew, one of the second has it from the session.
each_method = each("method", ["spawn", "fork"])
CODE = """
def word(number):
    if number == 0:
        return "zero"
    elif number == 1:
        return "one"
    return "many"
"""
TESTS = """
    from words import word

    @pytest.mark.ranks(2, start_method={method!r}, preload={preload!r})
    def test_words(rank):
        assert word(rank.rank) == ["zero", "one"][rank.rank]
"""


def read_data(folder: Path) -> tuple[CoverageData, str]:
    """The data of a session in this folder, and the path of words.py there."""
    from coverage import CoverageData

    data = CoverageData(str(folder / ".coverage"))
    data.read()
    return data, str(folder / "words.py")


@each("method, preload", [("spawn", None), ("fork", None), ("zygote", "json")])
def test_lines_and_branches_of_all_ranks_are_seen(
    method: str, preload: str | None, suite: Suite, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(words=CODE)
    source = TESTS.format(method=method, preload=preload)
    done = suite(source, "-p", "pytest_cov", "--cov=words", "--cov-branch", "--cov-report=json:cov.json")
    done.assert_outcomes(passed=1)
    seen = json.loads((pytester.path / "cov.json").read_text())["files"]["words.py"]
    assert seen["missing_lines"] == [6]
    assert seen["missing_branches"] == [[4, 6]]
    assert not list(pytester.path.glob("**/coverage.[0-9]*"))


@each_method
def test_a_configuration_with_parallel_files(method: str, suite: Suite, pytester: pytest.Pytester) -> None:
    """coverage.py appends the host and the pid to the names of the ranks' files."""
    pytester.makepyfile(words=CODE)
    pytester.makefile("", **{".coveragerc": "[run]\nparallel = true\n"})
    source = TESTS.format(method=method, preload=None)
    suite(source, "-p", "pytest_cov", "--cov=words", "--cov-report=json:cov.json").assert_outcomes(passed=1)
    seen = json.loads((pytester.path / "cov.json").read_text())["files"]["words.py"]
    assert seen["missing_lines"] == [6]


# With two ranks, rank 0 waits until it is stopped.
ENDINGS = """
    from words import word

    def run(rank, number):
        if rank.rank < rank.world_size - 1:
            rank.barrier()
        return word(number)

    @pytest.mark.ranks({ranks}, start_method={method!r})
    def test_fails(rank):
        assert run(rank, 0) == "one"

    @pytest.mark.ranks({ranks}, start_method={method!r})
    @pytest.mark.xfail
    def test_fails_as_expected(rank):
        assert run(rank, 1) == "zero"

    @pytest.mark.ranks({ranks}, start_method={method!r})
    def test_is_skipped(rank):
        pytest.skip(run(rank, 2))
"""


@each("ranks, method", [(1, "spawn"), (2, "fork"), (2, "spawn")], few=2)
def test_a_rank_that_fails_or_skips_is_measured_too(
    ranks: int, method: str, suite: Suite, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(words=CODE)
    source = ENDINGS.format(ranks=ranks, method=method)
    done = suite(source, "-p", "pytest_cov", "--cov=words", "--cov-branch", "--cov-report=json:cov.json")
    done.assert_outcomes(failed=1, xfailed=1, skipped=1)
    seen = json.loads((pytester.path / "cov.json").read_text())["files"]["words.py"]
    assert (seen["missing_lines"], seen["missing_branches"]) == ([], [])


WORKERS = """
    import words

    @pytest.mark.ranks(1)
    @pytest.mark.parametrize("number", [0, 1])
    def test_a_word_in_a_rank(number):
        assert words.word(number) == ["zero", "one"][number]
"""


def test_each_worker_of_xdist_has_its_ranks_lines(suite: Suite, pytester: pytest.Pytester) -> None:
    """The workers have run the same lines themselves. coverage.py once took one for the other."""
    pytester.makepyfile(words=CODE)
    plugins = ("-p", "pytest_cov", "-p", "xdist", "-n2")
    done = suite(WORKERS, *plugins, "-v", "--cov=words", "--cov-branch", "--cov-report=json:cov.json")
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines_random(["[[]gw0]*PASSED*", "[[]gw1]*PASSED*"])
    seen = json.loads((pytester.path / "cov.json").read_text())["files"]["words.py"]
    assert (seen["missing_lines"], seen["missing_branches"]) == ([6], [[4, 6]])


@each_method
def test_lines_of_ranks_are_in_the_context_of_their_test(
    method: str, suite: Suite, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(words=CODE)
    source = TESTS.format(method=method, preload=None)
    done = suite(source, "-p", "pytest_cov", "--cov=words", "--cov-context=test", "--cov-report=")
    done.assert_outcomes(passed=1)
    data, words = read_data(pytester.path)
    contexts = data.contexts_by_lineno(words)
    assert all("test_words" in context for line in (3, 5) for context in contexts[line]), contexts


@each_method
def test_contexts_of_the_ranks_themselves_are_kept(
    method: str, suite: Suite, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(words=CODE)
    pytester.makefile("", **{".coveragerc": "[run]\ndynamic_context = test_function\n"})
    source = TESTS.format(method=method, preload=None)
    suite(source, "-p", "pytest_cov", "--cov=words", "--cov-report=").assert_outcomes(passed=1)
    data, words = read_data(pytester.path)
    contexts = data.contexts_by_lineno(words)
    assert "test_it.test_words" in contexts[3], contexts


@each_method
def test_under_coverage_run(method: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        words=CODE,
        test_it="import pytest\n" + TESTS.format(method=method, preload=None).replace("\n    ", "\n"),
    )
    command = [sys.executable, "-m", "coverage", "run", "--include=words.py"]
    command += ["-m", "pytest", *QUICK, "-q", "test_it.py"]
    subprocess.run(command, cwd=pytester.path, check=True, timeout=100)
    data, words = read_data(pytester.path)
    assert data.lines(words) == [1, 2, 3, 4, 5]
