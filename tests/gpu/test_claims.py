"""Workers of pytest share GPUs: a test has its own as long as it runs."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from conftest import HERE
from launching import environment

# By their modules, because rlaunch may be in PYTHONPATH without being installed.
PLUGINS = ["-p", "no:cacheprovider", "-p", "xdist.plugin", "-p", "rlaunch.pytest_plugin"]
TESTS, WORKERS = 8, 4
SUITE = f"""
import json, sys, time
import pytest
sys.path.insert(0, {str(HERE)!r})
import cuda

@pytest.mark.parametrize("number", range({TESTS}))
@pytest.mark.ranks(1, gpus=True)
def test_alone(number):
    begin = time.monotonic()
    driver = cuda.Driver()
    (uuid,) = driver.uuids()
    driver.use()
    address = driver.allocate(1 << 28)
    for _ in range(200):
        driver.fill(address, 1 << 28)
    with open(f"seen.{{number}}.json", "w") as file:
        json.dump([uuid, begin, time.monotonic()], file)
"""
TOO_MANY = """
import pytest
@pytest.mark.ranks({count}, gpus=True)
def test_too_many():
    pass
"""


def run(folder: Path, suite: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_suite.py").write_text(suite)
    command = [sys.executable, "-m", "pytest", *PLUGINS, *options, "test_suite.py"]
    env = environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_no_two_tests_use_a_gpu_at_once(
    tmp_path: Path, uuids: list[str], seen: Callable[[str, str], None]
) -> None:
    done = run(tmp_path, SUITE, f"--numprocesses={WORKERS}")
    assert done.returncode == 0, done.stdout + done.stderr
    spans = sorted(tuple(json.loads(path.read_text())) for path in tmp_path.glob("seen.*.json"))
    assert len(spans) == TESTS
    assert {uuid for uuid, _, _ in spans} <= set(uuids)
    for (uuid, _, end), (other, begin, _) in itertools.pairwise(spans):
        assert uuid != other or end <= begin
    seen(
        f"{TESTS} tests with `gpus=True` on {WORKERS} workers of pytest",
        "each has one GPU, and none at the same time as another",
    )


def test_more_ranks_than_gpus(tmp_path: Path, uuids: list[str]) -> None:
    done = run(tmp_path, TOO_MANY.format(count=len(uuids) + 1), "-rs")
    assert "1 skipped" in done.stdout, done.stdout
    assert f"{len(uuids) + 1} devices are wanted, and there are only {len(uuids)}" in done.stdout, done.stdout
