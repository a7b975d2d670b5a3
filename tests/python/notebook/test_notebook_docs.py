"""The cells of docs/notebooks.md run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kernel import Notebook, notebook_fixture  # noqa: F401
from paths import ROOT


# The kernel and both ranks import torch.
@pytest.mark.timeout(240)
def test_the_cells_of_the_page_run(notebook: Notebook, tmp_path: Path) -> None:
    page = (ROOT / "docs/notebooks.md").read_text()
    notebook.run(f"import os; os.chdir({str(tmp_path)!r})")
    cells = re.findall(r"```python\n(.*?)```", page, re.S)
    spawn, write, launch = (notebook.run(cell, limit=100) for cell in cells)
    assert spawn.result in page, spawn
    assert spawn.result == "[tensor([21]), tensor([21])]", spawn
    assert (write.error, launch.result) == ("", "'completed'"), launch
    assert launch.stdout == "rank 0 of 2\n"
