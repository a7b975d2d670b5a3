"""Coverage of what runs in ranks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pytest_suites import Suite, suite_fixture  # noqa: F401

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


@pytest.mark.parametrize(("method", "preload"), [("spawn", None), ("fork", None), ("zygote", "json")])
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


def test_a_configuration_with_parallel_files(suite: Suite, pytester: pytest.Pytester) -> None:
    """coverage.py appends the host and the pid to the names of the ranks' files."""
    pytester.makepyfile(words=CODE)
    pytester.makefile("", **{".coveragerc": "[run]\nparallel = true\n"})
    source = TESTS.format(method="spawn", preload=None)
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

    @pytest.mark.ranks({ranks})
    def test_fails(rank):
        assert run(rank, 0) == "one"

    @pytest.mark.ranks({ranks})
    @pytest.mark.xfail
    def test_fails_as_expected(rank):
        assert run(rank, 1) == "zero"

    @pytest.mark.ranks({ranks})
    def test_is_skipped(rank):
        pytest.skip(run(rank, 2))
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_that_fails_or_skips_is_measured_too(
    ranks: int, suite: Suite, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(words=CODE)
    source = ENDINGS.format(ranks=ranks)
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


def test_lines_of_ranks_are_in_the_context_of_their_test(suite: Suite, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(words=CODE)
    source = TESTS.format(method="spawn", preload=None)
    done = suite(source, "-p", "pytest_cov", "--cov=words", "--cov-context=test", "--cov-report=")
    done.assert_outcomes(passed=1)
    report = [sys.executable, "-m", "coverage", "json", "-q", "--show-contexts", "-o", "cov.json"]
    subprocess.run(report, cwd=pytester.path, check=True, timeout=100)
    (contexts,) = [
        file["contexts"] for file in json.loads((pytester.path / "cov.json").read_text())["files"].values()
    ]
    assert all("test_words" in context for line in ("3", "5") for context in contexts[line]), contexts


def test_contexts_of_the_ranks_themselves_are_kept(suite: Suite, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(words=CODE)
    pytester.makefile("", **{".coveragerc": "[run]\ndynamic_context = test_function\n"})
    source = TESTS.format(method="spawn", preload=None)
    suite(source, "-p", "pytest_cov", "--cov=words", "--cov-report=").assert_outcomes(passed=1)
    report = [sys.executable, "-m", "coverage", "json", "-q", "--show-contexts", "-o", "cov.json"]
    subprocess.run(report, cwd=pytester.path, check=True, timeout=100)
    (file,) = json.loads((pytester.path / "cov.json").read_text())["files"].values()
    assert "test_it.test_words" in file["contexts"]["3"], file["contexts"]


def test_under_coverage_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        words=CODE,
        test_it="import pytest\n" + TESTS.format(method="spawn", preload=None).replace("\n    ", "\n"),
    )
    command = [
        sys.executable,
        "-m",
        "coverage",
        "run",
        "--include=words.py",
        "-m",
        "pytest",
        "-q",
        "test_it.py",
    ]
    subprocess.run(command, cwd=pytester.path, check=True, timeout=100)
    report = [sys.executable, "-m", "coverage", "json", "-q", "-o", "cov.json"]
    subprocess.run(report, cwd=pytester.path, check=True, timeout=100)
    seen = json.loads((pytester.path / "cov.json").read_text())["files"]["words.py"]
    assert seen["missing_lines"] == [6]
