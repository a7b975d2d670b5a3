"""The examples of docs/kubernetes.md and docs/slurm.md match rlaunch's variables and exit statuses."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import yaml
from paths import ROOT


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.M | re.S)
    assert found, page
    return found


def read_by_the_launcher(constant: str) -> str:
    source = "".join(file.read_text() for file in (ROOT / "src/spec/scheduler").glob("*.rs"))
    found = re.search(rf'pub const {constant}: &str = "(\w+)"', source)
    assert found, constant
    return found[1]


def help_of(module: str) -> str:
    command = [sys.executable, "-m", module, "--help", "all"]
    return subprocess.run(command, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    """The applied objects, by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(blocks("kubernetes.md", "yaml")[0])}


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    return {module: help_of(module) for module in ("rlaunch", "rlaunch.run")}


def test_the_pods_are_the_nodes_of_one_job_and_find_pod_0(manifest: dict[str, Any]) -> None:
    service, job = manifest["Service"], manifest["Job"]
    name, spec = job["metadata"]["name"], job["spec"]
    pod = spec["template"]["spec"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert (spec["completionMode"], pod["restartPolicy"]) == ("Indexed", "Never")
    (container,) = pod["containers"]
    nodes, secret = container["env"]
    assert nodes == {"name": read_by_the_launcher("NNODES"), "value": str(spec["completions"])}
    page = (ROOT / "docs/kubernetes.md").read_text()
    key = secret["valueFrom"]["secretKeyRef"]
    assert secret["name"] == "RLAUNCH_JOB_SECRET"
    assert f"kubectl create secret generic {key['name']} --from-literal={key['key']}=" in page
    assert spec["parallelism"] == spec["completions"]
    master = container["command"][container["command"].index("--master") + 1]
    assert re.fullmatch(rf"{name}-0\.{pod['subdomain']}:\d+", master)
    # A container that mounts a volume has it.
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}


def test_the_policy_speaks_of_the_launcher_s_exit_statuses(
    manifest: dict[str, Any], helps: dict[str, str]
) -> None:
    spec = manifest["Job"]["spec"]
    pod = spec["template"]["spec"]
    rules = [rule for rule in spec["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    assert {rule["onExitCodes"]["containerName"] for rule in rules} == {pod["containers"][0]["name"]}
    statuses = helps["rlaunch"].split("Exit status:")[1]
    meanings = {int(code): text for code, text in re.findall(r"^  (\d+) +(\S.*)$", statuses, re.M)}
    by_action = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules}
    assert [code for code in meanings if code in by_action["FailJob"]] == by_action["FailJob"]
    assert "did not find each other" in meanings[by_action["Ignore"][0]]
    assert "went away" in meanings[by_action["Ignore"][1]]
    grace = re.search(r"--grace_period.*?\[default: (\d+)\]", helps["rlaunch"], re.S)
    assert grace
    assert pod["terminationGracePeriodSeconds"] > int(grace[1])


def test_the_page_names_the_variables_that_are_read() -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    for constant in ("INDEX", "NNODES", "SERVICE"):
        assert f"| `{read_by_the_launcher(constant)}` |" in page


def test_every_command_has_options_that_there_are(helps: dict[str, str]) -> None:
    commands = [yaml.safe_load(text)["command"] for text in blocks("kubernetes.md", "yaml")[1:]]
    (manifest,) = [
        one for one in yaml.safe_load_all(blocks("kubernetes.md", "yaml")[0]) if one["kind"] == "Job"
    ]
    commands.append(manifest["spec"]["template"]["spec"]["containers"][0]["command"])
    lines = re.findall(r"^(?:srun|mpirun) .* -m .*$", (ROOT / "docs/slurm.md").read_text(), re.M)
    commands += [part.split() for line in lines for part in line.split(" : ")]
    assert len(lines) >= 2
    for command in commands:
        at = command.index("-m")
        module = command[at + 1]
        options = [word for word in command[at + 2 :] if word.startswith("--")]
        missing = [one for one in options if not re.search(rf"{one}\b", helps[module])]
        assert not missing, command


def test_sbatch_reads_all_options_of_the_script() -> None:
    """They stand before the first command (sbatch(1)). `make test-cluster` runs the script."""
    (script,) = blocks("slurm.md", 'bash title="job.sh"')
    first = re.search(r"^[^#\n]", script, re.M)
    assert first
    assert "#SBATCH" not in script[first.start() :]
    # Each launcher gets the same.
    assert re.search(r"^export RLAUNCH_JOB_SECRET=.+\nsrun ", script, re.M)
