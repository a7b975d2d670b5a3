"""docs/slurm.md as printed: its batch script with its program, on each front end; and a job of Paddle."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import nvml
import pytest
from launching import until
from paths import ROOT
from ranks_of_jobs import FRONT_ENDS, command, write
from scenario_table import Row
from slurm_cluster import SRUN, Cluster


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
    # Two ranks for each node.
    driver = {"LD_LIBRARY_PATH": nvml.environment(tmp_path, "-DGPUS=2")["LD_LIBRARY_PATH"]}
    job = cluster.submit(script, "--time=5", folder=tmp_path, env=driver)
    until(lambda: job.fields()["Restarts"] == "1", "the job that was queued again", 240)
    # Otherwise the notice might come again before there is anything new to save.
    cluster.run("scontrol", "update", f"jobid={job.number}", "timelimit=60")
    resumed = r"^resumed at step (\d+)$[^$]*?^step \d+: loss"
    (first,) = until(lambda: re.findall(resumed, job.output(), re.M), "steps after it")
    cluster.run("scancel", str(job.number))
    assert job.wait() == "CANCELLED"
    saved = saved_step(tmp_path)
    assert 1 < int(first) < saved, job.output()
    row.seen = f"saved step {int(first) - 1}, queued again, resumed; saved step {saved} at scancel"


# It has waited for the others once, so that all take part.
PADDLE_FAILS = """
import os
import paddle
import paddle.distributed as dist

dist.init_parallel_env()
dist.barrier()
if dist.get_rank() == 3:
    os._exit(7)
dist.barrier()
"""


def logs_of_ranks(folder: Path) -> list[str]:
    """What each rank has written."""
    logs = [*folder.glob("log/node-*/workerlog.*"), *folder.glob("log/**/stdout.log")]
    return [path.read_text() for path in sorted(logs)]


def saved_step(folder: Path) -> int:
    """srun ends before its launchers, so its console does not say what was saved last."""
    command = [sys.executable, "-c", "import torch; print(torch.load('checkpoint.pt')['step'])"]
    return int(subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout)


def command_of_paddle(front_end: str) -> str:
    """Its ranks have Paddle's variables, and their logs are below `log`."""
    if front_end == "python -m rlaunch.run":
        return command(front_end, frameworks="paddle", log_dir="log", redirects=3)
    return command(front_end)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_job_of_paddle(cluster: Cluster, tmp_path: Path, row: Row, front_end: str) -> None:
    line = command_of_paddle(front_end)
    row.begin(
        f"the Paddle program of [Get started](get-started/paddle.md), `{front_end}`",
        f"srun --nodes=2 --ntasks-per-node=1 {line}",
        "it trains on 4 ranks",
    )
    program = block("get-started/paddle.md", "train.py")
    write(tmp_path, f"{program}print(dist.get_world_size(), 'ranks')\n")
    status, output = cluster.finish(*SRUN, *line.split(), folder=tmp_path)
    logs = logs_of_ranks(tmp_path)
    assert status == 0, (output, logs)
    assert ["4 ranks" in log for log in logs] == [True] * 4, logs
    losses = [re.findall(r"epoch 3: loss ([\d.]+)", log)[0] for log in logs]
    row.seen = f"exit status {status}; losses of the ranks: {', '.join(losses)}"


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_rank_of_paddle_that_fails(cluster: Cluster, tmp_path: Path, row: Row, front_end: str) -> None:
    line = command_of_paddle(front_end)
    row.begin(
        f"rank 3 of a Paddle program exits with 7, the others wait for it in a collective, `{front_end}`",
        f"srun --nodes=2 --ntasks-per-node=1 {line}",
        "all launchers end, and name rank 3",
    )
    write(tmp_path, PADDLE_FAILS)
    status, output = cluster.finish(*SRUN, *line.split(), folder=tmp_path)
    assert status == 7, (output, logs_of_ranks(tmp_path))
    results = [json.loads(path.read_text()) for path in tmp_path.glob("log/**/rlaunch/result.json")]
    assert [result["job_culprit"]["rank"] for result in results] == [3, 3], (results, output)
    row.seen = f"exit status {status}; both nodes' result.json names rank 3"
