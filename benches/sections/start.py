"""The cost of starting ranks: `import`, the command line, `spawn`, and one rank in a big parent."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench_launchers import BEFORE, LAUNCHERS, PADDLE, RLAUNCH, RUN, TORCHRUN, Launcher, environment
from figures import Cell, Promise
from running import Run, answer, succeed
from session import Session, each, present


def timed(body: Callable[[], object]) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    body()
    return (time.perf_counter() - start) * 1000


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


ALONE = """
import importlib, json, py_compile, sys, time
import rlaunch.env
compiled = py_compile.compile(rlaunch.env.__file__, cfile=sys.argv[1] + "/env_alone.pyc", doraise=True)
sys.path.insert(0, sys.argv[1])
times = []
for _ in range(50):
    sys.modules.pop("env_alone", None)
    start = time.perf_counter()
    importlib.import_module("env_alone")
    times.append(1000 * (time.perf_counter() - start))
assert sys.modules["env_alone"].__file__ == compiled
print(json.dumps(min(times)))
"""


PTH_LINE = """
import json, os, time
from rlaunch._install.pth_file import LINE
os.environ.pop("RLAUNCH_INSTALL", None)
times = []
for _ in range(200):
    start = time.perf_counter()
    exec(LINE)
    times.append(1000 * (time.perf_counter() - start))
print(json.dumps(min(times)))
"""


def measure_import(session: Session) -> None:
    """`import` of the package, over bare Python; of `env.py` alone, without the extension; the .pth file."""
    packages = {PADDLE.name: "paddle", TORCHRUN.name: "torch"}

    def cost(python: str, statement: str, turns: int) -> float:
        return min(timed(lambda: succeed([python, "-c", statement])) for _ in range(turns))

    def over_bare(name: str, python: str, turns: int) -> float:
        return cost(python, f"import {packages.get(name, 'rlaunch')}", turns) - cost(python, "pass", 20)

    session.row(
        "import over bare Python",
        each(
            lambda it: over_bare(it.name, it.python, session.amount(4, 1) if it.is_rival else 20),
            [it for it in present() if it is not RUN],
        ),
        "ms",
    )
    alone: float = answer([RLAUNCH.python, "-c", ALONE, str(session.folder)])
    session.row("import of env.py alone", {RLAUNCH.name: alone}, "ms", Promise("env.py", most=1))
    line: float = answer([RLAUNCH.python, "-c", PTH_LINE])
    share = 100 * line / cost(RLAUNCH.python, "pass", 20)
    what = "rlaunch_install.pth without its variable, of Python's start"
    session.row(what, {RLAUNCH.name: share}, "%", Promise("install", most=2))


def bare(ranks: int, script: Path) -> None:
    """The floor: the same ranks, started by a shell-like parent that does nothing else."""
    null, command = subprocess.DEVNULL, [RLAUNCH.python, "-u", str(script)]
    children = [
        subprocess.Popen(command, stdin=null, stdout=null, stderr=null, env=environment())
        for _ in range(ranks)
    ]
    for child in children:
        child.wait()


def measure_launch(session: Session) -> None:
    """Wall time of a job of ranks that do nothing, and how much of it is the launcher's (over bare ranks)."""
    script = written(session.folder, "noop.py", "pass\n")
    for ranks in (2, 8):
        floor: list[float] = []
        times: dict[str, list[float]] = {launcher.name: [] for launcher in present()}
        for turn in range(session.amount(10, 3)):
            floor.append(timed(lambda n=ranks: bare(n, script)))  # type: ignore[misc]
            for launcher in present():
                if not launcher.is_rival or turn < session.amount(4, 1):
                    command = launcher.command(ranks, session.folder / launcher.name, str(script))
                    times[launcher.name].append(timed(lambda c=command: succeed(c)))  # type: ignore[misc]
        base = statistics.median(floor)
        walls = {name: statistics.median(all_) for name, all_ in times.items()}
        over: dict[str, Cell] = {name: wall - base for name, wall in walls.items()}
        session.row(f"wall time of {ranks} trivial ranks", dict(walls), "ms", bare=base)
        promise = Promise("V1", most=30, times_less=40) if ranks == 2 else None
        session.row(f"overhead over {ranks} bare ranks", over, "ms", promise)


# Until it is ended: what ends a rank is no part of its start.
FIRST_LINE = """
tell("line", time.monotonic())
time.sleep(600)
"""


def measure_first_line(session: Session) -> None:
    """From the start of the launcher to the first line of the last of its ranks."""

    def once(launcher: Launcher, ranks: int) -> float:
        start = time.monotonic()
        with Run(launcher, session.folder, FIRST_LINE, ranks=ranks) as run:
            return (max(run.await_values("line")) - start) * 1000

    for ranks in (2, 8):
        turns = {it.name: session.amount(*((4, 1) if it.is_rival else (10, 3))) for it in present()}
        session.row(
            f"first line of the last of {ranks} ranks, p50",
            each(lambda it, n=ranks, t=turns: statistics.median(once(it, n) for _ in range(t[it.name]))),  # type: ignore[misc]
            "ms",
        )


# Past what every job does first: the store of rank 0, and one collective.
FIRST_COLLECTIVE = {
    "paddle": """
import paddle
import paddle.distributed as dist
dist.init_parallel_env()
dist.all_reduce(paddle.ones([1]))
tell("done", time.monotonic())
""",
    "torch": """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
tell("done", time.monotonic())
dist.destroy_process_group()
""",
}


def measure_collective(session: Session) -> None:
    """From the launcher's start to the first collective of 2 ranks. *Bare*: rlaunch, RLAUNCH_STORE_WAIT=0."""

    def once(launcher: Launcher, framework: str, **variables: str) -> float:
        options = [f"--frameworks={framework}"] if not launcher.is_rival else []
        start = time.monotonic()
        with Run(
            launcher, session.folder, FIRST_COLLECTIVE[framework], options=options, variables=variables
        ) as run:
            return max(run.await_values("done")) - start

    for framework, rival in (("paddle", PADDLE), ("torch", TORCHRUN)):
        if rival not in present():
            continue
        # Without the wait for the store, as a launcher that does nothing about it.
        waits = {"without": {"RLAUNCH_STORE_WAIT": "0"}, "rlaunch": {}, "run": {}, rival.name: {}}
        times: dict[str, list[float]] = {name: [] for name in waits}
        by_name = {"without": RLAUNCH, **{launcher.name: launcher for launcher in LAUNCHERS}}
        for _ in range(session.amount(12, 2)):
            for name, variables in waits.items():
                times[name].append(once(by_name[name], framework, **variables))
        figures = {name: statistics.median(seen) for name, seen in times.items()}
        without = figures.pop("without")
        session.row(f"first collective of 2 ranks of {framework}, p50", dict(figures), "s", bare=without)


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


def measure_spawn(session: Session) -> None:
    """Wall time of `spawn` with ranks that do nothing; the parent has imported its library."""
    written(session.folder, "ranks.py", "def trivial():\n    return 1\n")
    script = written(session.folder, "spawner.py", SPAWN)

    def run(launcher: Launcher, ranks: int, method: str) -> float:
        turns = session.amount(*((3, 1) if launcher.is_rival else (7, 3)))
        command = [launcher.python, str(script), launcher.module, str(ranks), method, str(turns)]
        times: list[float] = answer(command)
        return statistics.median(times) * 1000

    those = [launcher for launcher in present() if launcher in (RLAUNCH, BEFORE, PADDLE)]
    for method in ("spawn", "forkserver", "fork"):
        for ranks in (2, 8):
            session.row(
                f"{ranks} trivial ranks, start method {method}",
                each(lambda it, r=ranks, m=method: run(it, r, m), those),  # type: ignore[misc]
                "ms",
            )


START = """
import json, os, resource, subprocess, sys, time
from rlaunch import _lib
TURNS = 5
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
ballast = bytearray(int(sys.argv[1]) << 30)
for page in range(0, len(ballast), 4096):
    ballast[page] = 1
spawner = _lib.Spawner()
def ours():
    end = spawner.open_end()
    rank = spawner.start(b"/bin/true", [b"true"], [], [], -1, end)
    spawner.close_end(end)
    return rank.wait
def preexec():
    return subprocess.Popen(["/bin/true"], preexec_fn=os.setsid).wait  # As Paddle's launcher starts ranks.
def session():
    return subprocess.Popen(["/bin/true"], start_new_session=True).wait  # As torchrun does.
def bare():
    pid = os.posix_spawn("/bin/true", ["true"], {})
    return lambda: os.waitpid(pid, 0)
figures = {}
for turn in range(TURNS):
    for name, start in (("bare", bare), ("rlaunch", ours), ("paddle", preexec), ("torchrun", session)):
        for ranks in (8, 256):
            few = 8 if name == "paddle" and len(ballast) else ranks
            begin = time.perf_counter()
            waits = [start() for _ in range(few)]
            took = (time.perf_counter() - begin) / few * 1000
            for wait in waits:
                wait()
            figures[f"{name}{ranks}"] = min(took, figures.get(f"{name}{ranks}", took))
print(json.dumps(figures))
"""


def measure_start(session: Session) -> None:
    """The cost of starting a rank for its parent. Of rivals: how they start one. *Bare*: posix_spawn."""
    script = written(session.folder, "start.py", START)
    for gib in (0, 4):
        figures = answer([RLAUNCH.python, str(script), str(gib)])
        if BEFORE in present():
            before = answer([BEFORE.python, str(script), str(gib)])
            figures |= {f"before{ranks}": before[f"rlaunch{ranks}"] for ranks in (8, 256)}
        size = "small" if gib == 0 else f"{gib} GiB"
        for ranks in (8, 256):
            cells = {it.name: figures[f"{it.name}{ranks}"] for it in LAUNCHERS if it is not RUN}
            # 0.5 ms on the machine where it was promised; posix_spawn takes that much on a slow one.
            promise = Promise("V4", of_bare=2)
            bare = figures[f"bare{ranks}"]
            session.row(f"a rank of {ranks}, {size} parent", cells, "ms", promise, bare=bare)
