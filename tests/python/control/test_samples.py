"""``--sample`` and ``--metrics_file``: what the ranks use, over time."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from jobs import Jobs
from launching import supervisor_of, until, validate
from nvml import Driver
from prometheus_client.parser import text_string_to_metric_families
from run_records import Page, Records

QUIET = "print('ready', flush=True)\ntell('ready', os.getpid())\nawait_file('go')\n"
BUSY = "tell('ready', os.getpid())\nwhile rank == 1 and not os.path.exists('go'): pass\nawait_file('go')\n"
# Ends once its records have so many samples.
SAMPLED = """
import glob, time
def samples():
    return sum(open(path).read().count('"event":"sample"') for path in glob.glob("{}", recursive=True))
while samples() < {}:
    time.sleep(0.02)
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


def samples(jobs: Jobs) -> list[dict[str, Any]]:
    return [event for event in jobs.events() if event["event"] == "sample"]


def metrics(path: Path) -> dict[str, dict[str, float]]:
    """The values of each family, by its labels beside those of the job."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(path.read_text()):
        for sample in family.samples:
            labels = [sample.labels[name] for name in ("phase", "role", "rank") if name in sample.labels]
            values = found.setdefault(sample.name, {})
            assert " ".join(labels) not in values, sample
            values[" ".join(labels)] = sample.value
    return found


def phase(path: Path) -> str:
    if not path.exists():
        return ""
    (name,) = [name for name, value in metrics(path)["rlaunch_job_phase"].items() if value == 1]
    return name


def threads(launcher: subprocess.Popen[bytes]) -> list[str]:
    supervisor = supervisor_of(launcher)
    tasks = Path(f"/proc/{supervisor.pid}/task").iterdir()
    return sorted((task / "comm").read_text().strip() for task in tasks)


def test_samples_of_each_rank(jobs: Jobs) -> None:
    with jobs.job("--sample=0.2", script=BUSY, ranks=2) as launcher:
        until(lambda: any(s["ranks"][1]["cpu_percent"] > 20 for s in samples(jobs)), "CPU use")
        assert "rlaunch-sampler" in threads(launcher)
        (jobs.folder / "go").touch()
        assert launcher.wait() == 0
    found = samples(jobs)
    for event in jobs.events():
        validate(event, "events")
    idle, busy = found[-1]["ranks"] if len(found[-1]["ranks"]) == 2 else found[-2]["ranks"]
    assert (idle["role"], idle["rank"], busy["rank"], busy["attempt"]) == ("rank", 0, 1, 0)
    assert busy["cpu_seconds"] > idle["cpu_seconds"]
    assert idle["memory_bytes"] > 1 << 20
    assert idle["processes"] == 1
    assert idle["silent_seconds"] >= 0
    page = Page(jobs.ask("report", "log", "--output=-").stdout.decode())
    assert page.count["svg"] == 2, "CPU and memory"
    assert page.count["polyline"] >= 4, "a line for each rank"
    assert {"CPU", "Memory"} <= set(page.texts)


def test_without_the_options_there_is_no_thread_and_nothing_is_written(jobs: Jobs) -> None:
    with jobs.job("--enable_gpu_log=false", script=QUIET, ranks=1) as launcher:
        assert [name for name in threads(launcher) if "sampler" in name or "gpu" in name] == []
        (jobs.folder / "go").touch()
        assert launcher.wait() == 0
    assert samples(jobs) == []


def test_the_sampler_holds_no_lifeline(jobs: Jobs) -> None:
    with jobs.job("--sample=0.1", script=QUIET, ranks=2) as launcher:
        until(lambda: samples(jobs), "a sample")
        tasks = Path(f"/proc/{supervisor_of(launcher).pid}/task").iterdir()
        (sampler,) = [task for task in tasks if (task / "comm").read_text() == "rlaunch-sampler\n"]

        def kinds() -> set[str]:
            names = {os.readlink(fd) for fd in (sampler / "fd").iterdir() if int(fd.name) > 2}
            # What it reads at this moment.
            return {name for name in names if not name.startswith("/proc")}

        until(lambda: kinds() == {"anon_inode:[eventfd]", "anon_inode:[eventpoll]"}, "its descriptors alone")


def test_the_gpus_of_the_ranks_are_sampled(jobs: Jobs, driver: Driver) -> None:
    jobs.env.update(LD_LIBRARY_PATH=driver("-DPROCESS_USE")["LD_LIBRARY_PATH"])
    metrics_file = jobs.folder / "job.prom"
    with jobs.job("--sample=0.1", f"--metrics_file={metrics_file}", script=QUIET, ranks=1) as launcher:
        (jobs.folder / "gpu_processes").write_text(f"{jobs.text('ready.0')} 2 1024 70\n")
        until(lambda: any("gpu_percent" in s["ranks"][0] for s in samples(jobs)), "a GPU")
        until(lambda: "rlaunch_rank_gpu_percent" in metrics(metrics_file), "a GPU")
        assert metrics(metrics_file)["rlaunch_rank_gpu_memory_bytes"] == {"rank 0": 1 << 30}
        (jobs.folder / "go").touch()
        assert launcher.wait() == 0
    (sample, *_) = [s["ranks"][0] for s in samples(jobs) if "gpu_percent" in s["ranks"][0]]
    assert (sample["gpu_percent"], sample["gpu_memory_bytes"]) == (70, 1 << 30)
    for event in samples(jobs):
        validate(event, "events")


def test_a_driver_that_hangs_does_not_end_the_samples(jobs: Jobs, driver: Driver) -> None:
    jobs.env.update(LD_LIBRARY_PATH=driver("-DHANGS_ON_PROCESSES")["LD_LIBRARY_PATH"])
    with jobs.job("--sample=0.1", "--enable_gpu_log=false", script=QUIET, ranks=1) as launcher:
        until(lambda: len(samples(jobs)) > 4, "samples")
        assert (jobs.folder / "hanging.0").exists(), "it hung"
        (jobs.folder / "go").touch()
        assert launcher.wait() == 0


def test_the_metrics_file_from_the_start_to_the_end(jobs: Jobs) -> None:
    path = jobs.folder / "job.prom"
    env = {**jobs.env, "RLAUNCH_METRICS_FILE": str(path)}
    script = QUIET + "sys.exit(rank if attempt == 0 else 3)\n"
    # A launcher in a rank would overwrite the file.
    script = "assert 'RLAUNCH_METRICS_FILE' not in os.environ\n" + script
    script = "attempt = int(os.environ['RLAUNCH_ROUND']) - 1\n" + script
    jobs.script(script)
    options = ("--max_restart=1", "--restart_delay=0", "--job_id=night", "train.py")
    with jobs.start("--nproc_per_node=2", *options, env=env) as launcher:
        jobs.ready(2)
        until(lambda: phase(path) == "running", "the metrics")
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        shown = metrics(path)
        assert shown["rlaunch_job_attempt"] == {"": 0}
        (jobs.folder / "go").touch()
        ended = jobs.wait(launcher)
    assert ended.status == 3
    shown = metrics(path)
    assert phase(path) == "ended"
    for name, value in {
        "rlaunch_job_info": 1,
        "rlaunch_job_exit_status": 3,
        "rlaunch_job_restarts_total": 1,
        "rlaunch_job_hangs": 0,
        "rlaunch_ranks": 2,
        "rlaunch_ranks_running": 0,
    }.items():
        assert shown[name] == {"": value}, name
    assert shown["rlaunch_rank_up"] == {"rank 0": 0, "rank 1": 0}
    assert f'job_id="night",launcher="{launcher.pid}"' in path.read_text()
    assert [name for name in os.listdir(jobs.folder) if name.startswith("job.prom")] == ["job.prom"]
    assert samples(jobs) == [], "--sample is another option"


def test_the_metrics_of_ranks(jobs: Jobs) -> None:
    path = jobs.folder / "job.prom"
    with jobs.job(f"--metrics_file={path}", "--sample=0.1", script=BUSY, ranks=2):
        cpu = "rlaunch_rank_cpu_seconds_total"

        def has_used_more() -> bool:
            used = metrics(path).get(cpu, {}) if path.exists() else {}
            return len(used) == 2 and used["rank 1"] > used["rank 0"]

        until(has_used_more, "CPU time")
        shown = metrics(path)
        names = ["up", "cpu_seconds_total", "memory_bytes", "processes", "last_output_seconds"]
        assert all(set(shown[f"rlaunch_rank_{name}"]) == {"rank 0", "rank 1"} for name in names), shown
        assert shown["rlaunch_ranks_running"] == {"": 2}
        assert shown["rlaunch_rank_processes"] == {"rank 0": 1, "rank 1": 1}


def test_a_metrics_file_that_cannot_be_written_is_named_once(jobs: Jobs) -> None:
    # Several times: after the first sample there are others.
    jobs.script(SAMPLED.format("log/rlaunch/events.jsonl", 3))
    ended = jobs.run(
        "--nproc_per_node=1", "--sample=0.1", "--metrics_file=no/job.prom", "train.py", env=jobs.env
    )
    assert ended.status == 0
    assert ended.stderr.count("cannot write --metrics_file") == 1, ended.stderr
    assert "no/job.prom" in ended.stderr


def test_jobs_of_torchruns_command_line(jobs: Jobs) -> None:
    path = jobs.folder / "job.prom"
    (jobs.folder / "train.py").write_text(SAMPLED.format("log/**/rlaunch/events.jsonl", 1))
    command = [sys.executable, "-m", "rlaunch.run", "--nproc-per-node=1", "--log-dir=log", "--sample=0.2"]
    done = subprocess.run(
        [*command, f"--metrics-file={path}", "train.py"], env=jobs.env, cwd=jobs.folder, check=False
    )
    assert done.returncode == 0
    assert phase(path) == "ended"
    (events,) = jobs.folder.glob("log/**/rlaunch/events.jsonl")
    assert '"event":"sample"' in events.read_text()


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ("--sample=0.01", "--sample 0.01: is too short an interval"),
        ("--sample=x", "--sample x: is not a number of seconds"),
        ("--metrics_file=here/", "--metrics_file here/: is a folder"),
    ],
)
def test_values_that_are_refused(jobs: Jobs, option: str, error: str) -> None:
    jobs.script("pass\n")
    ended = jobs.run(option, "train.py", env=jobs.env)
    assert ended.status == 2
    assert error in ended.stderr, ended.stderr


def test_512_ranks_have_a_band(jobs: Jobs) -> None:
    records = Records(jobs.folder / "log")
    records.event(0, "job_started", job_id="night", host="node-3", ranks=512, supervisor=7, argv=["train"])
    for rank in range(512):
        records.event(1, "rank_started", role="rank", rank=rank, local_rank=rank, attempt=0, pid=100 + rank)
    for second in range(10, 50):
        ranks = [
            {
                "role": "rank",
                "rank": rank,
                "local_rank": rank,
                "cpu_percent": rank,
                "memory_bytes": second << 20,
            }
            for rank in range(512)
        ]
        records.event(second, "sample", ranks=ranks)
    records.write(False)
    page = Page(jobs.ask("report", "log", "--output=-").stdout.decode())
    assert (page.count["svg"], page.count["polygon"], page.count["polyline"]) == (2, 2, 2)
    assert "up to 511 %" in page.texts


def test_a_suspended_launcher_is_sampled_on(jobs: Jobs) -> None:
    with jobs.job("--sample=0.1", script=QUIET, ranks=1) as launcher:
        launcher.send_signal(signal.SIGTSTP)
        until(lambda: any(s["ranks"][0]["state"] == "suspended" for s in samples(jobs)), "a sample")
        assert psutil.Process(launcher.pid).status() == psutil.STATUS_STOPPED
        launcher.send_signal(signal.SIGCONT)
        (jobs.folder / "go").touch()
        assert launcher.wait() == 0
