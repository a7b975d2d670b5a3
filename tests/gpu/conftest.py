"""Tests that need an NVIDIA GPU and its driver: ``make test-gpu``. Without one they fail; nothing is faked.

``--write PAGE`` writes what was seen into a page of the docs, in place of an earlier run on such a GPU.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from jobs import Jobs
from launching import Place

HERE = Path(__file__).parent
# Puts cuda.py where a rank's script finds it.
IMPORT_CUDA = f"import sys; sys.path.insert(0, {str(HERE)!r}); import cuda\n"
GIB = 1 << 30
STRANGER = """
import sys; sys.path.insert(0, sys.argv[1]); import cuda
driver = cuda.Driver()
driver.use()
address = driver.allocate(int(sys.argv[2]))
print("holds", flush=True)
sys.stdin.read()
"""
HEAD = """# GPU checks

What the tests of `tests/gpu` saw on a GPU. Written by `make test-gpu GPU="--write docs/gpu.md"`; do not edit.
All other tests of rlaunch work without a GPU, with a fake of the driver's library.

"""
_seen: dict[str, str] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write", type=Path, help="the page of the docs with what was seen")


def smi(kind: str, *fields: str) -> list[list[str]]:
    """Rows of nvidia-smi. `kind`: gpu or compute-apps."""
    command = ["nvidia-smi", f"--query-{kind}={','.join(fields)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [[cell.strip() for cell in row] for row in csv.reader(done.stdout.splitlines())]


@contextlib.contextmanager
def stranger(size: int = GIB) -> Iterator[subprocess.Popen[str]]:
    """A process outside of the job that holds bytes of the first GPU."""
    command = [sys.executable, "-c", STRANGER, str(HERE), str(size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "holds\n"
        yield process
        process.stdin.close()


@pytest.fixture(scope="session", name="uuids")
def uuids_fixture() -> list[str]:
    """The UUIDs of the machine's GPUs, in the driver's order, by nvidia-smi."""
    found = [uuid for (uuid,) in smi("gpu", "uuid")]
    assert found, "nvidia-smi finds no GPU"
    return found


@pytest.fixture(scope="session", autouse=True)
def _clean_environment(uuids: list[str]) -> None:
    """No list of the shell hides a GPU from a test, and CUDA numbers GPUs as the driver does."""
    assert uuids
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"


@pytest.fixture(scope="session")
def shown(uuids: list[str]) -> Callable[[Sequence[str | None]], list[Any]]:
    """Asks CUDA's driver what it shows for lists of visible devices."""
    assert uuids

    def ask(lists: Sequence[str | None]) -> list[Any]:
        command = [sys.executable, str(HERE / "cuda.py")]
        done = subprocess.run(command, input=json.dumps(lists), capture_output=True, text=True, check=True)
        answers: list[Any] = json.loads(done.stdout)
        return answers

    return ask


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


@pytest.fixture
def seen(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Says what a test has seen: a subject, and a text with figures."""

    def say(subject: str, text: str) -> None:
        _seen[subject] = text

    return say


@pytest.fixture(scope="session", autouse=True)
def _page(request: pytest.FixtureRequest, uuids: list[str]) -> Iterator[None]:
    yield
    page = request.config.getoption("--write")
    if page is not None and not request.session.testsfailed:
        earlier = page.read_text() if page.exists() else ""
        page.write_text(with_machine(earlier, *written(len(uuids))))


def with_machine(earlier: str, machine: str, text: str) -> str:
    """The page with what was seen on a machine, in place of what an earlier page says of it."""
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", earlier, re.MULTILINE | re.DOTALL))
    sections[machine] = f"\n{text}\n"
    return HEAD + "\n".join(f"## {name}\n\n{sections[name].strip()}\n" for name in sorted(sections))


def written(count: int) -> tuple[str, str]:
    """The machine's GPUs, and what the tests saw there."""
    ((name, driver), *_) = smi("gpu", "name", "driver_version")
    day = datetime.datetime.now(datetime.timezone.utc).date()
    versions = f"driver {driver}, Linux {platform.release()}, Python {platform.python_version()}"
    about = f"{day}: {versions}, {os.cpu_count()} CPUs."
    rows = "".join(f"| {subject} | {text} |\n" for subject, text in _seen.items())
    return f"{count} x {name}", f"{about}\n\n| checked | seen |\n| --- | --- |\n{rows}"
