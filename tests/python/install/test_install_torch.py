"""RLAUNCH_INSTALL in an environment: torchrun, real accelerate, and its subprocesses, on rlaunch."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from effort import each
from environments import IN_RANKS, Environment
from launching import free_ports, until

# Imports of torch and accelerate, several in each test.
pytestmark = pytest.mark.timeout(300)

ACCELERATE = "import sys\nfrom accelerate.commands.{} import main\nsys.exit(main())\n"
CONFIG = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: 'no'
num_machines: 1
num_processes: 2
use_cpu: true
"""
FAILING = """
import os, sys
if os.environ["RANK"] == "1":
    sys.exit("no disk")
import time
time.sleep(600)
"""
# With the options of CONFIG.
THROUGH_TORCH_MAIN = ("python", "-m", "rlaunch.torch", "accelerate", "launch", "train.py")


@pytest.fixture
def accelerate(place: Environment) -> Environment:
    """With accelerate's commands and configuration."""
    place.add_command("accelerate", ACCELERATE.format("accelerate_cli"))
    place.add_command("accelerate-launch", ACCELERATE.format("launch"))
    config = place.folder / "hf" / "accelerate" / "default_config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(CONFIG)
    return place


def seen(place: Environment) -> dict[str, str]:
    return {path.name: path.read_text() for path in place.folder.glob("rank.*")}


def test_accelerate_test_runs_on_rlaunch(accelerate: Environment, enabled: Environment) -> None:
    """It starts accelerate-launch as a subprocess."""
    # Debian's Python has a sitecustomize of its own.
    (enabled.site / "in_ranks.py").write_text(IN_RANKS)
    (enabled.site / "zz_in_ranks.pth").write_text("import in_ranks\n")
    done = enabled.run("accelerate", "test", RLAUNCH_INSTALL="1")
    assert "Test is a success!" in done.stdout
    assert seen(enabled) == {"rank.0": "rlaunch", "rank.1": "rlaunch"}


def test_accelerate_launch_reports_a_failing_script_once(
    accelerate: Environment, enabled: Environment
) -> None:
    (enabled.folder / "train.py").write_text(FAILING)
    done = enabled.run("accelerate", "launch", "train.py", status=1, RLAUNCH_INSTALL="torch")
    check_report(done)


def test_a_program_of_rlaunch_torch_reports_a_failing_script_once(accelerate: Environment) -> None:
    (accelerate.folder / "train.py").write_text(FAILING)
    check_report(accelerate.run(*THROUGH_TORCH_MAIN, status=1))


def check_report(done: subprocess.CompletedProcess[str]) -> None:
    assert done.stderr.count("train.py FAILED") == 1
    assert "rank 0 was stopped because of it" in done.stderr
    assert done.stderr.rpartition("FAILED")[2].count("no disk") == 1
    assert "Traceback" not in done.stderr


WAITING = """
import os, signal
open(f"ready.{os.environ['RANK']}", "w").close()
signal.pause()
"""


def test_ctrl_c_ends_a_program_of_rlaunch_torch_without_a_traceback(accelerate: Environment) -> None:
    (accelerate.folder / "train.py").write_text(WAITING)
    with accelerate.start(*THROUGH_TORCH_MAIN, start_new_session=True) as program:
        for rank in (0, 1):
            until((accelerate.folder / f"ready.{rank}").exists, f"rank {rank}")
        os.killpg(program.pid, signal.SIGINT)  # As a terminal does.
        _, stderr = program.communicate(timeout=60)
    assert program.returncode == -signal.SIGINT
    assert "stopped by signal SIGINT" in stderr
    assert "Traceback" not in stderr


NOTEBOOK = """
import os, sys

def train(name):
    with open(f"{name}.{os.environ['RANK']}", "w") as file:
        file.write("rlaunch" if "RLAUNCH_RANK_KEY" in os.environ else "another launcher")
    if "fails" in sys.argv:
        raise ValueError("no disk")

if __name__ == "__main__":
    from accelerate import notebook_launcher
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        notebook_launcher(train, ("rank",), num_processes=2, use_port=sys.argv[1])
    except ChildFailedError as error:
        print(error.get_first_failure()[1].message["message"])
"""


def test_a_notebook_launcher_runs_on_rlaunch(enabled: Environment) -> None:
    (enabled.folder / "notebook.py").write_text(NOTEBOOK)
    port = str(free_ports(1))
    done = enabled.run("python", "notebook.py", port, "fails", RLAUNCH_INSTALL="torch")
    assert done.stdout.splitlines()[-1] == "ValueError: no disk"
    assert "FAILED" not in done.stderr, "the exception has the report"
    assert set(seen(enabled).values()) == {"rlaunch"}


TORCHRUN = "import sys\nfrom torch.distributed.run import main\nsys.exit(main())\n"


@each("module", [pytest.param(False, id="command"), pytest.param(True, id="module")])
def test_torchrun_becomes_rlaunch(enabled: Environment, module: bool) -> None:
    """Its exit status is that of the failed rank."""
    enabled.add_command("torchrun", TORCHRUN)
    command = ["python", "-m", "torch.distributed.run"] if module else ["torchrun"]
    options = ["--nproc-per-node=2", "--no-python", "sh", "-c", "exit ${RLAUNCH_RANK_KEY:+7}"]
    done = enabled.run(*command, *options, status=7, RLAUNCH_INSTALL="1")
    assert done.stderr.count("sh FAILED") == 1
    assert "Traceback" not in done.stderr


INTERRUPTED = """
import torch.distributed.run as torchrun

torchrun.run(torchrun.parse_args(["--no-python", "--", "sh", "-c", "echo > ready; exec sleep 600"]))
"""


def test_ctrl_c_ends_a_program_without_a_traceback(enabled: Environment) -> None:
    (enabled.folder / "program.py").write_text(INTERRUPTED)
    with enabled.start("python", "program.py", RLAUNCH_INSTALL="1") as program:
        until(lambda: (enabled.folder / "ready").exists(), "the rank")
        program.send_signal(signal.SIGINT)
        _, stderr = program.communicate(timeout=60)
    assert program.returncode == -signal.SIGINT
    assert "stopped by signal SIGINT" in stderr
    assert "Traceback" not in stderr


# In the place of accelerate-launch: what it would be started with.
LAUNCHER = "#!/bin/sh\necho install=$RLAUNCH_INSTALL.\n"


def run_through_torch_main(place: Environment, **changes: str) -> tuple[str, str]:
    path = place.bin / "accelerate-launch"
    path.write_text(LAUNCHER)
    path.chmod(0o755)
    done = place.run("python", "-m", "rlaunch.torch", "accelerate", "test", **changes)
    return done.stdout, done.stderr


NOTICE = "rlaunch: accelerate-launch runs as a subprocess, and not on rlaunch"


def test_rlaunch_torch_reaches_subprocesses_where_that_is_enabled(enabled: Environment) -> None:
    stdout, stderr = run_through_torch_main(enabled, RLAUNCH_INSTALL="paddle")
    assert "install=paddle,torch." in stdout
    assert "rlaunch:" not in stderr


def test_rlaunch_torch_says_that_subprocesses_are_not_reached(place: Environment, tmp_path: Path) -> None:
    stdout, stderr = run_through_torch_main(place)
    assert "install=." in stdout
    assert [line for line in stderr.splitlines() if line.startswith("rlaunch:")] == [
        f"{NOTICE}; to change that, run `python -m rlaunch.install enable` once"
    ]
