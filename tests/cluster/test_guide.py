"""docs/slurm.md as printed: its batch script with its program, on each front end; and a job of Paddle."""

from __future__ import annotations

import re
from pathlib import Path

import nvml
import pytest
from launching import until
from paths import ROOT
from scenario_table import Row
from slurm_cluster import Cluster


def block(page: str, title: str) -> str:
    text = (ROOT / "docs" / page).read_text()
    found = re.search(rf'^```\w+ title="{re.escape(title)}"\n(.*?)^```', text, re.M | re.S)
    assert found, title
    return found[1]


# The line that starts each front end, by its name in the guide's table.
LINES = dict(re.findall(r"^\| `(.+?)` \| `(srun .+?)` \|$", (ROOT / "docs/slurm.md").read_text(), re.M))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("front_end", LINES)
def test_the_guide_s_job_is_queued_again_and_resumes(
    cluster: Cluster, tmp_path: Path, row: Row, front_end: str
) -> None:
    row.begin(
        f"the guide's torch program gets SIGUSR1 before the time limit; `{front_end}`",
        f"sbatch --time=5 job.sh\n{LINES[front_end]}",
        "it saves, is queued again, and resumes; at scancel it saves again",
    )
    for title in ("train.py", "launch.py"):
        (tmp_path / title).write_text(block("slurm.md", title))
    script, replaced = re.subn(r"^srun .*$", LINES[front_end], block("slurm.md", "job.sh"), flags=re.M)
    assert replaced == 1
    # Slurm's part, which this cluster's GPUs without a driver lack.
    driver = {"LD_LIBRARY_PATH": nvml.environment(tmp_path)["LD_LIBRARY_PATH"], "CUDA_VISIBLE_DEVICES": "0,1"}
    job = cluster.submit(script, "--time=5", folder=tmp_path, env=driver)
    until(lambda: "resumed at step" in job.output(), "the job that was queued again", 150)
    restarts = job.fields()["Restarts"]
    until(lambda: "step 100:" in job.output().partition("resumed at step")[2], "steps")
    cluster.run("scancel", str(job.number))
    assert job.wait() == "CANCELLED"
    steps = [int(step) for step in re.findall(r"^saved step (\d+)$", job.output(), re.M)]
    assert (restarts, len(steps)) == ("1", 2), job.output()
    assert 0 < steps[0] < steps[1]
    row.seen = f"saved step {steps[0]}, restarts: {restarts}, resumed; saved step {steps[1]} at scancel"


def test_a_job_of_paddle(cluster: Cluster, tmp_path: Path, row: Row) -> None:
    command = "python -m rlaunch --nproc_per_node 2 train.py"
    row.begin(
        "the Paddle program of [Get started](get-started/paddle.md)",
        f"srun --nodes=2 --ntasks-per-node=1 {command}",
        "it trains on 4 ranks",
    )
    program = block("get-started/paddle.md", "train.py")
    (tmp_path / "train.py").write_text(f"{program}print(dist.get_world_size(), 'ranks')\n")
    status, output = cluster.finish(
        "srun", "--nodes=2", "--ntasks-per-node=1", *command.split(), folder=tmp_path
    )
    logs = [path.read_text() for path in sorted(tmp_path.glob("log/node-*/workerlog.*"))]
    assert status == 0, (output, logs)
    assert ["4 ranks" in log for log in logs] == [True] * 4, logs
    losses = [re.findall(r"epoch 3: loss ([\d.]+)", log)[0] for log in logs]
    row.seen = f"exit status {status}; losses of the ranks: {', '.join(losses)}"
