"""Speed and memory, side by side with Paddle's own launchers in the same run.

    make bench                        every section
    .venv/bin/python benches/bench.py launch crash        some of them

Figures are for this machine at this moment; the ratios are what to look at. `bare` is the floor: the
same ranks started by a shell-like parent that does nothing else.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PYTHON = sys.executable
RIVAL = "paddle.distributed.launch"


def launcher(module: str, ranks: int, folder: Path, script: Path) -> list[str]:
    log = str(folder / module)
    return [PYTHON, "-m", module, "--nproc_per_node", str(ranks), "--log_dir", log, str(script)]


def quiet(command: list[str], **options: object) -> subprocess.Popen[bytes]:
    null = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=null, stdout=null, stderr=null, **options)  # type: ignore[call-overload]


def succeed(command: list[str]) -> None:
    """Runs a command to its good end; a figure of something that failed is no figure."""
    status = quiet(command).wait()
    if status != 0:
        sys.exit(f"bench: exit status {status} of {' '.join(command)}")


def timed(body: Callable[[], object]) -> float:
    start = time.perf_counter()
    body()
    return time.perf_counter() - start


def bare(ranks: int, script: Path) -> None:
    children = [quiet([PYTHON, "-u", str(script)]) for _ in range(ranks)]
    for child in children:
        child.wait()


def row(what: str, ours: float, theirs: float, unit: str = "ms", floor: float | None = None) -> None:
    base = "" if floor is None else f"  bare {floor:9.1f}"
    ratio = theirs / ours if ours > 0 else float("inf")
    print(f"{what:<46} rlaunch {ours:9.1f}  Paddle {theirs:9.1f}{base}  {unit:<3} {ratio:7.1f} x", flush=True)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def bench_launch(folder: Path) -> None:
    """V1: wall time of trivial ranks, and the launcher's overhead over the bare children."""
    script = write(folder, "noop.py", "pass\n")
    for ranks in (2, 8):
        floor, ours, theirs = [], [], []
        for turn in range(10):
            floor.append(timed(lambda n=ranks: bare(n, script)))
            ours.append(timed(lambda n=ranks: succeed(launcher("rlaunch", n, folder, script))))
            if turn < 4:
                theirs.append(timed(lambda n=ranks: succeed(launcher(RIVAL, n, folder, script))))
        base, mine, rival = (statistics.median(times) * 1000 for times in (floor, ours, theirs))
        row(f"launch: wall time of {ranks} trivial ranks", mine, rival, floor=base)
        row(f"launch: overhead over {ranks} bare ranks (V1)", mine - base, rival - base)


SPAWN = """
import sys, time, json, warnings
warnings.simplefilter("ignore")
if sys.argv[1] == "rlaunch":
    import rlaunch as dist
else:
    import paddle.distributed as dist
from ranks import trivial
if __name__ == "__main__":
    times = []
    for _ in range(int(sys.argv[4])):
        start = time.perf_counter()
        dist.spawn(trivial, nprocs=int(sys.argv[2]), start_method=sys.argv[3])
        times.append(time.perf_counter() - start)
    print(json.dumps(times))
"""


def bench_spawn(folder: Path) -> None:
    """Wall time of `spawn` with ranks that do nothing; the parent has imported its library."""
    write(folder, "ranks.py", "def trivial():\n    return 1\n")
    script = write(folder, "spawner.py", SPAWN)

    def run(library: str, ranks: int, method: str, turns: int) -> float:
        command = [PYTHON, str(script), library, str(ranks), method, str(turns)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return statistics.median(json.loads(done.stdout.splitlines()[-1])) * 1000

    for method in ("spawn", "forkserver", "fork"):
        for ranks in (2, 8):
            rival = run("paddle", ranks, method, 3)
            row(
                f"spawn: {ranks} trivial ranks, start method {method}",
                run("rlaunch", ranks, method, 7),
                rival,
            )


CRASH = """
import os, sys, time
if os.environ["PADDLE_TRAINER_ID"] == "1":
    while not os.path.exists(sys.argv[1] + ".up"):
        time.sleep(0.001)
    open(sys.argv[1], "w").write(repr(time.monotonic()))
    os._exit(3)
open(sys.argv[1] + ".up", "w").close()
time.sleep(60)
"""


def bench_crash(folder: Path) -> None:
    """V3: from a rank's death to the launcher's exit, the other rank obedient."""
    script = write(folder, "crash.py", CRASH)

    def once(module: str, turn: int) -> float:
        mark = folder / f"{module}.{turn}"
        quiet([*launcher(module, 2, folder, script), str(mark)]).wait()
        return (time.monotonic() - float(mark.read_text())) * 1000

    theirs = [once(RIVAL, turn) for turn in range(6)]
    ours = sorted(once("rlaunch", turn) for turn in range(100))
    row("crash: rank's death to exit, median (V3)", statistics.median(ours), statistics.median(theirs))
    row("crash: the same, 99th of 100 (V3)", ours[98], max(theirs))


def launcher_processes(root: int, module: str) -> list[int]:
    """The launcher and its children that are not ranks: they run its module too."""
    found = [root]
    for pid in found:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if f"-m\0{module}\0".encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


def pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise RuntimeError(f"no Pss of {pid}")


def bench_idle(folder: Path) -> None:
    """V2 and V5: memory of the launcher while two ranks sleep, and how often it wakes."""
    script = write(
        folder, "sleep.py", "import sys, time\nopen(sys.argv[1], 'a').write('x')\ntime.sleep(60)\n"
    )
    memory, wakes = {}, {}
    for module in ("rlaunch", RIVAL):
        mark = folder / f"{module}.up"
        process = quiet([*launcher(module, 2, folder, script), str(mark)])
        while not mark.exists() or len(mark.read_text()) < 2:
            time.sleep(0.01)
        time.sleep(0.5)
        processes = launcher_processes(process.pid, module)
        memory[module] = sum(map(pss, processes)) / 1024

        def switches(pids: list[int] = processes) -> int:
            lines = [line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
            return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)

        before = switches()
        time.sleep(5)
        wakes[module] = switches() - before
        process.terminate()
        process.wait()
    row("idle: memory of the launcher, PSS (V2)", memory["rlaunch"], memory[RIVAL], "MB")
    row("idle: times it woke in 5 s (V5)", wakes["rlaunch"], wakes[RIVAL], "")


START = """
import json, os, resource, subprocess, sys, time
from rlaunch import _lib
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
ballast = bytearray(int(sys.argv[1]) << 30)
for page in range(0, len(ballast), 4096):
    ballast[page] = 1
nursery = _lib.Nursery()
def ours():
    end = nursery.open_end()
    rank = nursery.start(b"/bin/true", [b"true"], [], [], -1, end)
    nursery.close_end(end)
    return rank.wait
def preexec():
    return subprocess.Popen(["/bin/true"], preexec_fn=os.setsid).wait  # As Paddle's launcher starts ranks.
figures = {}
for name, start in (("ours", ours), ("preexec", preexec)):
    for ranks in (8, 256):
        ranks = min(ranks, 8) if name == "preexec" and len(ballast) else ranks
        begin = time.perf_counter()
        waits = [start() for _ in range(ranks)]
        figures[f"{name}{ranks}"] = (time.perf_counter() - begin) / ranks * 1000
        for wait in waits:
            wait()
print(json.dumps(figures))
"""


def bench_start(folder: Path) -> None:
    """V4: what starting one rank costs its parent. Paddle forks with a pre-exec hook."""
    script = write(folder, "start.py", START)
    for gib in (0, 4):
        done = subprocess.run([PYTHON, str(script), str(gib)], capture_output=True, text=True, check=True)
        figures = json.loads(done.stdout)
        size = "small" if gib == 0 else f"{gib} GiB"
        for ranks in (8, 256):
            rival = figures.get(f"preexec{ranks}", figures["preexec8"])
            row(f"start: a rank of {ranks}, {size} parent (V4)", figures[f"ours{ranks}"], rival)


def bench_import(folder: Path) -> None:
    """`import` over bare Python."""

    def cost(statement: str, turns: int) -> float:
        return min(timed(lambda: succeed([PYTHON, "-c", statement])) for _ in range(turns)) * 1000

    nothing = cost("pass", 20)
    row("import over bare Python", cost("import rlaunch", 20) - nothing, cost("import paddle", 4) - nothing)


SECTIONS = {
    "import": bench_import,
    "launch": bench_launch,
    "spawn": bench_spawn,
    "crash": bench_crash,
    "idle": bench_idle,
    "start": bench_start,
}


def main() -> None:
    chosen = sys.argv[1:] or list(SECTIONS)
    unknown = [name for name in chosen if name not in SECTIONS]
    if unknown:
        sys.exit(f"bench: no section {unknown[0]}; there are {', '.join(SECTIONS)}")
    # As installed by pip: with its bytecode, which some machines are told not to write.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            SECTIONS[name](Path(folder))


if __name__ == "__main__":
    main()
