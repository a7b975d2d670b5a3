"""The blocks of the docs: programs are written, commands run, the output is as shown.

A ``text`` block is the output of the commands before it, and ``console`` a picture of a terminal. A block
that is not run has the reason above it, where the site does not show it:
``<!-- not run: it needs two machines -->``.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import each
from launching import until
from paths import ROOT, WRITTEN_PAGES
from sybil import Document, Example, Region
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer
from torch_launching import TorchPlace

BLOCK = RawFencedCodeBlockLexer(re.compile(r'(?P<language>\S*)(?: title="(?P<title>[^"]+)")?.*$\n', re.M))
NOT_RUN = re.compile(r"<!-- not run: \S[^>]* -->\s*\Z")
ALIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def followed_blocks(page: Document) -> Iterator[Region]:
    """The programs, commands and outputs that a reader follows. No other block may be without a reason."""
    follows_commands = False
    for block in BLOCK(page):
        before = page.text[: block.start]
        match block.lexemes["language"], block.lexemes["title"]:
            case _ if NOT_RUN.search(before):
                follows_commands = False
            case "text", None:
                if follows_commands:
                    yield block
            case "console", None:
                pass
            case "bash", None:
                follows_commands = True
                yield block
            case "python", str():
                yield block
            case _:
                line = before.count("\n") + 1
                raise AssertionError(f"{page.path}:{line}: the block is not run, and gives no reason")


def is_followed(page: Path) -> bool:
    try:
        return any(followed_blocks(Document(page.read_text(), str(page))))
    except AssertionError:
        return True


class Reader:
    """A reader of a page, in a folder and with jobs of its own."""

    def __init__(self, folder: Path, mark: str) -> None:
        self.place = TorchPlace(folder)
        commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        jobs = {"RLAUNCH_RUNTIME_DIR": str(folder / "run"), "MARK": mark}
        self.env = self.place.environment(PATH=commands, **jobs)
        # pytest prints whole messages under CI.
        for name in ("CI", "BUILD_NUMBER"):
            self.env.pop(name, None)
        self.commands = 0
        self.output = folder
        self.is_in_background = False

    def blocks(self, page: Document) -> list[Region]:
        return [Region(one.start, one.end, one.lexemes, self.follow) for one in followed_blocks(page)]

    def follow(self, block: Example) -> None:
        source = str(block.parsed["source"])
        match block.parsed["language"]:
            case "python":
                (self.place.folder / block.parsed["title"]).write_text(source)
            case "bash":
                self.run(source)
            case _:
                self.compare(source)

    def run(self, commands: str) -> None:
        self.is_in_background = commands.rstrip().endswith("&")
        # A job in the background goes on writing to its own.
        self.commands += 1
        self.output = self.place.folder / f"output.{self.commands}"
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


@pytest.mark.parametrize("page", WRITTEN_PAGES, ids=name_of)
def test_each_block_is_run_or_has_a_reason(page: Path) -> None:
    list(followed_blocks(Document(page.read_text(), str(page))))


@pytest.mark.parametrize("language", ["", "bash", "python", 'python title="a.py"', "yaml"])
def test_a_block_without_a_reason_is_refused(language: str) -> None:
    page = f"```{language}\ntrue\n```\n"
    assert list(followed_blocks(Document(f"<!-- not run: it is the seed -->\n{page}", "page.md"))) == []
    if language == "bash" or "title" in language:
        assert len(list(followed_blocks(Document(page, "page.md")))) == 1
        return
    with pytest.raises(AssertionError, match=r"page.md:1: the block is not run"):
        list(followed_blocks(Document(page, "page.md")))


FOLLOWED = [*filter(is_followed, WRITTEN_PAGES)]
# Their commands train networks or start sessions of pytest, one after the other.
LONG = {
    ROOT / "docs" / name
    for name in ("get-started/torch.md", "get-started/paddle.md", "get-started/pytest.md", "migrate.md")
}


def follow(page: Path, folder: Path, mark: str) -> None:
    reader = Reader(folder, mark)
    for example in Document.parse(str(page), reader.blocks).examples():
        example.evaluate()


@pytest.mark.parametrize("page", [page for page in FOLLOWED if page not in LONG], ids=name_of)
def test_the_page_runs(page: Path, tmp_path: Path, mark: str) -> None:
    follow(page, tmp_path, mark)


@pytest.mark.timeout(240)
@each("page", [page for page in FOLLOWED if page in LONG], ids=name_of)
def test_the_long_page_runs(page: Path, tmp_path: Path, mark: str) -> None:
    follow(page, tmp_path, mark)
