"""Runs cargo-mutants on the supervisor, and on what decides whether a process belongs to the job.

cargo-mutants makes one small fault at a time, which the tests have to detect. Each of the two needs nothing
of rlaunch but `src/model`, so a crate of both and their tests is made in ``target/mutants``. It compiles in
seconds, where rlaunch takes a minute. Further arguments are those of ``cargo mutants``; ``--part`` takes one
of the two alone. Exits with 2 if a fault was missed, and with cargo-mutants' status if it failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATES = ROOT / "target/mutants"
DEPENDENCIES = ("libc", "nix", "serde", "serde_json", "thiserror", "fastrand", "proptest")
MANIFEST = """[package]
name = "rlaunch"
edition = "2024"
[workspace]
[profile.test]
opt-level = {opt_level}
[dependencies]"""
# Fewer histories than `cargo test` takes, and none is made shorter.
ENVIRONMENT = {
    "PROPTEST_CASES": "1000",
    "PROPTEST_MAX_SHRINK_ITERS": "0",
    "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "true",
}


@dataclass(frozen=True)
class Part:
    """What is mutated, and its tests."""

    # Modules of the crate.
    modules: tuple[str, ...]
    mutated: tuple[str, ...]
    # The folder of its tests in tests/it; the unit tests are in the modules.
    tests: str | None
    # The tests of the supervisor play thousands of histories.
    opt_level: int
    # Some faults have the tests wait for ever.
    timeout_seconds: int


PARTS = {
    "supervise": Part(("model", "supervise"), ("src/supervise/**",), "supervise", 1, 60),
    "membership": Part(
        ("model", "sys"), ("src/sys/process/tree.rs", "src/sys/process/procfs/**"), None, 0, 15
    ),
}


def make_crate(part: Part, crate: Path) -> None:
    shutil.rmtree(crate, ignore_errors=True)
    for module in part.modules:
        shutil.copytree(ROOT / "src" / module, crate / "src" / module)
    (crate / "src/lib.rs").write_text("".join(f"pub mod {module};\n" for module in part.modules))
    if part.tests:
        shutil.copytree(ROOT / "tests/it" / part.tests, crate / "tests/it" / part.tests)
        (crate / "tests/it/main.rs").write_text(f"mod {part.tests};\n")
    shutil.copy(ROOT / "Cargo.lock", crate)
    # In the manifest each has a line of its own.
    lines = (ROOT / "Cargo.toml").read_text().splitlines()
    needed = [line for line in lines if line.partition(" = ")[0] in DEPENDENCIES]
    (crate / "Cargo.toml").write_text("\n".join([MANIFEST.format(opt_level=part.opt_level), *needed]) + "\n")


def run(name: str, more: list[str]) -> int:
    part, crate = PARTS[name], CRATES / name / "rlaunch"
    make_crate(part, crate)
    files = [argument for pattern in part.mutated for argument in ("-f", pattern)]
    command = ["cargo", "mutants", "--in-place", *files, "--timeout", str(part.timeout_seconds), *more]
    return subprocess.run(command, cwd=crate, env={**os.environ, **ENVIRONMENT}).returncode


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, action="append", help="default: both")
    chosen, more = parser.parse_known_args()
    return max(run(name, more) for name in chosen.part or PARTS)


if __name__ == "__main__":
    sys.exit(main())
