"""Follows the pages of Get started in fresh environments that have a wheel, and times each command."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

# Modules that the tests share.
sys.path += [str(Path(__file__).parents[1] / "python")]
sys.path += [str(folder) for folder in (Path(__file__).parents[1] / "python").glob("support/**/")]

from sybil import Document
from test_followed_pages import Reader

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")
# What `pip install` of a page brings beside rlaunch, as arguments of uv. PyTorch is that of the tests,
# without 3 GB of CUDA: `--no-deps`, then what it needs of the rest.
TORCH = [["--no-deps", "--group", "torch"], ["--group", "beside-torch"]]
PAGES = {"torch": TORCH, "paddle": [["paddlepaddle==3.3.1"]], "pytest": [*TORCH, ["pytest>=8"]]}


class TimedReader(Reader):
    """A reader that notes how long each command took."""

    def __init__(self, folder: Path, environment: Path) -> None:
        super().__init__(folder, uuid.uuid4().hex)
        self.env["PATH"] = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.times: list[tuple[str, float]] = []

    def run(self, commands: str) -> None:
        begun = time.monotonic()
        super().run(commands)
        self.times.append((commands.splitlines()[0], time.monotonic() - begun))


def install(page: str, wheel: Path, environment: Path) -> tuple[str, float]:
    """The page's first command, with the wheel instead of the checkout."""
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin/python"
    begun = time.monotonic()
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", wheel], check=True)
    for arguments in PAGES[page]:
        command = [UV, "pip", "install", "--quiet", "--python", python, *arguments]
        subprocess.run(command, cwd=ROOT, check=True)
    if PAGES[page][0] is TORCH[0]:
        subprocess.run([python, ROOT / "tests/torch_cpu.py"], check=True)
    return f"pip install {wheel.name.partition('-')[0]} ...", time.monotonic() - begun


def follow(page: str, wheel: Path) -> list[tuple[str, float]]:
    """Follows a page. Returns its commands with their seconds; fails where the output is not as shown."""
    with tempfile.TemporaryDirectory(prefix=f"get-started-{page}-") as name:
        folder = Path(name)
        installed = install(page, wheel, folder / "environment")
        (folder / "place").mkdir()
        reader = TimedReader(folder / "place", folder / "environment")
        path = ROOT / f"docs/get-started/{page}.md"
        for example in Document.parse(str(path), reader.blocks).examples():
            example.evaluate()
        return [installed, *reader.times]
