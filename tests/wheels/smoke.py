"""Jobs of two ranks with an installed rlaunch and nothing but the standard library, for bare systems.

Prints a line for each check, and at last how many passed. Exits with 1 if one failed.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import rlaunch

BIN = Path(sys.executable).parent
TORCHRUN_FORM = [str(BIN / "rlaunch-run"), "--nproc-per-node", "2"]
PADDLE_FORM = [sys.executable, "-m", "rlaunch", "--nproc_per_node", "2"]
# Where qemu emulates another processor, the memory of a process is not where its maps say.
IS_EMULATED = "--emulated" in sys.argv

RANK = """
import os
print("rank", os.environ["{rank}"], "of", os.environ["{world}"], flush=True)
"""
FAILING = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("the smoke test fails here")
time.sleep(600)
"""
HANGING = """
import time
def wait_in_smoke_test():
    print("waits", flush=True)
    time.sleep(600)
wait_in_smoke_test()
"""


def run(command: list[str], program: str, folder: Path) -> tuple[int, str]:
    (folder / "program.py").write_text(program)
    # A file, because a pipe would stay open as long as any process of the job.
    with (folder / "output").open("w+") as output:
        status = subprocess.run(
            [*command, "program.py"], cwd=folder, stdout=output, stderr=output, timeout=300
        )
        output.seek(0)
        return status.returncode, output.read()


def check_torchrun_form(folder: Path) -> None:
    status, output = run(TORCHRUN_FORM, RANK.format(rank="RANK", world="WORLD_SIZE"), folder)
    assert status == 0, output
    assert {"0", "1"} == set(re.findall(r"rank (\d) of 2", output)), output


def check_paddle_form(folder: Path) -> None:
    program = RANK.format(rank="PADDLE_TRAINER_ID", world="PADDLE_TRAINERS_NUM")
    status, output = run(PADDLE_FORM, program, folder)
    assert status == 0, output
    logs = "".join(path.read_text() for path in sorted(folder.glob("log/workerlog.*")))
    assert {"0", "1"} == set(re.findall(r"rank (\d) of 2", logs)), logs


def check_failure_report(folder: Path) -> None:
    status, output = run(TORCHRUN_FORM, FAILING, folder)
    assert status == 1, output
    assert re.search(r"rank +: 1 \(local_rank: 1\)", output), output
    assert "ValueError: the smoke test fails here" in output, output


def square(offset: int) -> int:
    return (rlaunch.get_rank() + offset) ** 2


def check_spawn(folder: Path) -> None:
    assert rlaunch.spawn(square, args=(10,), nprocs=2).results() == [100, 121]


def check_stacks(folder: Path) -> None:
    """Starts a job that hangs, reads its stacks and stops it."""
    (folder / "program.py").write_text(HANGING)
    with (folder / "output").open("w+") as output:
        job = subprocess.Popen([*TORCHRUN_FORM, "program.py"], cwd=folder, stdout=output, stderr=output)
        deadline = time.monotonic() + 120
        try:
            while (folder / "output").read_text().count("waits") < 2:
                assert job.poll() is None, "the job has ended"
                assert time.monotonic() < deadline, "the ranks do not start"
                time.sleep(0.1)
            stacks = control("stacks", str(job.pid))
            if not IS_EMULATED:
                assert "ranks 0, 1 (2 of 2): in wait_in_smoke_test" in stacks, stacks
        finally:
            control("stop", str(job.pid))
            job.wait(60)


def control(*command: str) -> str:
    done = subprocess.run([str(BIN / "rlaunch"), *command], capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


CHECKS: list[Callable[[Path], None]] = [
    check_torchrun_form,
    check_paddle_form,
    check_failure_report,
    check_spawn,
    check_stacks,
]


def main() -> int:
    libc = " ".join(platform.libc_ver()).strip() or "musl"
    print(f"Python {platform.python_version()}, {platform.machine()}, {libc}", flush=True)
    passed = 0
    for check in CHECKS:
        name = check.__name__.removeprefix("check_")
        with tempfile.TemporaryDirectory(prefix="smoke-") as folder:
            try:
                check(Path(folder))
            except Exception as error:
                print(f"{name}: failed: {error}", flush=True)
            else:
                print(f"{name}: passed", flush=True)
                passed += 1
    print(f"{passed} passed, {len(CHECKS) - passed} failed")
    return 0 if passed == len(CHECKS) else 1


if __name__ == "__main__":
    sys.exit(main())
