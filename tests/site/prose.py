"""Sentences that are too long to be read once."""

from __future__ import annotations

import re

LIMIT = 35
# The end of a sentence, before the next one.
END = re.compile(r"(?<=[.!?])\s+(?=[\"(]?[A-Z])")


def long_sentences(text: str) -> list[str]:
    """The sentences of a paragraph or a cell with so many words or more."""
    return [one for one in END.split(text) if len(one.split()) >= LIMIT]
