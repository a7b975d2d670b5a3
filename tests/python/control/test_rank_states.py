"""``rlaunch status``: what state each rank is in, and which GPUs it uses. The driver is a fake."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from jobs import Jobs, TorchJobs
from launching import free_ports, until, validate
from nvml import Driver

QUIET = "print('ready', flush=True)\ntell('ready', os.getpid())\nsleep()\n"


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


def ranks(jobs: Jobs) -> list[dict[str, Any]]:
    status = jobs.json("status")
    validate(status, "control", "status")
    found: list[dict[str, Any]] = status["ranks"]
    return found


def states(jobs: Jobs) -> list[str]:
    return [rank["state"] for rank in ranks(jobs)]


def shown_states(jobs: Jobs) -> list[str]:
    table = jobs.ask("status").stdout.decode()
    return [re.split(r"  +", line)[1] for line in table.splitlines() if re.match(r"rank \d", line)]


def test_a_rank_that_is_stopped_or_has_ended(jobs: Jobs) -> None:
    with jobs.job(script=f"if rank == 2: sys.exit(tell('ready', os.getpid()))\n{QUIET}"):
        (_, stopped, _) = (int(jobs.text(f"ready.{rank}")) for rank in range(3))
        os.kill(stopped, signal.SIGSTOP)
        until(lambda: states(jobs) == ["running", "stopped", "ended"], "the states")
        assert shown_states(jobs) == ["running", "stopped", "exit code 0"]
        os.kill(stopped, signal.SIGCONT)
        until(lambda: states(jobs)[1] == "running", "the state")


def test_a_job_that_is_suspended(jobs: Jobs) -> None:
    with jobs.job(script=QUIET, ranks=2) as launcher:
        launcher.send_signal(signal.SIGTSTP)
        until(lambda: states(jobs) == ["suspended"] * 2, "the suspension")
        assert shown_states(jobs) == ["suspended"] * 2
        launcher.send_signal(signal.SIGCONT)
        until(lambda: states(jobs) == ["running"] * 2, "the end of the suspension")


def test_a_job_that_hangs_until_a_rank_writes_something(jobs: Jobs) -> None:
    script = "tell('ready', os.getpid())\nawait_file('go')\nprint('on', flush=True)\nsleep()\n"
    with jobs.job("--hang_timeout=1", script=script, ranks=2):
        until(lambda: states(jobs) == ["hangs"] * 2, "the report of the hang")
        assert shown_states(jobs) == ["hangs"] * 2
        (jobs.folder / "go").touch()
        until(lambda: states(jobs) == ["running"] * 2, "output")


def use_gpus(jobs: Jobs, *lines: str) -> None:
    """Has the fake show these uses: process id, GPU, MiB, percent."""
    (jobs.folder / "gpu_processes.new").write_text("".join(f"{line}\n" for line in lines))
    (jobs.folder / "gpu_processes.new").rename(jobs.folder / "gpu_processes")


def test_the_gpus_of_each_rank(jobs: Jobs, driver: Driver) -> None:
    jobs.env.update(LD_LIBRARY_PATH=driver("-DPROCESS_USE")["LD_LIBRARY_PATH"])
    with jobs.job(script=QUIET, ranks=2):
        pids = [int(jobs.text(f"ready.{rank}")) for rank in range(2)]
        use_gpus(jobs, f"{pids[0]} 0 1024 70", f"{pids[0]} 3 512 60", "1 3 99 9")
        first, second = ranks(jobs)
        assert (first["gpu_percent"], first["gpu_memory_bytes"]) == (130, 1536 << 20)
        assert "gpu_percent" not in second
        table = jobs.ask("status").stdout.decode()
        assert "LAST OUTPUT  GPU    GPU MEMORY\n" in table, table
        assert re.search(r"^rank 0 .* 130 %  1\.5 GB$", table, re.MULTILINE), table
        assert re.search(r"^rank 1 .* -      -$", table, re.MULTILINE), table
        use_gpus(jobs, f"{os.getpid()} 0 1024 70")
        assert "GPU" not in jobs.ask("status").stdout.decode(), "no rank uses one"


def test_a_driver_that_does_not_tell_the_use_of_processes_apart(jobs: Jobs, driver: Driver) -> None:
    jobs.env.update(LD_LIBRARY_PATH=driver()["LD_LIBRARY_PATH"])
    with jobs.job(script=QUIET, ranks=2):
        pids = [int(jobs.text(f"ready.{rank}")) for rank in range(2)]
        use_gpus(jobs, f"{pids[0]} 0 1 7", f"{pids[0]} 0 1 7", f"{pids[1]} 1 1 7", f"{pids[1]} 3 1 7")
        use = [(rank["gpu_percent"], rank["gpu_memory_bytes"] >> 20) for rank in ranks(jobs)]
        assert use == [(40, 2), (41, 2)], "the use of the GPUs; that of GPU 3 is not known"


def test_a_driver_that_hangs_delays_the_answer_only(jobs: Jobs, driver: Driver) -> None:
    with jobs.job(script=QUIET, ranks=1) as launcher:
        jobs.env.update(LD_LIBRARY_PATH=driver("-DHANGS_ON_PROCESSES")["LD_LIBRARY_PATH"])
        assert states(jobs) == ["running"]
        assert (jobs.folder / "hanging.0").exists(), "it hung"
        assert "GPU" not in jobs.ask("status").stdout.decode()
        assert launcher.poll() is None
    hung = {int(pid) for pid in jobs.text("hanging.0").split()}
    until(lambda: not hung & set(psutil.pids()), "the end of the commands")


def test_the_states_and_gpus_of_another_node(jobs: Jobs, driver: Driver) -> None:
    jobs.env.update(LD_LIBRARY_PATH=driver("-DPROCESS_USE")["LD_LIBRARY_PATH"])
    jobs.script(QUIET)
    options = ("--nproc_per_node=1", "--nnodes=2", f"--master=127.0.0.1:{free_ports(1)}", "train.py")
    with (
        jobs.start("--rank=0", "--log_dir=first", *options, env=jobs.env),
        jobs.start("--rank=1", "--log_dir=second", *options, env=jobs.env) as second,
    ):
        stopped = jobs.ready(2)[1]
        stopped.send_signal(signal.SIGSTOP)
        use_gpus(jobs, f"{stopped.pid} 1 256 30")

        def of_other_node() -> Any:
            nodes = jobs.json("status", "first")["nodes"]
            (rank,) = nodes[1]["status"]["ranks"] if len(nodes) == 2 and nodes[1]["status"] else [{}]
            return rank if rank.get("state") == "stopped" else None

        rank = until(of_other_node, "the state")
        assert (rank["pid"], rank["gpu_percent"], rank["gpu_memory_bytes"]) == (stopped.pid, 30, 256 << 20)
        assert second.poll() is None


# Children that have 64 MB in common with the rank, as workers of a data loader do.
SHARED = """
pages = bytearray(os.urandom(1)) * (64 << 20)
for _ in range(4):
    if os.fork() == 0:
        sleep()
tell('ready', os.getpid())
sleep()
"""


def test_memory_that_processes_share_counts_once(jobs: Jobs) -> None:
    with jobs.job(script=SHARED, ranks=1):
        (rank,) = ranks(jobs)
        assert rank["processes"] == 5
        assert not rank.get("memory_is_resident")
        (process,) = jobs.ready(1)
        resident = sum(one.memory_info().rss for one in [process, *process.children()])
        assert 64 << 20 < rank["memory_bytes"] < 128 << 20 < resident, (rank, resident)
        assert " RSS " not in jobs.ask("status").stdout.decode()


def test_a_stream_that_goes_to_no_log_is_not_taken_for_silence(tmp_path: Path) -> None:
    jobs = TorchJobs(tmp_path)
    jobs.script("print('here', file=sys.stderr, flush=True)\ntell('ready', os.getpid())\nsleep()\n")
    with jobs.start("--nproc_per_node=1", "train.py", env=jobs.env, stdout=subprocess.DEVNULL):
        jobs.ready(1)
        (rank,) = ranks(jobs)
        assert rank["silent_seconds"] is None
        assert rank["log_silent_seconds"] >= 0
        table = jobs.ask("status").stdout.decode()
        assert re.search(r"^rank 0 .*  stderr .* ago$", table, re.MULTILINE), table
        assert jobs.ask("stop").status == 0
