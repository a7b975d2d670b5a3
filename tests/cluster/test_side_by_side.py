"""Jobs that share nodes and folders: logs of nodes, job arrays, heterogeneous jobs, secrets."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from launching import until
from ranks_of_jobs import FRONT_ENDS, RANK, command, is_whole, reported, write
from scenario_table import Row
from slurm_cluster import SRUN, Cluster, Job

# Those that write a job's logs into `log`; rlaunch.run makes a folder for each launcher.
PADDLE_FORMS = ("python -m rlaunch", "rlaunch.launch()")


@pytest.mark.parametrize("front_end", PADDLE_FORMS)
def test_nodes_that_share_a_folder_have_logs_of_their_own(
    cluster: Cluster, tmp_path: Path, row: Row, front_end: str
) -> None:
    line = command(front_end)
    row.begin(
        f"logs on a shared file system, `{front_end}`",
        f"{' '.join(SRUN)} {line}",
        "each node has its own logs and result.json",
    )
    write(tmp_path, f"{RANK}\nprint('line of', rank)\n")
    status, output = cluster.finish(*SRUN, *line.split(), folder=tmp_path)
    assert status == 0, output
    logs = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.glob("log/**/workerlog.*")}
    assert sorted(logs) == [f"log/node-{node}/workerlog.{rank}" for node in (0, 1) for rank in (0, 1)]
    texts = [text for _, text in sorted(logs.items())]
    for number, text in enumerate(texts):
        assert [line for line in text.splitlines() if "line of" in line] == [
            line for line in text.splitlines() if line.startswith(f"line of {number}.of.4")
        ]
    results = sorted(tmp_path.glob("log/node-*/rlaunch/result.json"))
    assert [json.loads(path.read_text())["outcome"] for path in results] == ["completed"] * 2
    row.seen = f"`{'`, `'.join(sorted(logs))}`, and a result.json each"


def test_the_logs_of_rlaunch_run_are_apart(cluster: Cluster, tmp_path: Path, row: Row) -> None:
    line = command("python -m rlaunch.run", log_dir="log", redirects=3)
    row.begin(
        "logs on a shared file system, `python -m rlaunch.run`",
        f"{' '.join(SRUN)} {line}",
        "each node has its own logs",
    )
    write(tmp_path, f"{RANK}\nprint('line of', rank)\n")
    status, output = cluster.finish(*SRUN, *line.split(), folder=tmp_path)
    assert status == 0, output
    folders: dict[Path, set[str]] = {}
    for path in tmp_path.glob("log/**/stdout.log"):
        (line,) = path.read_text().splitlines()
        folders.setdefault(path.parents[2], set()).add(line.partition(".on.")[2])
    assert sorted(map(len, folders.values())) == [1, 1], folders
    row.seen = "a folder for each node below `log`"


@pytest.mark.parametrize("front_end", PADDLE_FORMS)
def test_jobs_that_write_into_one_folder_are_warned(
    cluster: Cluster, tmp_path: Path, row: Row, front_end: str
) -> None:
    line = command(front_end, nnodes=1)
    row.begin(
        f"a job on each node, with one log folder, `{front_end}`",
        f"{' '.join(SRUN)} {line}",
        "the launcher that finds the other one's logs says so",
    )
    all_began = "sum(name.startswith('began') for name in os.listdir()) == 4"
    write(tmp_path, f"{RANK}\ntell('began')\nuntil(lambda: {all_began}, 'the other job')\n")
    status, output = cluster.finish(*SRUN, *line.split(), folder=tmp_path)
    assert status == 0, output
    (warning,) = re.findall("the log folder.* is in use by another running job.*", output)
    row.seen = f"exit status 0; `{warning.replace(str(tmp_path), '...')}`"


ARRAY = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --array=0-1
srun {command}
"""
# Each task of the array waits for the other one's ranks.
SIDE_BY_SIDE = f"""{RANK}
task = os.environ["SLURM_ARRAY_TASK_ID"]
open(f"task{{task}}.{{rank}}", "w").close()
until(lambda: sum(name.startswith("task") for name in os.listdir()) == 8, "the other task's ranks")
"""


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_tasks_of_an_array_run_side_by_side(
    cluster: Cluster, tmp_path: Path, row: Row, front_end: str
) -> None:
    line = command(front_end, log_dir="log/$SLURM_JOB_ID")
    row.begin(
        f"a job array whose tasks run on the same nodes at once, `{front_end}`",
        f"sbatch --array=0-1 ...\nsrun {line}",
        "each task is a job of 4 ranks",
    )
    write(tmp_path, SIDE_BY_SIDE)
    job = cluster.submit(ARRAY.format(command=line), folder=tmp_path)
    # Tasks have numbers of their own; the last one has the array's.
    numbers = until(lambda: len(found := cluster.numbers_of(job)) == 2 and found, "both tasks")
    tasks = [Job(cluster, number, tmp_path) for number in numbers]
    states = [task.wait() for task in tasks]
    outputs = [path.read_text() for path in tmp_path.glob("slurm-*.out")]
    assert states == ["COMPLETED", "COMPLETED"], outputs
    by_task = {task: sorted(path.name for path in tmp_path.glob(f"task{task}.*")) for task in (0, 1)}
    assert [len(names) for names in by_task.values()] == [4, 4], by_task
    assert sorted(path.name for path in tmp_path.glob("log/*")) == sorted(str(number) for number in numbers)
    assert not [output for output in outputs if "in use" in output], outputs
    row.seen = "two jobs of 4 ranks at once, on the same two nodes; no port or log was shared"


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_two_steps_of_a_job_run_side_by_side(
    cluster: Cluster, tmp_path: Path, row: Row, front_end: str
) -> None:
    steps = [f"srun --overlap {command(front_end, log_dir=f'log/{step}')} &" for step in (0, 1)]
    row.begin(
        f"two steps of one job at once, `{front_end}`",
        "\n".join([*steps, "wait"]),
        "each step is a job of 4 ranks",
    )
    write(tmp_path, SIDE_BY_SIDE.replace("SLURM_ARRAY_TASK_ID", "SLURM_STEP_ID"))
    head = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1"
    batch = "\n".join([head, *steps, "wait -n && wait -n"])
    job = cluster.submit(f"{batch}\n", folder=tmp_path)
    assert job.wait() == "COMPLETED", job.output()
    row.seen = "two jobs of 4 ranks at once, on the same two nodes"


HETEROGENEOUS = """#!/bin/bash
#SBATCH --nodes=1 --ntasks-per-node=1 --cpus-per-task=2
#SBATCH hetjob
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=4
{command}
"""
HET_STEPS = {
    "one command for all components": "srun --het-group=0,1 {two}",
    "a command for each component": "srun --het-group=0 {one} : --het-group=1 {two}",
}


@pytest.mark.parametrize("how", HET_STEPS)
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_heterogeneous_job(cluster: Cluster, tmp_path: Path, row: Row, how: str, front_end: str) -> None:
    one, two = (command(front_end, nproc_per_node=ranks) for ranks in (1, 2))
    line = HET_STEPS[how].format(one=one, two=two)
    ranks = {"node1": 1 if ":" in line else 2, "node2": 2, "node3": 2}
    row.begin(
        f"a heterogeneous job of 1 and 2 nodes, {how}, `{front_end}`",
        line,
        f"one job of {sum(ranks.values())} ranks",
    )
    write(tmp_path, f"{RANK}\ntell('began')\n")
    job = cluster.submit(HETEROGENEOUS.format(command=line), folder=tmp_path)
    assert job.wait() == "COMPLETED", job.output()
    began = reported(tmp_path, "began")
    assert {node: len(found) for node, found in began.items()} == ranks, job.output()
    assert set().union(*began.values()) == {
        f"{rank}.of.{sum(ranks.values())}" for rank in range(sum(ranks.values()))
    }
    row.seen = f"one job of {sum(ranks.values())} ranks on 3 nodes"


# Options of a job of two nodes whose address is known.
AT_MASTER: dict[str, dict[str, str | int]] = {
    "python -m rlaunch": {"nnodes": 2, "master": "node1:6768"},
    "python -m rlaunch.run": {"nnodes": 2, "rdzv_backend": "c10d", "rdzv_endpoint": "node1:6768"},
    "rlaunch.launch()": {"nnodes": 2, "master": "node1:6768"},
}


@pytest.mark.parametrize("front_end", AT_MASTER)
def test_a_job_with_a_secret_refuses_strangers(
    cluster: Cluster, tmp_path: Path, row: Row, front_end: str
) -> None:
    line = command(front_end, **AT_MASTER[front_end])
    row.begin(
        f"a secret for each job; a launcher without it asks for a place, `{front_end}`",
        f"export RLAUNCH_JOB_SECRET=$(openssl rand -hex 32)\nsrun {line}",
        "the stranger is refused; ranks do not see the secret",
    )
    write(tmp_path, f"{RANK}\ntell('began', os.environ.get('RLAUNCH_JOB_SECRET', ''))\nawait_file('go')\n")
    batch = f"""#!/bin/bash
#SBATCH --nodelist=node1,node2 --ntasks-per-node=1
export RLAUNCH_JOB_SECRET=$(openssl rand -hex 32)
srun {line}
"""
    job = cluster.submit(batch, folder=tmp_path)
    until(lambda: is_whole(tmp_path, "began"), "ranks")
    assert {path.read_text() for path in tmp_path.glob("began.*")} == {""}
    stranger = command(front_end, **AT_MASTER[front_end], log_dir="stranger")
    status, output = cluster.finish("srun", "--nodes=1", *stranger.split(), folder=tmp_path)
    (tmp_path / "go").touch()
    assert job.wait() == "COMPLETED", job.output()
    assert is_whole(tmp_path, "began"), output
    # rlaunch.launch() prints it, and it is the text of the exception.
    (refusal,) = set(re.findall("this node cannot take part.*", output))
    row.seen = f"the stranger's exit status is {status}: `{refusal}`"
