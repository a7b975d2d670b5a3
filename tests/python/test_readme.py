"""The README: its length, its figures, and that what it shows works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from effort import each
from launching import environment
from paths import ROOT

# Without the address that tests/wheels/project_urls.py writes.
README = re.sub(r"https://github\.com/[\w./-]+/(?:blob|raw)/main/", "", (ROOT / "README.md").read_text())
DOCS = ROOT / "docs"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.M | re.S)
LINES = [line for language, text in BLOCKS if not language for line in text.splitlines()]
COMMANDS = [line.split(" # ")[0].strip() for line in LINES]
# Not run: it builds for minutes. All other tests run what it installs.
INSTALLS = ["pip install ."]
JOBS = [command for command in COMMANDS if "examples/" in command]


def figures(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)? m?s\b|\d+ of \d+", text)


def test_it_has_at_most_450_words() -> None:
    """All words between blanks count: those of code blocks, HTML and links too."""
    assert len(README.split()) <= 450


def test_a_minute_of_reading_reaches_the_first_job() -> None:
    """What it is, why, how to install it and how to run it, at 238 words a minute (Brysbaert, 2019)."""
    before, _, _ = README.partition(JOBS[0])
    assert len(before.split()) <= 238
    assert INSTALLS[0] in before


def test_its_figures_are_those_of_the_pages() -> None:
    bullets = re.findall(r"^- \*\*(.*?)\((?:\[[\w ]+\]\(docs/([\w-]+\.md)\))\)\.$", README, re.M | re.S)
    assert [page for _, page in bullets] == ["benchmarks.md", "fault-matrix.md", "hangs.md"]
    for text, page in bullets[:2]:
        assert len(figures(text)) == 3, text
        for figure in figures(text):
            assert re.search(rf"(?<![\d.]){re.escape(figure)}", (DOCS / page).read_text()), (figure, page)
    reports = [int(n) for n in re.findall(r"^rlaunch's (\d+) reports", (DOCS / "hangs.md").read_text(), re.M)]
    numbers = [int(number) for number in re.findall(r"\d+", bullets[2][0])]
    assert numbers == [sum(reports), reports[0]]


def test_every_command_is_run_by_a_test() -> None:
    targets = [command for command in COMMANDS if command.startswith("make ")]
    assert sorted(COMMANDS) == sorted([*INSTALLS, *JOBS, *targets])
    assert [language for language, _ in BLOCKS if language] == ["python"]
    assert targets == ["make demo", "make test"]
    for target in targets:
        subprocess.run([*target.split(), "--dry-run"], cwd=ROOT, check=True, capture_output=True)


@each("command", JOBS)
def test_its_jobs_train(command: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = environment(PATH=path, OMP_NUM_THREADS="1")
    words = shlex.split(command)
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "parameters equal on every rank (2)" in done.stdout


def test_its_test_passes(pytester: pytest.Pytester) -> None:
    (source,) = [text for language, text in BLOCKS if language == "python"]
    pytester.makepyfile(source)
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
