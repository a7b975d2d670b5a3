"""``paddle.distributed.launch`` on rlaunch: in a process with ``install()``, and by RLAUNCH_INSTALL."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from environments import Environment
from launching import environment
from preloaded import python

pytestmark = pytest.mark.timeout(300)

# Rank 1 exits once rank 0 has written, which is stopped then.
RANK = """
import os, sys, time
rank = os.environ["PADDLE_TRAINER_ID"]
with open(f"{sys.argv[1]}.{rank}", "w") as file:
    file.write("rlaunch" if "RLAUNCH_RANK_KEY" in os.environ else "another launcher")
while rank == "1" and not os.path.exists(f"{sys.argv[1]}.0.whole"):
    time.sleep(0.01)
os.rename(f"{sys.argv[1]}.{rank}", f"{sys.argv[1]}.{rank}.whole")
sys.exit(int(sys.argv[2]) if rank == "1" else 0)
"""

IN_PROCESS = """
import runpy, sys
import paddle.distributed as dist
from paddle.distributed import launch, spawn
import rlaunch.paddle

def attributes():
    modules = {name: module for name, module in sys.modules.items() if name.startswith("paddle.distributed")}
    found = {(of, name): value for of, one in modules.items() for name, value in vars(one).items()}
    return {**found, "launch": launch.__code__, "spawn": spawn.__code__}

def run(number, call, *args, **options):
    sys.argv[1:] = ["--nproc_per_node", "2", "rank.py", f"call-{number}", str(number)]
    try:
        call(*args, **options)
    except SystemExit as end:
        assert end.code == number, end.code

before = attributes()
with rlaunch.paddle.install():
    changed = {key for key, value in attributes().items() if before.get(key) is not value}
    assert {"launch", "spawn", ("paddle.distributed", "spawn")} <= changed, changed
    run(0, dist.launch)
    run(1, sys.modules["paddle.distributed.launch.main"].launch)
    run(2, launch)
    run(3, runpy.run_module, "paddle.distributed.launch", run_name="__main__")
    sys.argv[1:] = ["nowhere.py"]
    try:
        launch()
    except SystemExit as end:
        assert end.code == 66, end.code
after = attributes()
assert [key for key, value in before.items() if after.get(key) is not value] == []
"""


def seen(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in folder.glob("call-*.whole")}


def test_launch_runs_on_rlaunch_and_uninstall_restores_every_attribute(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "main.py").write_text(IN_PROCESS)
    done = subprocess.run(
        [*python("paddle"), "main.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    names = {f"call-{number}.{rank}" for number in range(4) for rank in (0, 1)}
    assert seen(tmp_path) == dict.fromkeys(names, "rlaunch")
    for number in (1, 2, 3):
        assert done.stderr.count(f"\nrank 1 failed: exit code {number}\n") == 1
    assert done.stderr.count("rlaunch: error: training_script nowhere.py: ") == 1


@pytest.mark.parametrize("module", ["launch", "fleet.launch"])
def test_the_command_becomes_rlaunch(enabled: Environment, module: str) -> None:
    (enabled.folder / "rank.py").write_text(RANK)
    command = [
        "python",
        "-m",
        f"paddle.distributed.{module}",
        "--nproc_per_node",
        "2",
        "rank.py",
        "call-0",
        "5",
    ]
    done = enabled.run(*command, status=5, RLAUNCH_INSTALL="paddle")
    assert seen(enabled.folder) == {"call-0.0": "rlaunch", "call-0.1": "rlaunch"}
    assert "rank 1 failed: exit code 5" in done.stderr
