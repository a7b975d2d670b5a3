"""What rlaunch reads of the driver's library, beside nvidia-smi."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import GIB, IMPORT_CUDA, smi, stranger
from jobs import Jobs
from launching import Place, until

# Holds a GiB, and writes it again and again while the file `busy` is there.
HOLDER = (
    IMPORT_CUDA
    + f"""
driver = cuda.Driver()
driver.use()
address = driver.allocate({GIB})
driver.fill(address, {GIB})
tell("ready", os.getpid())
while not os.path.exists("go"):
    if os.path.exists("busy"):
        driver.fill(address, {GIB})
    else:
        time.sleep(0.01)
"""
)
GPU_FIELDS = ("index", "uuid", "driver_version", "name", "serial", "display_active", "display_mode")
APP_FIELDS = ("pid", "process_name", "gpu_uuid", "gpu_name", "used_memory")
NEAR_MIB = 64


def sections(path: Path) -> list[list[list[str]]]:
    """The rows of each table of a GPU log, without the names of the columns."""
    tables = path.read_text().split("\n\n")
    return [[row.split(",") for row in table.splitlines()[1:]] for table in tables]


def used_by(pid: int) -> int:
    """MiB that a process has of all GPUs, by nvidia-smi."""
    return sum(int(used) for number, used in smi("compute-apps", "pid", "used_memory") if int(number) == pid)


def test_the_gpu_log_has_what_nvidia_smi_shows(place: Place, seen: Callable[[str, str], None]) -> None:
    place.script("tell('ready', os.getpid())\nawait_file('go')")
    log = place.folder / "log" / "default.gpu.log"
    with stranger(), place.start("--gpus", "0", "train.py") as launcher:

        def sampled() -> Any:
            tables = sections(log) if log.exists() else []
            return tables if len(tables) == 3 and tables[2] else None

        gpus, processes, samples = until(sampled, "a sample")
        memory = smi("gpu", "memory.total", "memory.used", "memory.free")[0]
        rows, apps = smi("gpu", *GPU_FIELDS)[:1], smi("compute-apps", *APP_FIELDS)
        (place.folder / "go").touch()
        assert place.wait(launcher).status == 0
    # Newer drivers answer nvidia-smi no more whether a display is connected, but still a program.
    known = [field for field, value in zip(GPU_FIELDS, rows[0], strict=True) if "deprecated" not in value]
    assert set(GPU_FIELDS) - set(known) <= {"display_mode"}
    (logged_row,) = gpus
    assert [logged_row[GPU_FIELDS.index(f)] for f in known] == [rows[0][GPU_FIELDS.index(f)] for f in known]
    first = rows[0][1]
    assert processes == [app for app in apps if app[2] == first]
    assert processes
    index, _, *logged, _ = samples[0]
    assert index == "0"
    for ours, theirs in zip(logged, memory, strict=True):
        assert abs(int(ours) - int(theirs)) <= NEAR_MIB, (samples[0], memory)
    seen(
        "The GPU log beside nvidia-smi",
        f"GPUs and {len(processes)} process alike; memory within {NEAR_MIB} MiB",
    )


def test_the_status_names_what_ranks_use(jobs: Jobs, seen: Callable[[str, str], None]) -> None:
    (jobs.folder / "busy").touch()

    def rank() -> dict[str, Any]:
        status: list[Any] = jobs.json("status")["nodes"]
        found: dict[str, Any] = status[0]["status"]["ranks"][0]
        return found

    def sampled() -> Any:
        ranks = [event["ranks"][0] for event in jobs.events() if event["event"] == "sample"]
        return next((rank for rank in ranks if rank.get("gpu_percent")), None)

    with stranger(), jobs.job("--sample=0.5", script=HOLDER, ranks=1):
        pid = int(jobs.text("ready.0"))
        busy = until(lambda: (found := rank()).get("gpu_percent") and found, "a use of the GPU")
        used = used_by(pid)
        assert abs((busy["gpu_memory_bytes"] >> 20) - used) <= NEAR_MIB, (busy, used)
        assert used >= GIB >> 20
        table = jobs.ask("status").stdout.decode()
        assert "GPU MEMORY" in table, table
        sample = until(sampled, "a sample with the GPU")
        assert abs((sample["gpu_memory_bytes"] >> 20) - used) <= NEAR_MIB
        (jobs.folder / "busy").unlink()
        until(lambda: rank().get("gpu_percent") == 0, "an idle GPU")
        # The GPU log, the samples and the control socket ask the driver side by side.
        log = jobs.folder / "log" / "default.gpu.log"
        rows = len(until(lambda: sections(log)[2], "a row of the GPU log"))
        until(lambda: len(sections(log)[2]) > rows, "the next row")
        assert sections(log)[2][-1][1:3] == smi("gpu", "utilization.gpu", "memory.total")[0]
        (jobs.folder / "go").touch()
    use = f"{busy['gpu_percent']} % while it writes, 0 % later; memory as in nvidia-smi ({used} MiB)"
    seen(
        "`rlaunch status` and `--sample`, a rank beside a stranger on one GPU",
        f"{use}, without the stranger's",
    )
