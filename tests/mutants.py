"""Runs cargo-mutants on the supervisor and on what decides whether a process belongs to the job.

cargo-mutants makes one small fault at a time, which the tests have to detect. The two need nothing of rlaunch
but `src/model` and `src/sys`, so a crate of these folders and of the supervisor's tests is made in
``target/mutants``. It compiles in seconds, where rlaunch takes a minute. Further arguments are those of
``cargo mutants``. Exits with its status: 2 if a fault was missed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATE = ROOT / "target/mutants/rlaunch"
FOLDERS = ("src/model", "src/supervise", "src/sys", "tests/it/supervise")
MUTATED = ("src/supervise/**", "src/sys/process/tree.rs", "src/sys/process/procfs/**")
DEPENDENCIES = ("libc", "nix", "serde", "serde_json", "thiserror", "fastrand", "proptest")
MANIFEST = """[package]
name = "rlaunch"
edition = "2024"
[workspace]
[profile.test]
opt-level = 1
[dependencies]"""
# Fewer histories than `cargo test` takes, and none is made shorter.
ENVIRONMENT = {
    "PROPTEST_CASES": "1000",
    "PROPTEST_MAX_SHRINK_ITERS": "0",
    "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "true",
}


def make_crate() -> None:
    shutil.rmtree(CRATE, ignore_errors=True)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, CRATE / folder)
    (CRATE / "src/lib.rs").write_text("pub mod model;\npub mod supervise;\npub mod sys;\n")
    (CRATE / "tests/it/main.rs").write_text("mod supervise;\n")
    shutil.copy(ROOT / "Cargo.lock", CRATE)
    # In the manifest each has a line of its own.
    lines = (ROOT / "Cargo.toml").read_text().splitlines()
    needed = [line for line in lines if line.partition(" = ")[0] in DEPENDENCIES]
    (CRATE / "Cargo.toml").write_text("\n".join([MANIFEST, *needed]) + "\n")


if __name__ == "__main__":
    make_crate()
    files = [argument for pattern in MUTATED for argument in ("-f", pattern)]
    command = ["cargo", "mutants", "--in-place", *files, "--timeout", "60", *sys.argv[1:]]
    sys.exit(subprocess.run(command, cwd=CRATE, env={**os.environ, **ENVIRONMENT}).returncode)
