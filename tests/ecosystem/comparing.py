"""What is the same in all libraries: training beside torchrun, a failed rank, a restart."""

from __future__ import annotations

from ecosystem_jobs import LIMIT, RLAUNCH_RUN, TORCHRUN, Facts, Job, Jobs
from ecosystem_table import Row
from launching import until

# Options of `accelerate launch`, which has no configuration file. `--multi_gpu` makes it call torchrun; the
# ranks use CPUs because of ACCELERATE_USE_CPU.
ACCELERATE = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
ALIKE = "as under torchrun"
REPORTED = "the report names rank 1, `ValueError: loss is nan` and its line"


def check_alike(ours: Job, theirs: Job, world: int = 2) -> list[Facts]:
    """Both jobs have seen the same; returns it, by rank."""
    seen = ours.facts()
    assert seen == theirs.facts()
    assert [one["rank"] for one in seen] == list(range(world))
    assert {one["world"] for one in seen} == {world}
    return seen


def train_beside_torchrun(jobs: Jobs, row: Row, library: str, tried: str, options: str) -> list[Facts]:
    """Runs a script under both; returns what its ranks have seen."""
    command = row.begin(library, tried, f"{RLAUNCH_RUN} --nproc-per-node 2 {options}")
    ours = jobs.run(command)
    theirs = jobs.run(command.replace(RLAUNCH_RUN, TORCHRUN, 1))
    seen = check_alike(ours, theirs)
    row.seen = ALIKE
    return seen


def fail_on_rank_1(jobs: Jobs, row: Row, library: str, script: str) -> None:
    """Rank 1 raises in its training loop: the report names it, the exception and the line in the script."""
    command = f"{RLAUNCH_RUN} --nproc-per-node 2 --log-dir log {script} --fail 1"
    job = jobs.run(row.begin(library, "an exception of rank 1 in the second epoch", command), status=1)
    check_report(job)
    row.seen = REPORTED


def check_report(job: Job) -> None:
    """rlaunch's report of a job in which rank 1 has raised."""
    result = job.result()
    assert result["culprit"] == 1, job.stderr
    assert "ValueError: loss is nan" in result["reason"], result["reason"]
    assert "telling.py" in job.stderr


def restart_after_a_failure(jobs: Jobs, row: Row, library: str, tried: str, script: str, lost: int) -> None:
    """Rank 1 fails once; the second attempt resumes and ends with the losses of a job that never failed.

    Args:
        lost: the number of losses that the first attempt has seen and the checkpoint has not.
    """
    command = f"{RLAUNCH_RUN} --nproc-per-node 2 --max-restarts 1 --log-dir log {script}"
    whole = jobs.run(command).facts()
    job = jobs.run(row.begin(library, tried, f"{command} --fail 1"))
    assert job.result()["restarts"] == 1
    for one, other in zip(job.facts(), whole, strict=True):
        assert one["losses"] == other["losses"][lost:], (one, other)
    row.seen = "the second attempt resumes; its losses are those of a job without a failure"


def stop_when_ready(jobs: Jobs, command: str) -> Job:
    """Sends SIGTERM to the launcher once both ranks train; returns the job, which has ended."""
    folder = jobs.new_folder()
    with jobs.start(command, folder) as process:
        for rank in (0, 1):
            ready = folder / f"ready.{rank}.json"
            until(lambda ready=ready: ready.exists() or process.poll() is not None, str(ready), LIMIT)
        process.terminate()
        return jobs.wait(process, folder, None)
