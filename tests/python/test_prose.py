"""The prose of the docs: no sentence is too long to be read once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from paths import ROOT, WRITTEN_PAGES

LIMIT = 35
PAGES = [*WRITTEN_PAGES, ROOT / "README.md", ROOT / "CHANGELOG.md"]
MARKDOWN = MarkdownIt().enable("table")
BREAKS = ("softbreak", "hardbreak")
# The end of a sentence, before the next one.
END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


def sentences(text: str) -> list[str]:
    """The sentences of paragraphs and list items. A piece of code is one word."""
    found: list[str] = []
    block = ""
    for token in MARKDOWN.parse(text):
        if token.type in ("heading_open", "th_open", "td_open", "paragraph_open"):
            block = token.type
        if token.type == "inline" and block == "paragraph_open":
            parts = {"text": str, "code_inline": lambda _: "CODE", **dict.fromkeys(BREAKS, lambda _: " ")}
            words = "".join(parts[one.type](one.content) for one in token.children or () if one.type in parts)
            found += END.split(words)
    return found


def too_long(text: str) -> list[str]:
    return [one for one in sentences(text) if len(one.split()) >= LIMIT]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_sentence_is_too_long(page: Path) -> None:
    assert too_long(page.read_text()) == []


WORDS = f"Word {'word ' * (LIMIT - 3)}[`some code`](a/link.md)"


@pytest.mark.parametrize("text", ["{} end.", "Short. A\n{}. Short.", "- short\n- a {}", "> a {}"])
def test_a_long_sentence_is_found(text: str) -> None:
    assert len(too_long(text.format(WORDS))) == 1


@pytest.mark.parametrize(
    "text", ["{}.", "A short one. {}.", "# A {}", "| a |\n|---|\n| a {} |", "```\na {}\n```"]
)
def test_what_is_no_long_sentence_passes(text: str) -> None:
    assert too_long(text.format(WORDS)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_merge_has_left_its_marks(page: Path) -> None:
    assert re.findall(r"^(?:<{7}|>{7}) .*", page.read_text(), re.M) == []
