"""The page of transcripts is what a user sees today."""

from __future__ import annotations

import transcripts


def test_the_page_matches_the_transcripts() -> None:
    diff = transcripts.changes(transcripts.PAGE.read_text(), transcripts.page())
    assert not diff, f"python tests/faults/transcripts.py writes it anew:\n{diff}"
