"""However a job ends, the memory of the GPU is free afterwards."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import psutil
import pytest
from conftest import IMPORT_CUDA, smi
from jobs import Jobs
from launching import Place, await_gone, until

HOLD = IMPORT_CUDA + "driver = cuda.Driver()\ndriver.use()\naddress = driver.allocate(1 << 30)\n"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
ENDLESS = (
    IMPORT_CUDA
    + """
def train():
    driver = cuda.Driver()
    driver.use()
    address = driver.allocate(1 << 30)
    driver.run_endless_kernel()
    tell("ready", os.getpid())
    driver.synchronize()
train()
"""
)


def users() -> set[int]:
    return {int(pid) for (pid,) in smi("compute-apps", "pid")}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_memory_is_free_after_the_launchers_end(
    place: Place, number: signal.Signals, seen: Callable[[str, str], None]
) -> None:
    place.script(DEAF + HOLD + "tell('ready', os.getpid())\nsleep()")
    with place.start("--gpus=0,0", "--grace_period=1", "train.py") as launcher:
        ranks = place.ready(2)
        assert {rank.pid for rank in ranks} <= users()
        launcher.send_signal(number)
        begin = time.monotonic()
        await_gone(*ranks)
        until(lambda: not users() & {rank.pid for rank in ranks}, "the end of the ranks on the GPU")
        took = time.monotonic() - begin
    grace = "" if number == signal.SIGKILL else ", a second of grace among them"
    seen(
        f"{number.name} to the launcher of two ranks that ignore SIGTERM",
        f"their GPU memory is free after {took:.1f} s{grace}",
    )


def test_a_rank_in_an_endless_kernel_is_seen_and_ended(jobs: Jobs, seen: Callable[[str, str], None]) -> None:
    with jobs.job("--gpus=0", "--grace_period=1", script=ENDLESS, ranks=1) as launcher:
        pid = int(jobs.text("ready.0"))
        # The rank says that it is ready a moment before it waits.
        until(lambda: psutil.Process(pid).cpu_percent(0.1) > 50, "the wait, which is a loop in the driver")
        stacks = jobs.ask("stacks").stdout.decode()
        assert "synchronize" in stacks, stacks
        assert "train.py" in stacks, stacks
        busy = until(
            lambda: jobs.json("status")["nodes"][0]["status"]["ranks"][0].get("gpu_percent"),
            "its use of the GPU",
        )
        begin = time.monotonic()
        launcher.send_signal(signal.SIGTERM)
        jobs.wait(launcher)
        until(lambda: pid not in users(), "its end on the GPU")
        took = time.monotonic() - begin
    seen(
        "A rank that waits for an endless kernel",
        f"`rlaunch stacks` names the line, `rlaunch status` {busy} % of the GPU; {took:.1f} s after SIGTERM "
        "it has ended and the GPU is free",
    )
