"""The package: the cost of its import, the modules that the launcher loads, its sdist and wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from effort import FULL, left_to_ci
from paths import ROOT

FRAMEWORKS = {"paddle", "torch", "jax", "numpy", "tensorflow"}


def run(*command: str, cwd: Path = ROOT, **environ: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def modules_after(statement: str) -> set[str]:
    return set(run(sys.executable, "-c", f"{statement}\nimport sys; print(*sys.modules)").split())


def test_import_pulls_in_no_framework_and_nothing_heavy() -> None:
    loaded = modules_after("import rlaunch") - modules_after("pass")
    assert "rlaunch" in loaded
    assert "rlaunch._lib" not in loaded  # Half of the time that all of it would take.
    assert not loaded & FRAMEWORKS
    assert not loaded & {"multiprocessing", "typing", "logging", "subprocess", "json", "socket", "asyncio"}
    assert not loaded & {"dataclasses", "threading", "rlaunch.report"}


def test_resolving_backend_and_ranks_pulls_in_no_framework() -> None:
    code = "import rlaunch; rlaunch.spawn(print, nprocs=0); rlaunch.spawn(print, nprocs=1)"
    assert not modules_after(code) & FRAMEWORKS


def test_the_launcher_loads_no_framework(tmp_path: Path) -> None:
    """Asked of the live launcher: which files of which packages it has mapped or imported."""
    script = tmp_path / "parent.py"
    script.write_text("import os; print(open(f'/proc/{os.getppid()}/maps').read())")
    maps = run(sys.executable, "-m", "rlaunch", "--log_dir", str(tmp_path / "log"), str(script))
    assert "rlaunch/_lib" in maps
    assert not [name for name in FRAMEWORKS if f"/{name}/" in maps]
    imports = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "rlaunch", "--version"],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    names = {line.rsplit("|", 1)[1].strip() for line in imports.splitlines() if "|" in line}
    assert "rlaunch" in names
    assert not names & FRAMEWORKS


def test_versions_agree() -> None:
    found = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert found is not None
    cargo = found[1]
    out = run(sys.executable, "-c", "import rlaunch; print(rlaunch.__version__)")
    assert out.strip() == cargo
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert {"Unreleased", cargo} & set(headings)


def test_the_package_depends_on_nothing() -> None:
    assert "\ndependencies = []\n" in (ROOT / "pyproject.toml").read_text()


def unpack(archive: Path, folder: Path) -> Path:
    """The sources, in a folder that stays. Only files that differ are written, as cargo compares times."""
    fresh = archive.parent / "fresh"
    # Python before 3.10.12 and 3.11.4 has no filters.
    options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as tar:
        tar.extractall(fresh, **options)  # type: ignore[arg-type]
    [top] = fresh.iterdir()
    for file in [path for path in folder.rglob("*") if path.is_file()]:
        if not (top / file.relative_to(folder)).is_file():
            file.unlink()
    for file in [path for path in top.rglob("*") if path.is_file()]:
        to = folder / file.relative_to(top)
        if not to.is_file() or to.read_bytes() != file.read_bytes():
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(file.read_bytes())
    return folder


@left_to_ci
@pytest.mark.timeout(1800)
def test_the_sdist_builds_a_wheel_with_everything_in_it(tmp_path: Path) -> None:
    maturin = str(Path(sys.executable).with_name("maturin"))
    run(maturin, "sdist", "--out", str(tmp_path))
    [archive] = tmp_path.glob("*.tar.gz")
    # Dependencies that are built already are reused. What is in a wheel is the same in each profile, and to
    # optimize rlaunch once more takes minutes; without, it is a minute of CPU time.
    profile = ["--release"] if FULL else []
    target = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))
    source = unpack(archive, Path(target) / "sdist")
    wheels = tmp_path / "wheels"
    run(maturin, "build", *profile, "--locked", "--out", str(wheels), cwd=source, CARGO_TARGET_DIR=target)
    [wheel] = wheels.glob("*.whl")
    assert "-cp310-abi3-" in wheel.name
    names = set(zipfile.ZipFile(wheel).namelist())
    python = ROOT / "python"
    # Beside the package: what ranks run when their Python starts.
    at_start = {f"data/purelib/{path.name}" for path in (python / "data/purelib").iterdir() if path.is_file()}
    sources = {
        str(path.relative_to(python)) for path in (python / "rlaunch").rglob("*.py*") if path.suffix != ".pyc"
    }
    assert sources | {"rlaunch/_lib.abi3.so", "rlaunch/py.typed"} <= names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    ours = {name for name in names if ".dist-info/" not in name}
    ours = {re.sub(r"^rlaunch-[^/]*\.data/", "data/", name) for name in ours}
    assert ours == sources | at_start | {"rlaunch/_lib.abi3.so", "rlaunch/py.typed"}, "files of no use"
    library = zipfile.ZipFile(wheel).read("rlaunch/_lib.abi3.so")
    assert b"PyInit__lib" in library
    assert b"_test_hooks" not in library, "the wheel has the tests' hooks"


@pytest.mark.parametrize(
    ("module", "seed"),
    [
        ("_process/signal_mask.py", ""),
        ("_process/signal_mask.py", "from .._spawn import results"),
        ("_spawn/results.py", "from . import worker"),
    ],
)
def test_import_linter_finds_seeded_faults(tmp_path: Path, module: str, seed: str) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    bare = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "python", tmp_path / "python", ignore=bare)
    with (tmp_path / "python/rlaunch" / module).open("a") as file:
        file.write(f"{seed}\n")
    linter = Path(sys.executable).parent / "lint-imports"
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "python")}
    done = subprocess.run(
        [linter, "--no-cache"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == (1 if seed else 0), done.stdout
    assert ("BROKEN" in done.stdout) == bool(seed)


def test_help_of_the_module_for_torch_fits_80_columns() -> None:
    lines = run(sys.executable, "-m", "rlaunch.torch", "--help").splitlines()
    assert lines
    assert [line for line in lines if len(line) > 80] == []
