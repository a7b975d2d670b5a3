"""Runs the suite as plain tests and as tests on ranks, in an environment with one plugin, and compares."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from plugin_list import Plugin

ROOT = Path(__file__).resolve().parents[2]
SUITE = Path(__file__).parent / "suite"
ENVIRONMENTS = ROOT / "target" / "plugins"
LIMIT = 600.0
CLEARED = ("PYTEST_", "COV_", "GITHUB_", "RLAUNCH_", "PYTHON", "CI", "BUILD_NUMBER")

Outcomes = dict[str, list[str]]


@dataclass
class Session:
    """`outcomes`: of each test, those that were reported. `reasons`: the text of each failure."""

    status: int
    outcomes: Outcomes
    reasons: dict[str, str]
    output: str

    def counts(self) -> str:
        counted = Counter(outcome for outcomes in self.outcomes.values() for outcome in outcomes)
        return ", ".join(f"{number} {outcome}" for outcome, number in sorted(counted.items()))


@dataclass
class Comparison:
    plugin: Plugin
    options: str
    plain: Session
    ranks: Session

    def differences(self) -> list[str]:
        """What differs between the two sessions, a line each."""
        lines = []
        if self.plain.status != self.ranks.status:
            lines.append(f"exit status: {self.plain.status}, on ranks {self.ranks.status}")
        for name in sorted({*self.plain.outcomes, *self.ranks.outcomes}):
            plain, ranks = (session.outcomes.get(name, ["no result"]) for session in (self.plain, self.ranks))
            if plain != ranks:
                reason = self.ranks.reasons.get(name, "").replace("\n", " ")[-300:]
                lines.append(f"{name}: {', '.join(plain)}, on ranks {', '.join(ranks)} ({reason})")
        return lines


def install(plugin: Plugin) -> Path:
    """Makes an environment with pytest, the plugin and the rlaunch of this checkout; returns its Python."""
    folder = ENVIRONMENTS / plugin.name
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        uv = [str(Path(sys.executable).with_name("uv"))]
        subprocess.run([*uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
        packages = ["pytest>=9,<10", plugin.name]
        subprocess.run([*uv, "pip", "install", "--quiet", "--python", python, *packages], check=True)
        packages_of = [sys.executable, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        ours = Path(subprocess.check_output(packages_of, text=True).strip())
        packages_of[0] = str(python)
        theirs = Path(subprocess.check_output(packages_of, text=True).strip())
        # As maturin installs it here: links to the checkout, and the entry point.
        for path in ours.glob("rlaunch*"):
            target = theirs / path.name
            shutil.copytree(path, target) if path.is_dir() else shutil.copy(path, target)
        (theirs / "rlaunch.pth").write_text(f"{ROOT / 'python'}\n")
        done.touch()
    return python


def version(python: Path, package: str) -> str:
    source = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.check_output([python, "-c", source], text=True).strip()


def compare(plugin: Plugin, in_use: bool, folder: Path) -> Comparison:
    """Both sessions, with the plugin merely installed or with its main feature in use.

    Ranks are forked from a preloaded process, which takes a fraction of the time. Beside plugins in which
    faults are likely they are new interpreters in the first case.
    """
    modes = (("plain", False), ("ranks", True))
    sessions = [_run(plugin, in_use, folder / name, ranks) for name, ranks in modes]
    return Comparison(plugin, plugin.options if in_use else "", *sessions)


def _run(plugin: Plugin, in_use: bool, folder: Path, ranks: bool) -> Session:
    python = install(plugin)
    shutil.copytree(SUITE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    if plugin.tests and in_use:
        (folder / "test_plugin.py").write_text(plugin.tests)
    notes = folder.with_suffix(".notes")
    notes.touch()
    variables = {name: text for name, text in os.environ.items() if not name.startswith(CLEARED)}
    variables |= {"NOTES": str(notes), "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": ""}
    if ranks:
        variables["RANKS"] = "1"
    options = ["-q", "-ra", f"--basetemp={folder.with_suffix('.tmp')}"]
    ini = "[pytest]\n" if plugin.likely and not in_use else "[pytest]\nranks_preload = json\n"
    if in_use:
        ini += plugin.ini
        for name, text in plugin.files.items():
            (folder / name).write_text(text)
        variables |= plugin.variables
        options += shlex.split(plugin.options)
        if "HANGS" in plugin.variables:
            test = folder / "test_outcomes.py"
            source = test.read_text()
            test.write_text(source.replace("def test_hangs", "@pytest.mark.timeout(4)\ndef test_hangs"))
    (folder / "pytest.ini").write_text(ini)
    done = subprocess.run(
        [python, "-m", "pytest", *options],
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
    )
    outcomes: Outcomes = {}
    reasons: dict[str, str] = {}
    for line in notes.read_text().splitlines():
        name, outcome, reason = json.loads(line)
        outcomes.setdefault(name, []).append(outcome)
        reasons[name] = reason
    return Session(done.returncode, outcomes, reasons, done.stdout)
