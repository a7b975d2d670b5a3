"""Launchers that srun has started on the nodes of a step are one job."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks_of_jobs import FRONT_ENDS, RANK, command, is_whole, reported, write
from scenario_table import Row
from slurm_cluster import MPIRUN, MPIRUN_AS_ROOT, SRUN, Cluster


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_launchers_of_a_step_are_one_job(cluster: Cluster, tmp_path: Path, row: Row, front_end: str) -> None:
    line = command(front_end)
    row.begin(f"start with `{front_end}`", f"{' '.join(SRUN)} {line}", "one job of 4 ranks on 2 nodes")
    write(tmp_path, f"{RANK}\ntell('began')\n")
    status, output = cluster.finish(*SRUN, *line.split(), folder=tmp_path)
    assert (status, is_whole(tmp_path, "began")) == (0, True), (output, reported(tmp_path, "began"))
    row.seen = f"one job of 4 ranks on 2 nodes; exit status {status}"


def test_a_launcher_whose_option_says_one_node_is_refused(cluster: Cluster, tmp_path: Path, row: Row) -> None:
    line = command("python -m rlaunch.run", nnodes=1)
    row.begin(
        "one node is asked for, but srun starts a launcher on each of two",
        f"{' '.join(SRUN)} {line}",
        "refused with status 2; no rank runs",
    )
    write(tmp_path, f"{RANK}\ntell('began')\n")
    status, output = cluster.finish(*SRUN, *line.split(), folder=tmp_path)
    assert (status, reported(tmp_path, "began")) == (2, {}), output
    (line, *_) = [line for line in output.splitlines() if "is one node" in line]
    assert "give --standalone" in line
    row.seen = f"exit status {status}: `{line.split('rlaunch: error: ')[-1]}`"


@pytest.mark.parametrize(
    "line",
    [
        command("python -m rlaunch", nnodes=1),
        "python -m rlaunch.run --standalone --nproc-per-node 2 train.py",
        command("rlaunch.launch()", nnodes=1),
    ],
)
def test_each_launcher_may_run_a_job_of_its_own(
    cluster: Cluster, tmp_path: Path, row: Row, line: str
) -> None:
    row.begin("a job on each node", f"{' '.join(SRUN)} {line}", "two jobs of 2 ranks")
    write(tmp_path, f"{RANK}\ntell('began')\n")
    status, output = cluster.finish(*SRUN, *line.split(), folder=tmp_path)
    by_node = reported(tmp_path, "began")
    assert (status, list(by_node.values())) == (0, [["0.of.2", "1.of.2"]] * 2), output
    row.seen = "two jobs of 2 ranks"


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_several_launchers_a_node_are_refused(
    cluster: Cluster, tmp_path: Path, row: Row, front_end: str
) -> None:
    line = command(front_end)
    srun = ["srun", "--nodes=2", "--ntasks-per-node=2"]
    row.begin(
        f"two launchers on each node, `{front_end}`", f"{' '.join(srun)} {line}", "refused with status 2"
    )
    write(tmp_path, f"{RANK}\ntell('began')\n")
    status, output = cluster.finish(*srun, *line.split(), folder=tmp_path)
    assert (status, reported(tmp_path, "began")) == (2, {}), output
    assert "is more than one launcher a node" in output
    row.seen = f"exit status {status}; no rank ran"


ALONE = {
    "in a batch script without srun": ("#!/bin/bash\n{command}\n", "--nodes=2"),
    "one node of two: `srun --nodes=1 --ntasks=1`": (
        "#!/bin/bash\nsrun --nodes=1 --ntasks=1 {command}\n",
        "--nodes=2",
    ),
}


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("how", ALONE)
def test_a_single_launcher_is_alone(
    cluster: Cluster, tmp_path: Path, row: Row, how: str, front_end: str
) -> None:
    script, options = ALONE[how]
    line = command(front_end)
    row.begin(
        f"{how}, `{front_end}`",
        script.format(command=line).splitlines()[-1],
        "a job of this node's 2 ranks",
    )
    write(tmp_path, f"{RANK}\ntell('began')\n")
    job = cluster.submit(script.format(command=line), options, folder=tmp_path)
    assert job.wait() == "COMPLETED", job.output()
    assert list(reported(tmp_path, "began").values()) == [["0.of.2", "1.of.2"]], job.output()
    row.seen = "a job of 2 ranks on one node"


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_batch_job_that_is_submitted_within_a_step(
    cluster: Cluster, tmp_path: Path, row: Row, front_end: str
) -> None:
    line = command(front_end)
    row.begin(
        f"a batch script that a step has submitted, and that has the step's variables, `{front_end}`",
        f"srun --nodes=2 ... sbatch --nodes=1 ...\n{line}",
        "a job of this node's 2 ranks",
    )
    write(tmp_path, f"{RANK}\ntell('began')\n")
    (tmp_path / "inner.sh").write_text(f"#!/bin/bash\nenv | grep SLURM_STEP_NODELIST\n{line}\n")
    submit = "[ $SLURM_PROCID = 1 ] || sbatch --nodes=1 --nodelist=node1 --wait --output=inner.out inner.sh"
    status, output = cluster.finish(*SRUN, "--nodelist=node1,node2", "bash", "-c", submit, folder=tmp_path)
    inner = (tmp_path / "inner.out").read_text()
    assert (status, reported(tmp_path, "began")) == (0, {"node1": ["0.of.2", "1.of.2"]}), (output, inner)
    assert "SLURM_STEP_NODELIST=node[1-2]" in inner
    row.seen = "a job of 2 ranks on one node"


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_step_of_several_nodes_in_an_interactive_allocation(
    cluster: Cluster, tmp_path: Path, row: Row, front_end: str
) -> None:
    line = f"srun --ntasks-per-node=1 {command(front_end)}"
    row.begin(f"in salloc, `{front_end}`", f"salloc --nodes=2 {line}", "one job of 4 ranks on 2 nodes")
    write(tmp_path, f"{RANK}\ntell('began')\n")
    status, output = cluster.finish("salloc", "--nodes=2", *line.split(), folder=tmp_path)
    assert (status, is_whole(tmp_path, "began")) == (0, True), output
    row.seen = "one job of 4 ranks on 2 nodes"


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_launchers_of_mpirun_are_one_job(cluster: Cluster, tmp_path: Path, row: Row, front_end: str) -> None:
    """docs/slurm.md, mpirun. In an allocation it starts its daemons by srun."""
    line = f"{MPIRUN} {command(front_end)}"
    row.begin(f"Open MPI in a batch script, `{front_end}`", line, "one job of 4 ranks on 2 nodes")
    write(tmp_path, f"{RANK}\ntell('began', os.environ.get('OMPI_COMM_WORLD_SIZE', ''))\n")
    job = cluster.submit(f"#!/bin/bash\n{line}\n", "--nodes=2", folder=tmp_path, env=MPIRUN_AS_ROOT)
    assert job.wait() == "COMPLETED", job.output()
    assert is_whole(tmp_path, "began"), (job.output(), reported(tmp_path, "began"))
    row.seen = "one job of 4 ranks on 2 nodes"


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_hosts_whose_own_name_is_loopback(cluster: Cluster, tmp_path: Path, row: Row, front_end: str) -> None:
    line = command(front_end)
    row.begin(
        f"each host's own name is 127.0.1.1, as on Debian, `{front_end}`",
        f"{' '.join(SRUN)} {line}",
        "one job of 4 ranks on 2 nodes",
    )
    write(tmp_path, f"{RANK}\ntell('began', os.environ.get('MASTER_ADDR', ''))\n")
    with cluster.own_names_are_loopback():
        status, output = cluster.finish(*SRUN, *line.split(), folder=tmp_path)
    assert (status, is_whole(tmp_path, "began")) == (0, True), output
    row.seen = "one job of 4 ranks on 2 nodes"
