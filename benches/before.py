"""Builds the rlaunch of another commit, for the bench to measure beside this one: `make bench BEFORE=HEAD~1`.

Its environment in `target/before` has links to all other packages of this one, so that both interpreters
start alike. Prints the path of its interpreter.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "target" / "before"


def build(commit: str) -> Path:
    """Builds the commit's wheel as `make bench` builds this one's, but for the hooks of the tests."""
    source, wheels = FOLDER / commit / "source", FOLDER / commit / "wheel"
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
    maturin = Path(sys.executable).with_name("maturin")
    command = [maturin, "build", "--release", "--locked", "--quiet", "--out", wheels]
    env = {**os.environ, "CARGO_TARGET_DIR": str(FOLDER / "build")}
    subprocess.run(command, cwd=source, env=env, stdout=sys.stderr, check=True)
    return next(wheels.glob("*.whl"))


def make_environment(folder: Path) -> Path:
    """Makes an environment without rlaunch; returns its folder of packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    here = Path(sysconfig.get_path("purelib"))
    packages = folder / here.relative_to(sys.prefix)
    for package in here.iterdir():
        if not package.name.startswith(("rlaunch", "__pycache__")):
            (packages / package.name).symlink_to(package)
    return packages


def main() -> int:
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "--verify", f"{sys.argv[1]}^{{commit}}"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        return error.returncode  # git has said why.
    commit = found.stdout.strip()
    python = FOLDER / commit / "environment" / "bin" / "python"
    is_complete = FOLDER / commit / "complete"
    if not is_complete.exists():
        shutil.rmtree(FOLDER / commit, ignore_errors=True)
        wheel = build(commit)
        packages = make_environment(FOLDER / commit / "environment")
        uv = Path(sys.executable).with_name("uv")
        install = [uv, "pip", "install", "--quiet", "--no-deps", "--target", packages, wheel]
        subprocess.run(install, stdout=sys.stderr, check=True)
        is_complete.touch()
    print(python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
