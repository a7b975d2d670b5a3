"""Where the repository and the modules of the tests are."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TESTS = ROOT / "tests" / "python"
ORACLES = TESTS / "support" / "oracles"
FOLDERS = [TESTS, *sorted(path for path in TESTS.rglob("*") if path.is_dir() and path.name != "__pycache__")]

# For processes that import what the tests import.
PYTHONPATH = os.pathsep.join(map(str, FOLDERS))

# The pages of the site that no program writes. The README and the changelog are apart.
WRITTEN_PAGES = [
    page
    for page in sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), ROOT / "CONTRIBUTING.md"])
    if "do not edit" not in page.read_text()[:1000]
]
