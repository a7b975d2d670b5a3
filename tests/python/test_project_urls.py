"""What PyPI shows: each link of the README leads to a file, by tests/wheels/project_urls.py."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt
from paths import ROOT

ADDRESS = "https://github.com/Someone/rlaunch"
SCRIPT = ROOT / "tests/wheels/project_urls.py"


def copies(folder: Path) -> tuple[Path, Path]:
    readme, project = (Path(shutil.copy(ROOT / name, folder)) for name in ("README.md", "pyproject.toml"))
    return readme, project


def write_urls(folder: Path, address: str = ADDRESS) -> int:
    command = [sys.executable, SCRIPT, address, "--folder", folder]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode


def test_each_link_of_the_readme_is_absolute_and_leads_to_a_file(tmp_path: Path) -> None:
    readme, _ = copies(tmp_path)
    assert write_urls(tmp_path, "https://github.com/other/rlaunch") == write_urls(tmp_path) == 0
    links = re.findall(r'\b(?:href|src|srcset)="([^"]+)"', MarkdownIt().render(readme.read_text()))
    assert len(links) > 20
    for link in links:
        into = re.fullmatch(rf"{ADDRESS}/(blob|raw)/main/(.+)", link)
        assert into is not None, link
        assert (ROOT / into[2]).is_file(), link
        assert (into[1] == "raw") == link.endswith(".svg"), link


def test_the_project_has_its_urls_once(tmp_path: Path) -> None:
    _, project = copies(tmp_path)
    without = re.sub(r"\[project\.urls\]\n(.+\n)+\n", "", project.read_text())
    assert write_urls(tmp_path, "https://github.com/other/rlaunch") == write_urls(tmp_path) == 0
    (section,) = re.findall(r"^\[project\.urls\]\n((?:.+\n)+)\n", project.read_text(), re.M)
    urls = dict(re.findall(r'^(\w+) = "(.+)"$', section, re.M))
    assert urls["Repository"] == ADDRESS
    assert urls["Documentation"] == "https://someone.github.io/rlaunch/"
    assert project.read_text().replace(f"[project.urls]\n{section}\n", "") == without


def test_another_address_is_refused(tmp_path: Path) -> None:
    readme, project = copies(tmp_path)
    before = readme.read_text(), project.read_text()
    assert write_urls(tmp_path, "git@github.com:someone/rlaunch.git") == 2
    assert (readme.read_text(), project.read_text()) == before


@pytest.mark.parametrize("is_written", [False, True])
def test_a_release_needs_them(is_written: bool, tmp_path: Path) -> None:
    """The command of the workflow, in a repository of its own."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    (step,) = [one for one in workflow["jobs"]["version"]["steps"] if "REPOSITORY" in one.get("env", {})]
    (tmp_path / "tests/wheels").mkdir(parents=True)
    shutil.copy(SCRIPT, tmp_path / "tests/wheels")
    copies(tmp_path)
    if is_written:
        assert write_urls(tmp_path) == 0
    else:
        (tmp_path / "README.md").write_text("[a page](docs/index.md)\n")
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "REPOSITORY": ADDRESS}
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]], cwd=tmp_path, env=env, capture_output=True, check=False
    )
    assert (done.returncode == 0) is is_written, done.stderr
