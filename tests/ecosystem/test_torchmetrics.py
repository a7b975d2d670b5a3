"""torchmetrics on rlaunch."""

from __future__ import annotations

import comparing
import pytest
from ecosystem_jobs import Jobs
from ecosystem_table import Row


def test_values_of_all_ranks(jobs: Jobs, row: Row) -> None:
    tried = "`Accuracy`, `AUROC` and `MeanMetric`, each rank with half of the data"
    for seen in comparing.train_beside_torchrun(jobs, row, "torchmetrics", tried, "metrics.py"):
        assert seen["seen"] == pytest.approx(seen["whole"])
    row.seen += "; the values are those of all data"
