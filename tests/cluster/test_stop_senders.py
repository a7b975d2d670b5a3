"""The senders of the stop matrix that need Debian's packages: all ranks save, and nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest
import senders_unpacked
import stop_matrix
from slurm_cluster import Cluster
from stop_cell import SENDERS
from stop_ranks import KINDS
from test_stop_matrix import OURS, all_saved


def kinds(sender: str) -> list[str]:
    return [
        kind.name
        for kind in KINDS.values()
        if stop_matrix.applies(SENDERS[sender], kind, stop_matrix.LAUNCHERS["run"])
        and stop_matrix.counts(SENDERS[sender], kind)
    ]


@pytest.mark.parametrize("launcher", OURS)
@pytest.mark.parametrize("kind", kinds("slurm"))
def test_scancel(cluster: Cluster, tmp_path: Path, kind: str, launcher: str) -> None:
    all_saved("slurm", kind, launcher, tmp_path, cluster=cluster)


@pytest.mark.parametrize("launcher", OURS)
@pytest.mark.parametrize("kind", kinds("ssh"))
def test_a_closed_ssh_session(tmp_path: Path, kind: str, launcher: str) -> None:
    problem = senders_unpacked.missing()
    assert problem is None, problem
    all_saved("ssh", kind, launcher, tmp_path)
