"""How jobs end in a Slurm cluster: failures, stops by Slurm, and lost nodes."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from launching import until
from ranks_of_jobs import FRONT_ENDS, RANK, command, is_whole, reported, saves, write
from scenario_table import Row
from slurm_cluster import KILL_WAIT, MPIRUN, MPIRUN_AS_ROOT, SRUN, Cluster

BATCH = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
srun {command}
"""
# Rank 3 fails once the others listen; they need a moment to save.
FAILS = f"""{RANK}
if number == 3:
    for other in range(3):
        until(lambda: any(name.startswith(f"ready.{{other}}.") for name in os.listdir()), "the others")
    sys.exit(7)
{saves(seconds=2.0).removeprefix(RANK)}sleep()
"""


@pytest.mark.parametrize("option", ["", "--kill-on-bad-exit=1"])
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_rank_that_fails(cluster: Cluster, tmp_path: Path, row: Row, front_end: str, option: str) -> None:
    srun, line = [*SRUN, *option.split()], command(front_end)
    row.begin(
        f"rank 3 exits with 7, the others save for 2 s, `{front_end}`",
        f"{' '.join(srun)} {line}",
        "ranks 0 to 2 save; srun exits with the status of the launchers",
    )
    write(tmp_path, FAILS)
    began = time.monotonic()
    status, output = cluster.finish(*srun, *line.split(), folder=tmp_path)
    took = time.monotonic() - began
    saved = sorted(rank for ranks in reported(tmp_path, "saved").values() for rank in ranks)
    # Slurm then sends SIGTERM to the other node's program too, which may be about to exit: launch.py.
    is_terminated = bool(option) and "launch()" in front_end and status == 128 + signal.SIGTERM
    assert (is_terminated or status == 7, saved) == (True, ["0.of.4", "1.of.4", "2.of.4"]), output
    assert took < KILL_WAIT, output
    row.seen = f"ranks 0 to 2 saved; exit status {status}"


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_rank_that_fails_under_mpirun(cluster: Cluster, tmp_path: Path, row: Row, front_end: str) -> None:
    line = f"{MPIRUN} {command(front_end)}"
    row.begin(
        f"rank 3 exits with 7 under Open MPI, the others save for 2 s, `{front_end}`",
        line,
        "ranks 0 to 2 save; mpirun exits with the status of the launchers",
    )
    write(tmp_path, FAILS)
    job = cluster.submit(f"#!/bin/bash\n{line}\n", "--nodes=2", folder=tmp_path, env=MPIRUN_AS_ROOT)
    assert job.wait() == "FAILED", job.output()
    saved = sorted(rank for ranks in reported(tmp_path, "saved").values() for rank in ranks)
    assert (job.exit_status(), saved) == (7, ["0.of.4", "1.of.4", "2.of.4"]), job.output()
    row.seen = f"ranks 0 to 2 saved; exit status {job.exit_status()}"


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_scancel(cluster: Cluster, tmp_path: Path, row: Row, front_end: str) -> None:
    row.begin(
        f"scancel of a batch job whose ranks save for 5 s, `{front_end}`",
        f"srun {command(front_end)}",
        "all ranks save",
    )
    write(tmp_path, f"{saves(seconds=5.0)}sleep()\n")
    job = cluster.submit(BATCH.format(command=command(front_end)), folder=tmp_path)
    until(lambda: is_whole(tmp_path, "ready"), "ranks")
    cluster.run("scancel", str(job.number))
    assert job.wait() == "CANCELLED"
    job.await_end()
    assert is_whole(tmp_path, "saved"), job.output()
    row.seen = f"all 4 ranks saved; state {job.state}"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_the_time_limit(cluster: Cluster, tmp_path: Path, row: Row, front_end: str) -> None:
    row.begin(
        f"time limit; ranks save for 20 s, KillWait is {KILL_WAIT} s, `{front_end}`",
        f"sbatch --time=1 ...\nsrun {command(front_end)}",
        "all ranks save",
    )
    write(tmp_path, f"{saves(seconds=20.0)}sleep()\n")
    job = cluster.submit(BATCH.format(command=command(front_end)), "--time=1", folder=tmp_path)
    until(lambda: is_whole(tmp_path, "ready"), "ranks")
    assert job.wait(limit=150) == "TIMEOUT", job.output()
    job.await_end()
    assert is_whole(tmp_path, "saved"), job.output()
    row.seen = f"all 4 ranks saved; state {job.state}"


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_ranks_that_do_not_end_in_time(cluster: Cluster, tmp_path: Path, row: Row, front_end: str) -> None:
    line = command(front_end, log_dir="log")
    row.begin(
        f"scancel of a job whose ranks ignore SIGTERM, `{front_end}`",
        f"srun {line}",
        f"rlaunch kills the ranks and reports it before Slurm kills rlaunch ({KILL_WAIT} s)",
    )
    script = f"{RANK}\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntell('ready')\nsleep()\n"
    write(tmp_path, script)
    job = cluster.submit(BATCH.format(command=line), folder=tmp_path)
    until(lambda: is_whole(tmp_path, "ready"), "ranks")
    began = time.monotonic()
    cluster.run("scancel", str(job.number))
    job.await_end()
    took = time.monotonic() - began
    assert took < KILL_WAIT + 5, job.output()
    # Slurm ends srun first, so its console does not have this.
    events = [path.read_text() for path in sorted(tmp_path.glob("log/**/rlaunch/events.jsonl"))]
    last = [json.loads(text.splitlines()[-1]) for text in events]
    assert ["killing" in text for text in events] == [True, True], events
    assert [one["event"] for one in last] == ["job_ended", "job_ended"], events
    row.seen = (
        "both launchers killed their ranks and wrote their reports; "
        f"the job had ended {took:.0f} s after scancel"
    )


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_launcher_that_is_killed(cluster: Cluster, tmp_path: Path, row: Row, front_end: str) -> None:
    row.begin(
        f"SIGKILL of the launcher on one node (out of memory), `{front_end}`",
        f"srun {command(front_end)}",
        "the other node's ranks save; its launcher exits with 75",
    )
    script = saves() + "tell('launcher', os.environ['SLURM_TASK_PID'])\nsleep()\n"
    write(tmp_path, script)
    job = cluster.submit(BATCH.format(command=command(front_end)), folder=tmp_path)
    until(lambda: is_whole(tmp_path, "launcher"), "ranks")
    lost, kept = sorted(reported(tmp_path, "launcher"))[::-1]
    (pid,) = {path.read_text() for path in tmp_path.glob(f"launcher.*.on.{lost}")}
    began = time.monotonic()
    cluster.node(lost).run("kill", "-KILL", pid)
    until(lambda: kept in reported(tmp_path, "saved"), "ranks that save")
    took = time.monotonic() - began
    assert job.wait() == "FAILED"
    assert "was lost" in job.output() or "is lost" in job.output(), job.output()
    row.seen = f"ranks of the other node had saved {took:.1f} s later; job's exit status {job.exit_status()}"


# Seconds that srun waits after its first task has ended, and then for a node that does not answer.
WAIT, GIVES_UP = 5, 32


@pytest.mark.timeout(240)
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_node_is_lost(cluster: Cluster, tmp_path: Path, row: Row, front_end: str) -> None:
    """Two jobs at once, because it takes long: without --wait, srun holds the nodes."""
    line = command(front_end)
    row.begin(
        f"the network of one node fails, `{front_end}`",
        f"srun --wait={WAIT} {line}\nsrun --kill-on-bad-exit=1 {line}",
        "the other node's ranks save, its launcher exits with 75; with --wait srun ends 37 s later",
    )
    jobs = []
    for option in (f"--wait={WAIT}", "--kill-on-bad-exit=1"):
        folder = tmp_path / option
        folder.mkdir()
        write(folder, f"{saves()}sleep()\n")
        script = f"{BATCH.format(command=f'{option} {line}')}echo srun exited with $?\n"
        jobs.append(cluster.submit(script, "--no-requeue", folder=folder))
        until(lambda folder=folder: is_whole(folder, "ready"), "ranks")
    waits, holds = jobs
    # The batch script runs on the first node.
    kept, lost = sorted(reported(waits.folder, "ready"))
    began = time.monotonic()
    with cluster.cut_off(lost):
        for job in jobs:
            until(lambda job=job: kept in reported(job.folder, "saved"), "ranks that save")
        saved = time.monotonic() - began
        until(lambda: "srun exited with" in waits.output(), "the end of srun")
        took = time.monotonic() - began
        assert "srun exited with 75" in waits.output()
        assert "Exited with exit code 75" in holds.output()
        assert "srun exited with" not in holds.output()
        cluster.run("scancel", str(holds.number))
    row.seen = (
        f"the other node's ranks had saved after {saved:.0f} s; "
        f"with --wait srun's exit status was 75 after {took:.0f} s, without it srun still ran"
    )
