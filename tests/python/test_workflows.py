"""The workflows of GitHub: few permissions, actions with a version, Pythons and Rust as elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from paths import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
CAPTURED: Any = {"cwd": ROOT, "capture_output": True, "text": True, "check": True}
# The image of an older commit of it is built with a download that is gone.
UNPINNED = ["EmbarkStudios/cargo-deny-action@v2"]
# What a job may do beyond reading the repository.
GRANTED = {
    ("docs", "deploy"): {"contents"},
    ("release", "docs"): {"contents"},
    ("release", "publish"): {"id-token"},
}


def parse(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text())
    assert isinstance(content, dict)
    return content


def named(name: str) -> dict[str, Any]:
    return parse(ROOT / f".github/workflows/{name}.yml")


def steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job.get("steps", [])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_can_do_no_more_than_it_has_to(path: Path) -> None:
    workflow = parse(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert set(job.get("permissions", ())) == GRANTED.get((path.stem, name), set())
        # GitHub's own limit is six hours.
        assert "timeout-minutes" in job or job["uses"].startswith("./")
    # What others write into a title or a branch name would be run.
    assert not [step for step in steps(workflow) if "${{" in step.get("run", "")]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    """With the version, which Dependabot and pinact read."""
    actions = re.findall(r"uses: ([^.\s].*)", path.read_text())
    assert len(actions) == len([step for step in steps(parse(path)) if "uses" in step]) > 0
    pinned = re.compile(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [one for one in actions if not pinned.fullmatch(one) and one not in UNPINNED] == []


def test_the_site_is_checked_and_its_pictures_are_kept() -> None:
    build = named("docs")["jobs"]["build"]["steps"]
    assert "make docs" in [step.get("run") for step in build]
    assert "target/site-pictures" in [step["with"].get("path") for step in build if "with" in step]
    done = subprocess.run(["make", "--dry-run", "--always-make", "docs"], **CAPTURED)
    for check in ("mkdocs build", "tests/python/test_docs.py", "--test it reference::", "tests/site"):
        assert check in done.stdout


def test_the_workflows_test_each_python_that_the_package_names() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    matrix = named("test")["jobs"]["pythons"]["strategy"]["matrix"]["python"]
    (tested,) = re.findall(r"^VERSIONS = (.+)$", (ROOT / "tests/pythons.py").read_text(), re.M)
    assert matrix == list(literal_eval(tested))
    classified = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    assert classified == [version for version in matrix if not version.endswith("t")]
    assert f'requires-python = ">={classified[0]}"' in project
    images = named("wheels")["jobs"]["run"]["strategy"]["matrix"]["image"]
    versions = {re.split("[:-]", image)[1] for image in images}
    assert versions == set(classified)


def test_the_workflows_build_and_test_with_one_rust() -> None:
    (rust,) = {named(name)["env"]["RUST"] for name in ("docs", "test", "wheels")}
    (least,) = re.findall(r'^rust-version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.M)
    assert tuple(map(int, rust.split(".")[:2])) >= tuple(map(int, least.split(".")))


def test_the_crates_of_each_wheel_are_checked() -> None:
    targets = named("wheels")["jobs"]["build"]["strategy"]["matrix"]["target"]
    denied = re.findall(r'^  "(\S+-linux-\S+)",$', (ROOT / "deny.toml").read_text(), re.M)
    assert sorted(targets) == sorted(denied)


def test_each_crate_has_a_licence_that_is_allowed() -> None:
    """What `cargo deny check licenses` checks, which is too large to build here."""
    (listed,) = re.findall(r"^allow = (\[.+\])$", (ROOT / "deny.toml").read_text(), re.M)
    allowed = literal_eval(listed)
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    done = subprocess.run([*command, "--filter-platform", "x86_64-unknown-linux-gnu"], **CAPTURED)
    packages = json.loads(done.stdout)["packages"]
    assert len(packages) > 100
    for package in packages:
        # An expression of SPDX, or of crates before it: MIT/Apache-2.0.
        alternatives = re.split(r" OR |/", re.sub(r"[()]", "", package["license"]).replace(" / ", "/"))
        parts = [one.split(" AND ") for one in alternatives]
        assert any(set(one) <= set(allowed) for one in parts), (package["name"], package["license"])
