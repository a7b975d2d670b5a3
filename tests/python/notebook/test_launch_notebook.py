"""``rlaunch.launch`` in a notebook: what stands below the cell."""

from __future__ import annotations

from pathlib import Path

from kernel import Notebook, notebook_fixture  # noqa: F401

SCRIPT = """
import os, sys
rank = os.environ["PADDLE_TRAINER_ID"]
print("line of rank", rank, flush=True)
sys.exit("no data" if rank == "0" else 0)
"""


def test_a_failure_report_is_shown_once(notebook: Notebook, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    notebook.run(f"import os, rlaunch; os.chdir({str(tmp_path)!r})")
    shown = notebook.run('rlaunch.launch("train.py", nproc_per_node=2)')
    assert shown.stdout == "line of rank 0\nno data\n"
    assert "Container failed !!!" in shown.stderr
    assert "WorkerError: rank 0 failed: exit code 1\n" in shown.error
    assert "| no data\n" in shown.error
    assert "rank 0 failed" not in shown.stderr
