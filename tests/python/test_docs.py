"""Docs that name files: their links lead somewhere, and the table of docs/architecture/README.md is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from paths import ROOT

PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ROW = re.compile(
    r"^\| (?P<question>[^|]+\?) \| `(?P<word>[^`]+)` in `(?P<folder>[^`]+)` \| (?P<files>.+) \|$", re.M
)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    broken = []
    for link in LINK.findall((ROOT / page).read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_each_behaviour_is_found_with_one_grep_and_two_files() -> None:
    rows = list(ROW.finditer((ROOT / "docs/architecture/README.md").read_text()))
    assert len(rows) == 8
    for row in rows:
        files = re.findall(r"`([^`]+)`", row["files"])
        assert len(files) == 2, row["question"]
        hits = [
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / row["folder"]).rglob("*")
            if path.suffix in (".rs", ".py") and row["word"] in path.read_text()
        ]
        assert set(hits) & set(files), (row["question"], hits)
        for file in files:
            assert (ROOT / file).is_file(), (row["question"], file)
