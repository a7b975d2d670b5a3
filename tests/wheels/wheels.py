"""Builds the wheels and the sdist, audits and measures them, and runs each in bare systems.

    python tests/wheels/wheels.py --run --follow --twice x86_64-unknown-linux-gnu --write docs/wheels.md

Files go to target/wheels. ``--target`` builds that platform alone; ``--rows`` adds the rows of a run
elsewhere. Exits with 1 if a platform's Rust target is missing, a check fails, a wheel is too large, or two
builds differ.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import systems
import wheel_file

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "target/wheels"
WORK = ROOT / "target/wheels-work"
BIN = Path(sys.executable).parent
# Just above what is reached. The goal was 3 MB.
LIMIT = 4_100_000
COLUMNS = ("size", "audit", "second build", "run")
HEAD = """# Wheels

Written by `make wheels`; do not edit. Sources of {date}, Rust {rust}, zig {zig} as the linker.

Each wheel is for CPython 3.10 and later (`cp310-abi3`). The goal was 3 MB; a wheel of {limit} MB fails. The
code alone is nearly 3 MB when it is compressed. Its largest parts are the supervisor, the reader of Python
stacks, TLS for etcd and the command line:
[What the extension weighs](architecture/README.md#what-the-extension-weighs).

There are no wheels for free-threaded Pythons: 3.13 and 3.14 have no stable ABI, and the engine needs the GIL
(`gil_used = true`). For them pip builds the sdist ({sdist} MB), which needs Rust.

- **audit**: `auditwheel show` names the oldest glibc that has the symbols; a wheel for musl may need musl
  alone. `abi3audit` checks that all functions of Python are in the stable ABI of 3.10, and
  `twine check` checks the metadata. The bill of materials (CycloneDX, in `rlaunch-*.dist-info/sboms/`) lists
  the crates with their licences.
- **second build**: the wheel is built again from the unpacked sdist, in another folder, and compared bit for
  bit.
- **run**: pip installs the wheel in a bare Debian system, which has Python and no compiler. Then
  `tests/wheels/smoke.py` starts two ranks by `rlaunch-run`, `python -m rlaunch` and `rlaunch.spawn`, and
  checks a failure report and the stacks of a job that hangs; under qemu they cannot be read. The system of
  musl is Debian's musl with Alpine's Python. The workflow `wheels.yml` runs all wheels in the images of
  Python, on both processors, in Alpine too.

"""
GET_STARTED = """
## Get started, from the wheel

The commands of the pages of Get started, in fresh environments with the x86-64 wheel instead of the checkout,
on {cores} cores. The output is as the pages show it. PyTorch is installed without its libraries for CUDA. The
second command of a page is the first one that trains or tests. The goal is two minutes from the installation
to its end.
"""


@dataclass(frozen=True)
class Platform:
    """What a wheel is for."""

    machine: str
    libc: str
    tag: str

    @property
    def target(self) -> str:
        """Rust's name."""
        return f"{self.machine}-unknown-linux-{'gnu' if self.libc == 'glibc' else 'musl'}"


PLATFORMS = [
    Platform(machine, libc, tag)
    for libc, tag in (("glibc", "manylinux_2_28"), ("musl", "musllinux_1_2"))
    for machine in ("x86_64", "aarch64")
]


@dataclass
class Result:
    """What became of a platform."""

    platform: Platform
    # A row of the table, by its column.
    cells: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def note(self, column: str, is_passed: bool, cell: str, detail: str = "") -> None:
        self.cells[column] = cell
        print(f"{self.platform.target}: {column}: {cell}", flush=True)
        if not is_passed:
            self.failures.append(f"{self.platform.target}: {column}: {cell}\n{detail}")


def output_of(*command: str | Path, cwd: Path = ROOT) -> str:
    return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def build_env(source: Path, target_dir: Path) -> dict[str, str]:
    """Nothing in it depends on the folder, the user or the time of the build."""
    cargo = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    remap = [(source, "/rlaunch"), (target_dir, "/target"), (cargo / "registry/src", "/crates")]
    # A function that cannot panic needs no table for unwinding; by default each function has one.
    flags = ["-Cforce-unwind-tables=no", *(f"--remap-path-prefix={old}={new}" for old, new in remap)]
    files = [f"-ffile-prefix-map={old}={new}" for old, new in remap]
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "RUSTFLAGS")}
    return env | {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "CARGO_TARGET_DIR": str(target_dir),
        "RUSTFLAGS": " ".join(flags),
        "CFLAGS": " ".join(files),
        "SOURCE_DATE_EPOCH": epoch(),
    }


@functools.cache
def epoch() -> str:
    """The time of the sources: of the commit."""
    return output_of("git", "log", "-1", "--format=%ct")


def build(platform: Platform, source: Path, target_dir: Path, out: Path) -> Path:
    """The wheel of a platform from a folder of sources."""
    command = [
        BIN / "maturin",
        "build",
        "--release",
        "--locked",
        "--quiet",
        "--zig",
        "--target",
        platform.target,
    ]
    options = ["--compatibility", platform.tag, "--auditwheel", "check", "--out", out]
    env = build_env(source, target_dir)
    subprocess.run([*command, *options], cwd=source, env=env, check=True)
    (wheel,) = out.glob(f"*{platform.tag}_{platform.machine}*.whl")
    stamp = datetime.fromtimestamp(int(env["SOURCE_DATE_EPOCH"]), timezone.utc)
    wheel_file.repack(wheel, stamp.isoformat())
    return wheel


def build_sdist() -> Path:
    env = build_env(ROOT, WORK / "target")
    subprocess.run([BIN / "maturin", "sdist", "--out", OUT], cwd=ROOT, env=env, check=True)
    (sdist,) = OUT.glob("*.tar.gz")
    return sdist


def has_std(platform: Platform) -> bool:
    return Path(output_of("rustc", "--print", "target-libdir", "--target", platform.target)).exists()


def try_to_build(result: Result) -> Path | None:
    target = result.platform.target
    if not has_std(result.platform):
        result.note("size", False, f"not built: `rustup target add {target}`")
        return None
    begun = time.monotonic()
    try:
        wheel = build(result.platform, ROOT, WORK / "target", OUT)
    except subprocess.CalledProcessError as error:
        result.note("size", False, f"not built: exit status {error.returncode}")
        return None
    print(f"{wheel.name}: built in {time.monotonic() - begun:.0f} s", flush=True)
    return wheel


def audit(result: Result, wheel: Path) -> None:
    """The wheel's tags against its symbols, and its metadata."""
    # musl is searched nowhere: a libc.so of this machine is a text for the linker of glibc.
    (WORK / "empty").mkdir(exist_ok=True, parents=True)
    searched = ["--ldpaths", WORK / "empty"] if result.platform.libc == "musl" else []
    commands = {
        "auditwheel": [BIN / "auditwheel", "show", *searched, wheel],
        "abi3audit": [BIN / "abi3audit", "--strict", "--report", wheel],
        "twine": [BIN / "twine", "check", "--strict", wheel],
    }
    found: list[str] = []
    for name, command in commands.items():
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        is_passed = ran.returncode == 0
        if name == "auditwheel" and searched:
            # zig's name of musl. auditwheel knows Alpine's alone, and musl takes itself for both.
            needed = re.findall(r'"(\S+\.so\S*)": null', ran.stdout)
            is_passed = is_passed and needed == ["libc.so"]
            found.append(
                "auditwheel: needs only the C library, musl" if is_passed else f"auditwheel: needs {needed}"
            )
        elif name == "auditwheel":
            # The oldest platform whose symbols suffice.
            least = re.findall(r'platform tag:\s+"?([a-z]+_\d+_\d+)_', ran.stdout)
            is_passed = is_passed and bool(least) and version(least[0]) <= version(result.platform.tag)
            found.append(f"auditwheel: {least[0] if least else 'failed'}")
        else:
            found.append(f"{name}: {'passed' if is_passed else 'failed'}")
        if not is_passed:
            result.failures.append(f"{result.platform.target}: {name}\n{ran.stdout}")
    crates = wheel_file.listed_crates(wheel)
    found.append(f"bill of materials: {crates} crates")
    if crates == 0:
        result.failures.append(f"{result.platform.target}: no bill of materials")
    result.note("audit", True, ", ".join(found))


def version(tag: str) -> tuple[int, int]:
    major, minor = tag.split("_")[1:3]
    return int(major), int(minor)


def measure(result: Result, wheel: Path) -> None:
    size = wheel.stat().st_size
    result.note("size", size < LIMIT, f"{size / 1e6:.2f} MB", f"{size} bytes of {LIMIT}")


def compare(result: Result, wheel: Path, sdist: Path) -> None:
    """Builds again, from the sdist, elsewhere."""
    folder = WORK / f"again-{result.platform.target}"
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    again = build(result.platform, source, folder / "target", folder / "out")
    first, second = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, again))
    cell = f"equal, sha256 {first[:12]}…" if first == second else "differs"
    result.note("second build", first == second, cell, f"{wheel} {first}\n{again} {second}")


def run(result: Result, wheel: Path) -> None:
    """A row's cell of the systems in which the wheel ran."""
    cells = []
    platform = result.platform
    for system in systems.SYSTEMS:
        if (system.machine, system.libc) != (platform.machine, platform.libc):
            continue
        missing = systems.missing_for(system)
        if missing:
            cells.append(f"{system.name}: not run, needs {missing}")
            continue
        is_passed, seen = systems.smoke(system, wheel, WORK)
        print(seen, flush=True)
        interpreter = seen.partition(",")[0]
        emulated = " under qemu" if system.is_emulated else ""
        cells.append(f"{system.name}{emulated}, {interpreter}: {seen.rstrip().rpartition(chr(10))[2]}")
        if not is_passed:
            result.failures.append(f"{result.platform.target}: {system.name}\n{seen}")
    result.note("run", True, "; ".join(cells) or "not run here; wheels.yml runs it in Alpine")


def save_rows(results: list[Result]) -> None:
    rows = {result.platform.target: result.cells for result in results}
    (OUT / "rows.json").write_text(json.dumps({"sources": epoch(), "rows": rows}))


def read_rows(elsewhere: list[Path]) -> dict[str, dict[str, str]]:
    """The rows of this run and of runs elsewhere, as on a machine of another processor."""
    rows: dict[str, dict[str, str]] = {}
    for path in (*elsewhere, OUT / "rows.json"):
        # A run that goes on beside this one has none yet.
        content = json.loads(path.read_text()) if path.exists() else {"sources": epoch(), "rows": {}}
        if content["sources"] != epoch():
            raise ValueError(f"{path}: of other sources")
        rows |= content["rows"]
    return rows


def page(rows: dict[str, dict[str, str]], sdist: Path, times: dict[str, list[tuple[str, float]]]) -> str:
    """The page, in Markdown."""
    lines = [
        HEAD.format(
            date=datetime.fromtimestamp(int(epoch()), timezone.utc).date(),
            rust=output_of("rustc", "--version").split()[1],
            zig=output_of(sys.executable, "-m", "ziglang", "version"),
            sdist=f"{sdist.stat().st_size / 1e6:.2f}",
            limit=f"{LIMIT / 1e6:.1f}",
        ),
        "| platform | wheel's tag | " + " | ".join(COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 2) + "|",
    ]
    for platform in PLATFORMS:
        if platform.target not in rows:
            continue
        cells = [rows[platform.target].get(column, "-") for column in COLUMNS]
        lines.append(f"| {platform.machine}, {platform.libc} | `{platform.tag}` | {' | '.join(cells)} |")
    lines += [GET_STARTED.format(cores=os.cpu_count())]
    head = ["| page | command | seconds | since the start |", "|---|---|---|---|"]
    lines += head if times else ["Not followed in this run."]
    for name, commands in times.items():
        ends = itertools.accumulate(seconds for _, seconds in commands)
        for (command, seconds), end in zip(commands, ends, strict=True):
            lines.append(f"| {name} | `{command}` | {seconds:.1f} | {end:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    targets = [platform.target for platform in PLATFORMS]
    parser.add_argument("--target", action="append", choices=targets, help="default: all of them")
    parser.add_argument(
        "--twice", action="append", choices=targets, help="build this one again from the sdist, and compare"
    )
    parser.add_argument("--run", action="store_true", help="install and run in bare Debian systems (root)")
    parser.add_argument("--follow", action="store_true", help="follow the pages of Get started with a wheel")
    parser.add_argument("--write", type=Path, help="the page with the table")
    parser.add_argument(
        "--rows", type=Path, action="append", default=[], help="target/wheels/rows.json of a run elsewhere"
    )
    given = parser.parse_args()
    times: dict[str, list[tuple[str, float]]] = {}
    shutil.rmtree(OUT, ignore_errors=True)
    sdist = build_sdist()
    results = []
    for platform in PLATFORMS:
        if given.target and platform.target not in given.target:
            continue
        result = Result(platform)
        results.append(result)
        wheel = try_to_build(result)
        if wheel is not None:
            measure(result, wheel)
            audit(result, wheel)
            if platform.target in (given.twice or ()):
                compare(result, wheel, sdist)
            if given.run:
                run(result, wheel)
            if given.follow and platform == PLATFORMS[0]:
                # Its modules are those of the tests, which only an environment for the tests has.
                import get_started

                times = {page: get_started.follow(page, wheel) for page in get_started.PAGES}
        # Each takes many minutes, so what is known is kept.
        save_rows(results)
        if given.write:
            given.write.write_text(page(read_rows(given.rows), sdist, times))
    failures = [failure for result in results for failure in result.failures]
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
