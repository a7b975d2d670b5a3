"""``--preload`` with the real frameworks: ranks that were forked talk to each other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from effort import each
from launching import Ended
from preload_jobs import PADDLE, TORCH, Job, lines_of

# Under load every import of a framework takes long.
pytestmark = pytest.mark.timeout(300)

BODIES = {
    TORCH: """
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.full((3,), float(rank + 1))
        dist.all_reduce(total)
        product = (torch.ones(300, 300) @ torch.ones(300, 300)).sum().item()
        drawn = torch.rand(1).item()
        tell("seen", json.dumps([total.tolist(), product, drawn, os.getppid()]))
        dist.barrier()
        dist.destroy_process_group()
    """,
    PADDLE: """
        import paddle
        import paddle.distributed as dist

        dist.init_parallel_env()
        total = paddle.full([3], float(rank + 1))
        dist.all_reduce(total)
        product = float((paddle.ones([300, 300]) @ paddle.ones([300, 300])).sum())
        drawn = paddle.rand([1]).item()
        tell("seen", json.dumps([total.tolist(), product, drawn, os.getppid()]))
        dist.barrier()
    """,
}
FRAMEWORKS = {TORCH: "torch", PADDLE: "paddle"}


@each("frontend", BODIES)
def test_ranks_of_one_import_reduce_together(tmp_path: Path, frontend: str) -> None:
    """``auto`` alone is the framework of the front end, and no reason is found against it."""
    job = Job(tmp_path, frontend)
    job.script(BODIES[frontend])
    with job.start(*job.options("auto"), "train.py") as launcher:
        out, err = launcher.communicate(timeout=240)
    ended = Ended(launcher.returncode, out, err.decode())
    assert ended.status == 0, ended.stderr + job.output(0) + job.output(1)
    assert not [line for line in lines_of(ended) if "no preload server" in line], ended.stderr
    (ready,) = job.events("zygote_ready")
    assert ready["modules"] == [FRAMEWORKS[frontend]]
    (took,) = (
        (line for line in lines_of(ended) if line.startswith("imported")) if ready["seconds"] > 2 else ("",)
    )
    assert re.fullmatch(rf"(imported {FRAMEWORKS[frontend]} in \d+\.\d s)?", took)
    seen = [json.loads(job.text(f"seen.{rank}")) for rank in range(2)]
    assert [one[:2] for one in seen] == [[[3.0] * 3, 300.0**3]] * 2
    assert seen[0][2] != seen[1][2], "the same random number"
    assert seen[0][3] == seen[1][3] == job.events("job_started")[0]["supervisor"]
