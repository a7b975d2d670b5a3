"""Runs cargo-mutants on the supervisor: one small fault at a time, which its tests have to detect.

The supervisor needs nothing of rlaunch but `src/model`, so a crate of these two folders and of the tests of
the supervisor is made in ``target/mutants``. It compiles in seconds, where rlaunch takes a minute. Further
arguments are those of ``cargo mutants``. Exits with its status: 2 if a fault was missed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATE = ROOT / "target/mutants/rlaunch"
FOLDERS = ("src/model", "src/supervise", "tests/it/supervise")
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
    (CRATE / "src/lib.rs").write_text("pub mod model;\npub mod supervise;\n")
    (CRATE / "tests/it/main.rs").write_text("mod supervise;\n")
    shutil.copy(ROOT / "Cargo.lock", CRATE)
    # In the manifest each has a line of its own.
    lines = (ROOT / "Cargo.toml").read_text().splitlines()
    needed = [line for line in lines if line.partition(" = ")[0] in DEPENDENCIES]
    (CRATE / "Cargo.toml").write_text("\n".join([MANIFEST, *needed]) + "\n")


if __name__ == "__main__":
    make_crate()
    command = ["cargo", "mutants", "--in-place", "-f", "src/supervise/**", "--timeout", "60", *sys.argv[1:]]
    sys.exit(subprocess.run(command, cwd=CRATE, env={**os.environ, **ENVIRONMENT}).returncode)
