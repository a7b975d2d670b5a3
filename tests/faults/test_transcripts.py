"""The page of transcripts, and the README's picture, are what a user sees today."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
import transcripts


def test_the_page_matches_the_transcripts() -> None:
    diff = transcripts.changes(transcripts.PAGE.read_text(), transcripts.page())
    assert not diff, f"python tests/faults/transcripts.py writes it anew:\n{diff}"


def words(svg: str) -> list[str]:
    """The words of a picture. Where they stand is the library's affair."""
    texts = re.findall(r"<text [^>]*>(.*?)</text>", svg, re.DOTALL)
    return html.unescape(" ".join(texts)).split()


def test_the_pictures_match_the_terminal() -> None:
    screen = transcripts.picture_text()
    for file, theme in transcripts.PICTURES.items():
        seen = words(transcripts.picture(screen, theme))
        assert "ValueError:" in seen
        assert words(file.read_text()) == seen, "python tests/faults/transcripts.py writes it anew"


@pytest.mark.parametrize("file", transcripts.PICTURES, ids=lambda file: file.name)
def test_a_picture_is_small_and_needs_nothing_else(file: Path) -> None:
    text = file.read_text()
    assert len(text) < 40_000
    assert not re.search(r"font-face|@import|href|url\((?!#)", text)
