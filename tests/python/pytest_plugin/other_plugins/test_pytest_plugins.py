"""The plugins of docs/reference/python-pytest.md, all of them at once, with each version of pytest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from launching import await_none_marked, environment
from paths import ROOT

WORDS = """\
def word(number):
    if number == 0:
        return "zero"
    elif number == 1:
        return "one"
    return "many"
"""
SUITE = """
import asyncio
import os
import random

import pytest
import pytest_asyncio
from hypothesis import given, settings, strategies as st
from words import word

pytestmark = pytest.mark.ranks(2)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.anyio
async def test_anyio(rank):
    await asyncio.sleep(0)
    assert rank.gather(rank.rank) == [0, 1]


@pytest_asyncio.fixture
async def number(rank):
    await asyncio.sleep(0)
    yield rank.rank


@pytest.mark.asyncio
async def test_asyncio(rank, number):
    await asyncio.sleep(0)
    assert rank.gather(number) == [0, 1]


@settings(derandomize=True, max_examples=5, deadline=None)
@given(n=st.integers())
def test_hypothesis(rank, n):
    assert set(rank.gather(n)) == {n}


def test_subtests(rank, subtests):
    for number in range(3):
        with subtests.test("a number", number=number):
            assert (rank.rank, number) != (1, 1)
    rank.barrier()


@pytest.mark.timeout(3)
def test_timeout(rank):
    if rank.rank == 1:
        asyncio.run(asyncio.sleep(600))
    rank.barrier()


@pytest.mark.flaky(reruns=1)
def test_rerunfailures(rank):
    rank.barrier()
    if rank.rank == 1 and not os.path.exists("ran"):
        open("ran", "w").close()
        raise RuntimeError("the first time")


def test_randomly(rank):
    assert len(set(rank.gather(random.random()))) == 1


def test_cov(rank):
    assert word(rank.rank) == ["zero", "one"][rank.rank]
"""
OUTCOMES = {
    **dict.fromkeys(("test_anyio", "test_asyncio", "test_hypothesis", "test_randomly", "test_cov"), ""),
    "test_rerunfailures": "",
    # pytest 9 fails the test of a failed subtest too, and both are one case of the file.
    "test_subtests": "rank 1: assert (1, 1) != (1, 1)",
    "test_timeout": "timeout: the ranks had not all ended after 3 s",
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("version", "workers"), [(8, 2), (9, 0)])
def test_all_plugins_at_once(version: int, workers: int, tmp_path: Path, mark: str) -> None:
    python = Path(sys.prefix, f"pytest-{version}", "bin", "python")
    assert python.exists(), f"run: make .venv/pytest-{version}"
    (tmp_path / "words.py").write_text(WORDS)
    (tmp_path / "test_it.py").write_text(SUITE)
    # Few imports for each rank. pytest-sugar and pytest-randomly are in effect, too.
    preload = "hypothesis.strategies, pytest_asyncio"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nranks_preload = {preload}\n")
    options = ["-p", "rlaunch.pytest_plugin", "-p", "no:cacheprovider", "--force-sugar", "--randomly-seed=7"]
    options += ["--cov=words", "--cov-branch", "--cov-report=json:cov.json", "--junitxml=report.xml", "-rA"]
    options += [f"-n{workers}"]
    done = subprocess.run(
        [python, "-m", "pytest", *options],
        cwd=tmp_path,
        env=environment(
            **{name: None for name in os.environ if name.startswith(("PYTEST_", "COV_"))},
            PYTHONPATH=str(ROOT / "python"),
            CUDA_VISIBLE_DEVICES="",
            MARK=mark,
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    report = ElementTree.parse(tmp_path / "report.xml").getroot()
    messages = {
        case.get("name"): "".join(part.get("message", "") for part in case)
        for case in report.iter("testcase")
    }
    outcomes = {**OUTCOMES}
    if version >= 9:
        outcomes["test_subtests"] += "contains 1 failed subtest"
    assert messages == outcomes, done.stdout
    assert "1 rerun" in done.stdout
    # pytest-sugar has the terminal of the pytest process, and of no rank.
    assert f"pytest {version}." in done.stdout
    assert done.stdout.count("Test session starts (") == done.stdout.count("\nResults (") == 1, done.stdout
    seen = json.loads((tmp_path / "cov.json").read_text())["files"]["words.py"]
    assert (seen["missing_lines"], seen["missing_branches"]) == ([6], [[4, 6]]), done.stdout
    await_none_marked(mark)
