"""How long it takes to plan a large job."""

from __future__ import annotations

from bench_launchers import PADDLE, RLAUNCH
from figures import NOT_INSTALLED, Cell, Promise
from running import answer
from session import Session

# One node's part, as Paddle's launcher plans it with --ips; nothing is started.
BY_PADDLE = """
import json, statistics, sys, time
from paddle.distributed.launch.context import Context
from paddle.distributed.launch.controllers.collective import CollectiveController
ips = ",".join(f"10.{i // 250}.{i % 250}.1" for i in range(1250))
log_dir = "--log_dir=" + sys.argv[1]
sys.argv = ["launch", log_dir, "--enable_gpu_log=0", "--ips=" + ips, "--nproc_per_node=8", "train.py"]
times = []
for _ in range(5):
    controller = CollectiveController(Context(enable_plugin=False))
    controller.build_job()
    start = time.perf_counter()
    controller.build_pod()
    times.append((time.perf_counter() - start) * 1000)
print(json.dumps(statistics.median(times)))
"""


def measure_plan(session: Session) -> None:
    """Rank placement and variables: 10,000 ranks on 1,250 nodes named by --ips. Nothing is started."""
    ours = answer(["cargo", "bench", "--quiet", "--locked", "--bench", "plan"])
    theirs: Cell = NOT_INSTALLED
    if PADDLE.version:
        theirs = answer([PADDLE.python, "-c", BY_PADDLE, str(session.folder / "planned")])
    session.row("one node's part", {RLAUNCH.name: ours["one_ms"], PADDLE.name: theirs}, "ms")
    session.row(
        "the parts of all nodes", {RLAUNCH.name: ours["all_ms"]}, "ms", Promise("10,000 ranks", most=50)
    )
    small, _, large = ours["bytes_a_rank"]
    session.row("memory a rank of 10,000, all parts kept", {RLAUNCH.name: float(small)}, "bytes")
    session.row(
        "the same of 40,000, as a part of that of 10,000",
        {RLAUNCH.name: large / small},
        "",
        Promise("linear", most=1.1),
    )
