"""Preemption in a Slurm cluster: ranks that ask stop at one step, and the job is queued again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from launching import until
from paths import ROOT
from ranks_of_jobs import FRONT_ENDS, RANK, command, is_whole, reported, write
from scenario_table import Row
from slurm_cluster import KILL_WAIT, Cluster, Job

BATCH = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
export SLURM_RESTART_COUNT=${{SLURM_RESTART_COUNT:-0}}
rm -f notice
srun {command}
"""
# Continues at the step after the saved one. It has no handler of SIGTERM, which Slurm sends to every process.
TRAINS = f"""{RANK}
restarts = os.environ["SLURM_RESTART_COUNT"]
saved = f"step.{{number}}"
step = int(open(saved).read()) if os.path.exists(saved) else 0
while not rlaunch.should_stop(step):
    step += 1
    if step % 10 == 0 and not os.path.exists(f"ready-{{restarts}}.{{rank}}"):
        tell(f"ready-{{restarts}}")
    time.sleep(0.02)
with open(f"{{saved}}.draft", "w") as file:
    file.write(str(step))
os.rename(f"{{saved}}.draft", saved)
tell(f"saved-{{restarts}}", step)
"""


def steps(folder: Path, restarts: int) -> set[int]:
    return {int(path.read_text()) for path in folder.glob(f"saved-{restarts}.*.of.4.on.*")}


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_preempted_job_is_queued_again_until_the_limit(
    cluster: Cluster, tmp_path: Path, row: Row, front_end: str
) -> None:
    line = command(front_end, preempt_file="notice", requeue=1, log_dir="log/$SLURM_RESTART_COUNT")
    # A program that calls launch() gets the signal too, and ends by it.
    last = 143 if front_end == "rlaunch.launch()" else 78
    row.begin(
        f"a notice by a file; after the requeue, SIGTERM to all processes, `{front_end}`",
        f"srun {line}",
        f"all ranks stop at one step, are queued again once, and continue there; then status {last}",
    )
    write(tmp_path, TRAINS)
    job = cluster.submit(BATCH.format(command=line), folder=tmp_path)
    until(lambda: is_whole(tmp_path, "ready-0"), "ranks")
    (tmp_path / "notice").touch()
    until(lambda: is_whole(tmp_path, "ready-1"), f"the job that was queued again: {job.output()}", 180)
    ((first,), fields) = steps(tmp_path, 0), job.fields()
    assert fields["Restarts"] == "1"
    cluster.run("scancel", "--signal=TERM", str(job.number))
    assert job.wait() == "FAILED", job.output()
    assert job.exit_status() == last, job.output()
    assert is_whole(tmp_path, "saved-1"), (reported(tmp_path, "saved-1"), job.output())
    (second,) = steps(tmp_path, 1)
    assert 0 < first < second
    results = [json.loads(path.read_text()) for path in tmp_path.glob("log/**/rlaunch/result.json")]
    # Of two launchers, twice.
    assert [result["outcome"] for result in results] == ["preempted"] * 4, results
    row.seen = f"saved step {first} on both nodes, queued again, saved step {second}; exit status {last}"


# Each task saves in a folder of its own.
ARRAY = BATCH.replace(
    "rm -f notice", 'mkdir -p "$SLURM_ARRAY_TASK_ID"; cd "$SLURM_ARRAY_TASK_ID"; rm -f notice'
)


def test_a_task_of_an_array_is_queued_again_alone(cluster: Cluster, tmp_path: Path, row: Row) -> None:
    line = "python -m rlaunch --nproc_per_node 2 --preempt_file notice --requeue 1 ../train.py"
    row.begin(
        "a notice by a file to one task of a job array, whose number is the array's",
        f"sbatch --array=0-1 ...\nsrun {line}",
        "this task is queued again, the other one runs on",
    )
    write(tmp_path, TRAINS)
    job = cluster.submit(ARRAY.format(command=line), "--array=0-1", folder=tmp_path)
    until(lambda: all(is_whole(tmp_path / task, "ready-0") for task in "01"), "both tasks")
    text = cluster.run("scontrol", "--oneliner", "show", "job", str(job.number))
    tasks = dict(re.findall(r"^JobId=(\d+) .*?ArrayTaskId=(\d)", text, re.M))
    last = tasks.pop(str(job.number))
    ((other, task),) = tasks.items()
    (tmp_path / last / "notice").touch()
    until(lambda: is_whole(tmp_path / last, "ready-1"), f"task {last}, queued again", 180)
    fields = Job(cluster, int(other), tmp_path).fields()
    assert (fields["JobState"], fields["Restarts"]) == ("RUNNING", "0"), fields
    assert steps(tmp_path / last, 0)
    cluster.run("scancel", str(job.number))
    cluster.await_idle()
    assert not steps(tmp_path / task, 1)
    row.seen = "the task was queued again once; the other one still ran"


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_cancelled_job_is_not_queued_again(
    cluster: Cluster, tmp_path: Path, row: Row, front_end: str
) -> None:
    line = command(front_end, requeue=1, log_dir="log/$SLURM_RESTART_COUNT")
    row.begin(
        f"scancel of a job that calls `should_stop` and may be queued again, `{front_end}`",
        f"srun {line}",
        "all ranks stop at one step, and the job ends",
    )
    write(tmp_path, TRAINS)
    job = cluster.submit(BATCH.format(command=line), folder=tmp_path)
    until(lambda: is_whole(tmp_path, "ready-0"), "ranks")
    cluster.run("scancel", str(job.number))
    job.await_end()
    assert is_whole(tmp_path, "saved-0"), (reported(tmp_path, "saved-0"), job.output())
    ((step,), fields) = steps(tmp_path, 0), job.fields()
    assert (fields["JobState"], fields["Restarts"]) == ("CANCELLED", "0"), job.output()
    row.seen = f"saved step {step} on both nodes; state CANCELLED, not queued again"


@pytest.mark.timeout(240)
def test_a_job_at_its_time_limit_is_queued_again(cluster: Cluster, tmp_path: Path, row: Row) -> None:
    """By Slurm's SIGTERM alone. Slurm calls it COMPLETING, as it does one that is cancelled."""
    line = command("python -m rlaunch", requeue=1, log_dir="log/$SLURM_RESTART_COUNT")
    row.begin(
        "the time limit of a job that calls `should_stop`, without a notice before",
        f"sbatch --time=1 ...\nsrun {line}",
        "all ranks stop at one step, and the job is queued again",
    )
    write(tmp_path, TRAINS)
    job = cluster.submit(BATCH.format(command=line), "--time=1", folder=tmp_path)
    until(lambda: is_whole(tmp_path, "ready-1"), f"the job that was queued again: {job.output()}", 200)
    (step,) = steps(tmp_path, 0)
    cluster.run("scancel", str(job.number))
    job.await_end()
    row.seen = f"saved step {step} on both nodes, queued again"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("partition", ["cancelled", "requeued"])
def test_a_job_that_slurm_preempts_is_queued_again_once(
    cluster: Cluster, tmp_path: Path, row: Row, partition: str
) -> None:
    line = command("python -m rlaunch", requeue=2, log_dir="log/$SLURM_RESTART_COUNT")
    mode = {"cancelled": "CANCEL", "requeued": "REQUEUE"}[partition]
    row.begin(
        f"an urgent job takes the nodes, PreemptMode={mode}; the ranks call `should_stop`",
        f"srun {line}",
        "all ranks stop at one step, and the job is queued again once",
    )
    write(tmp_path, TRAINS)
    job = cluster.submit(BATCH.format(command=line), f"--partition={partition}", folder=tmp_path)
    until(lambda: is_whole(tmp_path, "ready-0"), "ranks")
    urgent = tmp_path / "urgent"
    urgent.mkdir()
    options = ("--partition=urgent", "--nodes=3", "--exclusive")
    cluster.submit("#!/bin/bash\ntouch ran\n", *options, folder=urgent)
    until(lambda: is_whole(tmp_path, "ready-1"), f"the job that was queued again: {job.output()}", 180)
    ((step,), fields) = steps(tmp_path, 0), job.fields()
    assert (fields["Restarts"], (urgent / "ran").exists()) == ("1", True), job.output()
    cluster.run("scancel", str(job.number))
    job.await_end()
    row.seen = f"saved step {step} on both nodes, queued again once"


# Notes what the launcher reads, too.
NOTES = 'tell("kill-wait", os.environ.get("RLAUNCH_SLURM_KILL_WAIT"))'
TIME_LIMIT = TRAINS.replace("while not rlaunch", f"{NOTES}\nwhile not rlaunch")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_time_limit_is_a_notice_where_the_batch_script_says_when(
    cluster: Cluster, tmp_path: Path, row: Row, front_end: str
) -> None:
    """docs/slurm.md as printed, and with the command of each front end."""
    page = (ROOT / "docs/slurm.md").read_text()
    found = re.search(r'^```bash title="preempt.sh"\n(.*?)^```', page, re.M | re.S)
    assert found
    line = command(front_end, preempt_time=100, requeue=1, log_dir="log/$SLURM_JOB_ID")
    assert line in page or "launch()" in front_end
    script, replaced = re.subn("^srun --wait=60 .*$", f"srun --wait=60 {line}", found[1], flags=re.M)
    assert replaced == 1
    row.begin(
        f"the time limit is near, and the ranks call `should_stop`; after the requeue too, `{front_end}`",
        f"sbatch --time=2 preempt.sh\nsrun --wait=60 {line}",
        "all ranks stop at one step, are queued again once, and continue there; then status 78",
    )
    write(tmp_path, f"import os\nos.environ.setdefault('SLURM_RESTART_COUNT', '0')\n{TIME_LIMIT}")
    job = cluster.submit(script, "--time=2", folder=tmp_path)
    until(lambda: is_whole(tmp_path, "ready-1"), f"the job that was queued again: {job.output()}", 180)
    ((first,), fields) = steps(tmp_path, 0), job.fields()
    assert fields["Restarts"] == "1"
    assert job.wait(limit=150) == "FAILED", job.output()
    assert job.exit_status() == 78, job.output()
    assert is_whole(tmp_path, "saved-1"), (reported(tmp_path, "saved-1"), job.output())
    (second,) = steps(tmp_path, 1)
    assert 0 < first < second
    assert {path.read_text() for path in tmp_path.glob("kill-wait.*")} == {str(KILL_WAIT)}
    row.seen = f"saved step {first} on both nodes, queued again, saved step {second}; exit status 78"
