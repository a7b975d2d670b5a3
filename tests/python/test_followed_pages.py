"""Pages of the docs that readers follow: programs are written, commands run, the output is as shown."""

from __future__ import annotations

import contextlib
import doctest
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest import SkipTest

import pytest
from launching import until
from paths import ROOT
from sybil import Document, Example, Region
from sybil.parsers.markdown import SkipParser
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer
from torch_launching import TorchPlace

DOCS = ROOT / "docs"
PAGES = [
    *sorted(DOCS.glob("get-started/*.md")),
    *(DOCS / f"{name}.md" for name in ("logs", "migrate", "restarts", "spawn")),
]
BLOCK = RawFencedCodeBlockLexer(re.compile(r'(?P<language>\w+)(?: title="(?P<title>[^"]+)")?$\n', re.M))
ALIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Reader:
    """A reader of a page, in a folder and with jobs of its own."""

    def __init__(self, folder: Path, mark: str) -> None:
        self.place = TorchPlace(folder)
        commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        jobs = {"RLAUNCH_RUNTIME_DIR": str(folder / "run"), "MARK": mark}
        self.env = self.place.environment(PATH=commands, **jobs)
        self.output = folder / "output"
        self.is_in_background = False

    def blocks(self, page: Document) -> list[Region]:
        return [Region(one.start, one.end, one.lexemes, self.follow) for one in BLOCK(page)]

    def follow(self, block: Example) -> None:
        source = str(block.parsed["source"])
        match block.parsed["language"]:
            case "python":
                (self.place.folder / block.parsed["title"]).write_text(source)
            case "bash":
                self.run(source)
            case "text":
                self.compare(source)
            case other:
                raise AssertionError(f"a block of {other} is not run")

    def run(self, commands: str) -> None:
        self.is_in_background = commands.rstrip().endswith("&")
        with self.output.open("w") as output:
            options = {"cwd": self.place.folder, "env": self.env, "stdin": subprocess.DEVNULL}
            done = subprocess.run(["bash", "-c", commands], stdout=output, stderr=output, **options)
        # A command that fails is followed by one that shows the status, or is pytest.
        assert done.returncode == 0 or "pytest" in commands, self.output.read_text()

    def compare(self, shown: str) -> None:
        def is_alike() -> bool:
            return doctest.OutputChecker().check_output(shown, self.output.read_text(), ALIKE)

        if self.is_in_background:
            until(is_alike, shown)
        assert is_alike(), f"shown:\n{shown}\nseen:\n{self.output.read_text()}"


# Each page imports a framework in several ranks.
@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_runs(page: Path, tmp_path: Path, mark: str) -> None:
    reader = Reader(tmp_path, mark)
    for example in Document.parse(str(page), reader.blocks, SkipParser()).examples():
        # A block that is not run has the reason before it.
        with contextlib.suppress(SkipTest):
            example.evaluate()
