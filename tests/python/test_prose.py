"""The prose of the docs: no sentence is too long to be read once."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import schema_page
from markdown_it import MarkdownIt
from paths import ROOT
from prose import LIMIT, long_sentences

# All pages of the site but those of docstrings, which tests/site reads in the browser.
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for pattern in ("docs/**/*.md", "examples/**/*.md", "*.md")
    for path in sorted(ROOT.glob(pattern))
}
PAGES |= {path.name: schema_page.document(path) for path in ROOT.glob("docs/*.schema.json")}
MARKDOWN = MarkdownIt().enable("table")


def blocks(text: str) -> Iterator[str]:
    """Paragraphs, list items, headings, and the lines of cells. A piece of code is one word."""
    for token in MARKDOWN.parse(text):
        shown = {"code_inline": "CODE", "softbreak": " ", "hardbreak": "\n"}
        words = ""
        for one in token.children or ():
            is_break = one.type == "html_inline" and one.content.startswith("<br")
            words += one.content if one.type == "text" else "\n" if is_break else shown.get(one.type, "")
        yield from words.split("\n")


def too_long(text: str) -> list[str]:
    return [sentence for block in blocks(text) for sentence in long_sentences(block)]


@pytest.mark.parametrize("page", PAGES)
def test_no_sentence_is_too_long(page: str) -> None:
    assert too_long(PAGES[page]) == []


WORDS = f"Word {'word ' * (LIMIT - 3)}[`some code`](a/link.md)"


@pytest.mark.parametrize(
    "text",
    ["{} end.", "Short. A\n{}. Short.", "- short\n- a {}", "> a {}", "# A {}", "| a |\n|---|\n| b<br>a {} |"],
)
def test_a_long_sentence_is_found(text: str) -> None:
    assert len(too_long(text.format(WORDS))) == 1


@pytest.mark.parametrize(
    "text", ["{}.", "A short one. {}.", 'A short one. "{}."', "| a |\n|---|\n| a<br>{} |", "```\na {}\n```"]
)
def test_what_is_no_long_sentence_passes(text: str) -> None:
    assert too_long(text.format(WORDS)) == []


@pytest.mark.parametrize("page", PAGES)
def test_no_merge_has_left_its_marks(page: str) -> None:
    assert re.findall(r"^(?:<{7}|>{7}) .*", PAGES[page], re.M) == []
