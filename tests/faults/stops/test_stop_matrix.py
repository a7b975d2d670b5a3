"""Each sender with each kind of rank on rlaunch: all ranks save, and nothing is left. Short times.

Each cell runs under one of the two command lines, in turn; with RLAUNCH_TEST_ALL=1 under both. Senders that
need Debian's packages are in tests/cluster.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import bars
import pytest
import senders  # noqa: F401
import stop_matrix
from effort import ALL, left_to_ci
from slurm_cluster import Cluster
from stop_cell import LAUNCHERS, QUICK, QUICK_KILL, RANKS, SENDERS, Seen, run
from stop_matrix import CellKey
from stop_ranks import KINDS

pytestmark = pytest.mark.timeout(300)
PAGE = Path(__file__).parents[3] / "docs/stop-matrix.md"
FAR = ("slurm", "ssh")
OURS = [name for name, launcher in LAUNCHERS.items() if launcher.ours]
# Next to each other in both directions, cells are under different command lines.
CELLS = [
    (sender.name, kind.name, OURS[(row + column) % len(OURS)])
    for row, sender in enumerate(SENDERS.values())
    for column, kind in enumerate(KINDS.values())
    if sender.name not in FAR
    and stop_matrix.applies(sender, kind, LAUNCHERS["run"])
    and stop_matrix.counts(sender, kind)
]
RUNS = [(*cell, launcher) for *cell, first in CELLS for launcher in (OURS if ALL else [first])]


def all_saved(
    sender: str,
    kind: str,
    launcher: str,
    folder: Path,
    loader: str = "plain",
    cluster: Cluster | None = None,
) -> None:
    times = QUICK if KINDS[kind].saves else QUICK_KILL
    seen, output = run(SENDERS[sender], KINDS[kind], LAUNCHERS[launcher], times, folder, loader, cluster)
    assert (seen.saved, seen.leftover, seen.note) == (RANKS, 0, ""), output


@pytest.mark.parametrize(("sender", "kind", "launcher"), RUNS)
def test_all_ranks_save(sender: str, kind: str, launcher: str, tmp_path: Path) -> None:
    all_saved(sender, kind, launcher, tmp_path)


@left_to_ci
@pytest.mark.parametrize("launcher", OURS)
def test_all_ranks_save_beside_workers_of_torch(launcher: str) -> None:
    # Workers of torch listen at sockets in the temporary folder; a path has at most 107 bytes (unix(7)).
    with tempfile.TemporaryDirectory() as folder:
        all_saved("kill", "workers", launcher, Path(folder), loader="torch")


def test_a_page_has_a_table_for_each_kind_and_a_row_for_each_sender() -> None:
    good, bad = Seen(RANKS, 8.05, "143", 0), Seen(0, None, "1", 2)
    results = {
        CellKey(sender.name, kind.name, launcher.name): good if launcher.ours else bad
        for sender in SENDERS.values()
        for kind in KINDS.values()
        for launcher in LAUNCHERS.values()
        if stop_matrix.applies(sender, kind, launcher)
    }
    summary, about, *tables = bars.tables(stop_matrix.page(results))
    assert [row[0] for row in summary.rows] == [table.section for table in tables]
    assert [row[0] for row in about.rows] == [sender.title for sender in SENDERS.values()]
    to_all = [sender for sender in SENDERS.values() if sender.to_all]
    for kind, table, scores in zip(KINDS.values(), tables, summary.rows, strict=True):
        rows = to_all if kind.name == "guarded" else list(SENDERS.values())
        counted = [sender for sender in rows if stop_matrix.counts(sender, kind)]
        rivals = [sender for sender in counted if not sender.ours_alone]
        assert [row[0] for row in table.rows] == [sender.title for sender in rows]
        assert scores[1:] == ([f"{len(counted)} of {len(counted)}"] * 2 + [f"0 of {len(rivals)}"] * 2)
        for sender, row in zip(rows, table.rows, strict=True):
            theirs = "n/a" if sender.ours_alone else "✗ 0 of 2, no end, 1, 2 left"
            ours = "2 of 2, 8.1 s, 143"
            if not stop_matrix.counts(sender, kind):
                theirs, ours = f"({theirs.removeprefix('✗ ')})", f"({ours})"
            assert row[1:] == [ours, ours, theirs, theirs]


def test_the_committed_page_has_all_cells() -> None:
    summary, _, *tables = bars.tables(PAGE.read_text())
    assert summary.head[1:] == [f"`{launcher.title}`" for launcher in LAUNCHERS.values()]
    assert [table.section for table in tables] == [kind.title for kind in KINDS.values()]
    for kind, table in zip(KINDS.values(), tables, strict=True):
        titles = [
            sender.title for sender in SENDERS.values() if stop_matrix.applies(sender, kind, LAUNCHERS["run"])
        ]
        assert [row[0] for row in table.rows] == titles
        assert all(len(row) == 1 + len(LAUNCHERS) for row in table.rows)
        ours = [cell for row in table.rows for cell in row[1:3] if not cell.startswith("(")]
        assert all(cell.startswith("2 of 2, ") and not cell.endswith(" left") for cell in ours), ours
