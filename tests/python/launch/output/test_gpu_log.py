"""``{job_id}.gpu.log``: the state of the job's GPUs, in the form of Paddle's launcher."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import resource
import subprocess
from collections.abc import Iterator

import pytest
from launching import LIMIT, STEERING, Place, await_line, gone, supervisor_of, until
from nvml import Driver
from preloaded import python

GPUS = "index,uuid,driver_version,name,gpu_serial,display_active,display_mode\n"
PROCESSES = "pid,process_name,gpu_uuid,gpu_name,used_memory\n"
SAMPLES = "index,utilization_gpu,memory_total,memory_used,memory_free,timestamp\n"
TIME = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}")
OF_ALL = (
    GPUS
    + "0,GPU-a0-0000,580.65.06,NVIDIA Fake 0,1650,Disabled,Enabled\n"
    + "1,GPU-a1-0000,580.65.06,NVIDIA Fake 1,[N/A],Disabled,Disabled\n"
    + "2,GPU-a2-0000,580.65.06,NVIDIA Fake 2,1652,Disabled,Disabled\n"
    + "3,GPU-a3-0000,580.65.06,NVIDIA Fake 3,1653,Disabled,Disabled\n"
    + "\n"
    + PROCESSES
    + "4000,/usr/bin/python4000,GPU-a0-0000,NVIDIA Fake 0,512\n"
    + "4001,[N/A],GPU-a0-0000,NVIDIA Fake 0,[N/A]\n"
    + "4020,/usr/bin/python4020,GPU-a2-0000,NVIDIA Fake 2,512\n"
    + "4021,[N/A],GPU-a2-0000,NVIDIA Fake 2,[N/A]\n"
    + "\n"
    + SAMPLES
)
ROWS = [
    "0,40,143771,3000,140119,TIME\n",
    "1,41,143771,3001,140118,TIME\n",
    "2,42,143771,3002,140117,TIME\n",
    "3,[N/A],143771,3003,140116,TIME\n",
]
NO_ROWS = f"{GPUS}\n{PROCESSES}\n{SAMPLES}"


def where(driver: dict[str, str], **changes: str) -> dict[str, str]:
    return {**{name: value for name, value in driver.items() if not STEERING.match(name)}, **changes}


@contextlib.contextmanager
def logged(place: Place, environ: dict[str, str], rows: int, *options: str) -> Iterator[str]:
    """A job, with what it has logged once so many rows of samples are there; then it ends, well."""
    place.script("await_file('go')")
    path = place.folder / "log" / "default.gpu.log"

    def has_come() -> str:
        text = path.read_text() if path.exists() else ""
        return text if text.partition(SAMPLES)[2].count("\n") >= rows and SAMPLES in text else ""

    with place.start(*options, "train.py", env=environ) as launcher:
        yield until(has_come, "the first sample")
        (place.folder / "go").touch()
        ended = place.wait(launcher)
    assert (ended.status, ended.error_lines()) == (0, []), ended.stderr


def is_head_and_samples(text: str, head: str, rows: list[str]) -> bool:
    """Whether that is all, however often it was sampled."""
    samples = TIME.sub("TIME", text.removeprefix(head))
    return text.startswith(head) and samples == "".join(rows) * (samples.count("\n") // len(rows))


def test_all_gpus_of_a_job(place: Place, driver: Driver) -> None:
    path = place.folder / "log" / "default.gpu.log"
    path.parent.mkdir()
    path.write_text("an earlier job's")
    path.chmod(0o644)
    with logged(place, where(driver(), TZ="AHEAD-05:30"), 4) as text:
        assert is_head_and_samples(text, OF_ALL, ROWS), text
        assert path.stat().st_mode & 0o7777 == 0o600
    found = TIME.search(text)
    assert found
    local = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=5, minutes=30)
    written = datetime.datetime.strptime(found[0] + "+0000", "%Y/%m/%d %H:%M:%S.%f%z")
    assert abs((local - written).total_seconds()) < LIMIT


@pytest.mark.parametrize(
    ("listed", "wanted", "numbers"),
    [
        (None, "2,1", [1, 2]),
        ("3,1", "1", [1]),
        ("GPU-a2,GPU-a0", None, [0, 2]),
        (None, "MIG-b2", [3]),
        # It is ambiguous which one is meant.
        ("GPU-ff", None, [0, 1, 2, 3]),
    ],
)
def test_only_the_gpus_that_ranks_have(
    place: Place, driver: Driver, listed: str | None, wanted: str | None, numbers: list[int]
) -> None:
    changes = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    options = [] if wanted is None else [f"--gpus={wanted}"]
    with logged(place, where(driver(), **changes), len(numbers), *options) as text:
        samples = text.partition(SAMPLES)[2].splitlines()
        assert [int(row.split(",")[0]) for row in samples[: len(numbers)]] == numbers
        (of_gpus, of_processes, _) = text.split("\n\n")
        assert [int(row[0]) for row in of_gpus.splitlines()[1:]] == numbers
        uuids = {f"GPU-a{number}-0000" for number in numbers}
        assert {row.split(",")[2] for row in of_processes.splitlines()[1:]} <= uuids


def test_values_that_an_older_driver_does_not_have(place: Place, driver: Driver) -> None:
    unknown = [f"{number}," + "[N/A]," * 4 + "TIME\n" for number in range(4)]
    head = (
        GPUS + "".join(f"{number}" + ",[N/A]" * 6 + "\n" for number in range(4)) + f"\n{PROCESSES}\n{SAMPLES}"
    )
    with logged(place, where(driver("-DOLD")), 4) as text:
        assert is_head_and_samples(text, head, unknown), text


def test_a_driver_whose_table_of_processes_is_misread_is_not_asked_for_it(
    place: Place, driver: Driver
) -> None:
    environ = where(driver('-DVERSION="535.54.03"'))
    with logged(place, environ, 1, "--gpus=0") as text:
        assert text.startswith(f"{GPUS}0,GPU-a0-0000,535.54.03,NVIDIA Fake 0,1650,Disabled,Enabled\n")
        assert f"\n\n{PROCESSES}\n{SAMPLES}" in text


def test_without_a_driver_there_are_no_rows(place: Place, driver: Driver) -> None:
    with logged(place, where(driver("-DUNLOADED"), CUDA_VISIBLE_DEVICES="0,1"), 0) as text:
        assert text == NO_ROWS


def test_only_the_supervisor_asks(place: Place, driver: Driver) -> None:
    with logged(place, where(driver("-DTELLS"), CUDA_VISIBLE_DEVICES="1"), 1):
        assert place.launcher is not None
        assert int(place.text("asked")) == supervisor_of(place.launcher).pid


@pytest.mark.parametrize(
    ("shown", "options"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ["--enable_gpu_log=false"]),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ["--enable_gpu_log=0"]),
        ({"XPU_VISIBLE_DEVICES": "0,1"}, []),
        ({"NPU_VISIBLE_DEVICES": "0,1"}, []),
    ],
)
def test_no_log_and_no_driver(
    place: Place, driver: Driver, shown: dict[str, str], options: list[str]
) -> None:
    place.script("")
    ended = place.run(*options, "train.py", env=where(driver("-DTELLS"), **shown))
    assert ended.status == 0, ended.stderr
    assert "default.gpu.log" not in place.names("log")
    assert "loaded" not in place.names()


@pytest.mark.parametrize(("call", "written"), [("HANGS_AT_FIRST", ""), ("HANGS", OF_ALL)])
def test_a_driver_that_hangs_holds_up_no_job(place: Place, driver: Driver, call: str, written: str) -> None:
    place.script("await_file('hanging.0')\nawait_file('go')")
    environ = where(driver(f"-D{call}"), CUDA_VISIBLE_DEVICES="0,1,2,3")
    with place.start("train.py", env=environ) as launcher:
        until(lambda: (place.folder / "hanging.0").exists(), "the call that hangs")
        supervisor = supervisor_of(launcher)
        (place.folder / "go").touch()
        ended = place.wait(launcher)
        until(lambda: gone(supervisor), "the end of the supervisor")
    assert ended.status == 0, ended.stderr
    assert (place.folder / "log" / "default.gpu.log").read_text() == written


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("link", "is a symbolic link"),
        ("fifo", "is not a regular file"),
        ("folder", "is not a regular file"),
    ],
)
def test_a_path_that_is_no_file_is_left_alone(place: Place, driver: Driver, kind: str, why: str) -> None:
    path = place.folder / "log" / "default.gpu.log"
    path.parent.mkdir()
    elsewhere = place.folder / "elsewhere"
    elsewhere.write_text("another program's")
    match kind:
        case "link":
            path.symlink_to(elsewhere)
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    place.script("")
    ended = place.run("train.py", env=where(driver()))
    assert ended.status == 0, ended.stderr
    said = [line for line in ended.stderr.splitlines() if "the GPU log is not written" in line]
    assert [line.split()[1] for line in said] == ["WARNING"]
    assert why in said[0]
    assert elsewhere.read_text() == "another program's"


def test_a_full_disk_ends_the_log_and_not_the_job(place: Place, driver: Driver) -> None:
    place.script("await_file('go')")
    most = 10_000  # Bytes a file: enough for the launcher's own records.
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))  # noqa: E731
    with place.start("train.py", env=where(driver("-DLONG")), preexec_fn=limit) as launcher:
        line = await_line(launcher.stderr, b"GPU log")
        (place.folder / "go").touch()
        ended = place.wait(launcher)
    assert line.startswith(b"LAUNCH WARNING")
    assert line.endswith(b"the GPU log ends here: File too large\n")
    assert ended.status == 0
    assert "GPU log" not in ended.stderr
    assert (place.folder / "log" / "default.gpu.log").read_text() == ""


# --- Beside Paddle's own, given an nvidia-smi that says the same ------------------------------------------

NVIDIA_SMI = """#!/bin/sh
case "$*" in *--format=csv,noheader,nounits*--id=0,2*) ;; *) exit 1 ;; esac
case "$*" in
*--query-gpu=index,uuid*)
    echo "0, GPU-a0-0000, 580.65.06, NVIDIA Fake 0, 1650, Disabled, Enabled"
    echo "2, GPU-a2-0000, 580.65.06, NVIDIA Fake 2, 1652, Disabled, Disabled" ;;
*--query-compute-apps=*) ;;
*)
    echo "0, 40, 143771, 3000, 140119, 2026/11/21 13:30:00.123"
    echo "2, 42, 143771, 3002, 140117, 2026/11/21 13:30:00.123" ;;
esac
"""
WATCH = """
import os, sys, types
from paddle.distributed.launch.controllers.watcher import Watcher
args = types.SimpleNamespace(enable_gpu_log=True, devices="0,2", log_dir="paddle", job_id="default")
looks = iter([False, True])
status = types.SimpleNamespace(is_done=lambda: next(looks))
watcher = Watcher(types.SimpleNamespace(args=args, status=status))
watcher.interval = 0
watcher.proc.join()
"""


def test_the_file_is_paddles(place: Place, driver: Driver) -> None:
    tool = place.folder / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(NVIDIA_SMI)
    tool.chmod(0o755)
    environ = where(driver(), PATH=f"{tool.parent}:{os.environ['PATH']}")
    subprocess.run([*python("paddle"), "-c", WATCH], env=environ, cwd=place.folder, check=True)
    paddles = place.text("paddle/default.gpu.log")
    assert paddles.endswith("3002,140117,2026/11/21 13:30:00.123\n")
    with logged(place, environ, 2, "--gpus=0,2") as text:
        head, processes, samples = text.split("\n\n")
        without_processes = f"{head}\n\n{processes.splitlines()[0]}\n\n{samples}"
        mine = TIME.sub("2026/11/21 13:30:00.123", without_processes)
        assert mine == paddles
