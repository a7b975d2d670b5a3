"""The manifests of examples/kubernetes are valid, agree with the launcher, and are on docs/kubernetes.md."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml
from launching import Place
from manifests import FOLDER, WITH_PODS, containers, job_spec, objects
from paths import ROOT

PAGE = ROOT / "docs/kubernetes.md"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
# As the page says.
VERSIONS = ("1.29", "1.37")
# Of custom resources: the models that the Trainer's project generates from its types and JobSet's.
MODELS = {
    "JobSet": "JobsetV1alpha2JobSet",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
    "TrainJob": "TrainerV1alpha1TrainJob",
}
API_VERSIONS = {
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "TrainingRuntime": "trainer.kubeflow.org/v1alpha1",
    "TrainJob": "trainer.kubeflow.org/v1alpha1",
}
# Their keys are the user's.
FREE = {"labels", "limits", "matchLabels", "selector", "stringData"}


def check(one: dict[str, Any], versions: tuple[str, ...] = VERSIONS) -> None:
    """Fails unless an object is valid, without a field that its kind does not have."""
    model = MODELS.get(one["kind"])
    if model is None:
        for version in versions:
            kubernetes_validate.validate(one, version, strict=True)
        return
    # Its import takes a quarter of the time in which all tests are collected, in each worker of pytest-xdist.
    from kubeflow_trainer_api import models

    assert one["apiVersion"] == API_VERSIONS[one["kind"]]
    read = getattr(models, model).from_dict(one)
    assert read is not None
    # Fields that a model does not have are lost.
    assert read.to_dict() == one


def as_job(file: str) -> dict[str, Any]:
    """The Job that a file results in."""
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": job_spec(file)}


def checked_objects() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in FILES:
        for kind, one in objects(file).items():
            yield f"{file}:{kind}", one
        if file in WITH_PODS and WITH_PODS[file] != "Job":
            yield f"{file}:its Job", as_job(file)


CHECKED = dict(checked_objects())


def fields(one: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """All named fields, each with the mapping that it is in."""
    if isinstance(one, dict):
        for name, value in one.items():
            yield one, name
            if name not in FREE:
                yield from fields(value)
    elif isinstance(one, list):
        for value in one:
            yield from fields(value)


@pytest.mark.parametrize("one", CHECKED.values(), ids=CHECKED)
def test_each_object_is_valid(one: dict[str, Any]) -> None:
    check(one)


@pytest.mark.parametrize("one", CHECKED.values(), ids=CHECKED)
def test_each_misspelt_field_is_found(one: dict[str, Any]) -> None:
    count = sum(1 for _ in fields(one))
    assert count >= 5
    for number in range(count):
        seeded = copy.deepcopy(one)
        mapping, name = list(fields(seeded))[number]
        if mapping is seeded and name in ("apiVersion", "kind"):
            continue
        mapping[f"{name}X"] = mapping.pop(name)
        with pytest.raises((AssertionError, ValueError, kubernetes_validate.ValidationError)):
            check(seeded, VERSIONS[-1:])


def policy_text(file: str) -> str:
    """A file's podFailurePolicy as it stands there."""
    found = re.search(r"^( *)podFailurePolicy:\n(?:\1 .*\n)+", (FOLDER / file).read_text(), re.M)
    assert found, file
    return found[0]


def indented_like(text: str, example: str) -> str:
    return textwrap.indent(textwrap.dedent(text), " " * (len(example) - len(example.lstrip())))


@pytest.mark.parametrize("file", ["jobset.yaml", "trainjob.yaml"])
def test_all_have_the_policy_of_the_job(file: str) -> None:
    """RLAUNCH_UPDATE_DOCS=1 writes it: job.yaml is the one place that is edited."""
    (container,) = job_spec(file)["template"]["spec"]["containers"]
    policy = policy_text("job.yaml").replace("containerName: launcher", f"containerName: {container['name']}")
    own = policy_text(file)
    policy = indented_like(policy, own)
    if "RLAUNCH_UPDATE_DOCS" in os.environ:
        (FOLDER / file).write_text((FOLDER / file).read_text().replace(own, policy))
    assert policy_text(file) == policy


@pytest.mark.parametrize("file", FILES)
def test_the_page_shows_the_file(file: str) -> None:
    """RLAUNCH_UPDATE_DOCS=1 writes the page anew."""
    text, page = (FOLDER / file).read_text(), PAGE.read_text()
    head = f'```yaml title="{file}"\n'
    written, count = re.subn(rf"^{head}.*?^```$", lambda _: f"{head}{text}```", page, flags=re.M | re.S)
    assert count == 1
    if "RLAUNCH_UPDATE_DOCS" in os.environ:
        PAGE.write_text(written)
    assert PAGE.read_text() == written


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    def of(module: str) -> str:
        command = [sys.executable, "-m", module, "--help", "all"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return {module: of(module) for module in ("rlaunch", "rlaunch.run")}


def test_the_policy_speaks_of_the_launcher_s_exit_statuses(helps: dict[str, str]) -> None:
    rules = [rule for rule in job_spec("job.yaml")["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    statuses = helps["rlaunch"].split("Exit status:")[1]
    meanings = {int(code): text for code, text in re.findall(r"^  (\d+) +(\S.*)$", statuses, re.M)}
    by_action = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules}
    assert [code for code in meanings if code in by_action["FailJob"]] == by_action["FailJob"]
    assert "did not find each" in meanings[by_action["Ignore"][0]]
    assert "went away" in meanings[by_action["Ignore"][1]]
    # The page's table has the same.
    page = PAGE.read_text()
    assert f"| {', '.join(map(str, by_action['FailJob']))} |" in page
    for code in by_action["Ignore"]:
        assert f"| {code} |" in page, code


@pytest.mark.parametrize("file", WITH_PODS)
def test_kubernetes_waits_longer_than_the_launcher(file: str, helps: dict[str, str]) -> None:
    pod = job_spec(file)["template"]["spec"]
    (container,) = pod["containers"]
    module = container["command"][2]
    option = {"rlaunch": "--grace_period", "rlaunch.run": "--shutdown-timeout"}[module]
    grace = re.search(rf"{option}.*?\[default: \D*(\d+)\]", helps[module], re.S)
    assert grace
    assert pod["terminationGracePeriodSeconds"] > int(grace[1])


@pytest.mark.parametrize("file", WITH_PODS)
def test_the_pods_find_pod_0_and_are_selected(file: str) -> None:
    made = containers(file, "x" * 64)
    assert [one.hostname.rsplit("-", 1)[1] for one in made] == ["0", "1"]
    first = f"{made[0].hostname}.{made[0].subdomain}"
    for one in made:
        assert any(re.fullmatch(rf"{re.escape(first)}:\d+", word) for word in one.command), one.command
        # A container that mounts a volume has it.
        mounts, volumes = one.spec["volumeMounts"], one.pod["volumes"]
        assert {mount["name"] for mount in mounts} == {volume["name"] for volume in volumes}
    labels = job_spec(file)["template"]["metadata"]["labels"]
    policy = objects("network-policy.yaml")["NetworkPolicy"]["spec"]
    (source,) = policy["ingress"][0]["from"]
    assert policy["podSelector"] == source["podSelector"] == {"matchLabels": labels}
    (label,) = (f"{name}={value}" for name, value in labels.items())
    assert f"kubectl logs -f --prefix --max-log-requests 100 --tail -1 -l {label}\n" in PAGE.read_text()


def test_the_service_is_that_of_the_pods() -> None:
    service, job = objects("job.yaml")["Service"], objects("job.yaml")["Job"]
    template = job["spec"]["template"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == template["metadata"]["labels"]
    assert template["spec"]["subdomain"] == service["metadata"]["name"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"]


def test_the_numbers_of_nodes_agree() -> None:
    for file in ("job.yaml", "jobset.yaml"):
        spec = job_spec(file)
        (container,) = spec["template"]["spec"]["containers"]
        assert {"name": "RLAUNCH_NNODES", "value": str(spec["completions"])} in container["env"]


def test_all_read_the_secret_that_the_page_makes() -> None:
    made = objects("secret.yaml")["Secret"]
    (key,) = made["stringData"]
    name = made["metadata"]["name"]
    for file in WITH_PODS:
        (container,) = job_spec(file)["template"]["spec"]["containers"]
        assert {
            "name": "RLAUNCH_JOB_SECRET",
            "valueFrom": {"secretKeyRef": {"name": name, "key": key}},
        } in container["env"]
    command = f"kubectl create secret generic {name} --from-literal={key}=$(openssl rand -hex 32)"
    assert command in PAGE.read_text()
    assert command in (FOLDER / "secret.yaml").read_text()


def test_the_secret_of_the_file_is_refused(place: Place) -> None:
    secret = objects("secret.yaml")["Secret"]["stringData"]["secret"]
    ended = place.run("--nnodes=2", "--master=127.0.0.1:1", f"--job_secret={secret}", "train.py")
    assert ended.status == 2
    assert "secret" in ended.error_lines()[0]


def test_every_command_has_options_that_there_are(helps: dict[str, str]) -> None:
    page = re.findall(r"^command: (\[.*\])$", PAGE.read_text(), re.M)
    commands = [yaml.safe_load(text) for text in page]
    commands += [containers(file, "x" * 64)[0].command for file in WITH_PODS]
    assert len(commands) >= 5
    for command in commands:
        assert command[:2] == ["python", "-m"]
        module = command[2]
        options = [word for word in command[3:] if word.startswith("--")]
        assert [one for one in options if not re.search(rf"{one}\b", helps[module])] == [], command


def test_the_page_names_the_variables_that_are_read() -> None:
    page = PAGE.read_text()
    source = (ROOT / "src/spec/scheduler/detect.rs").read_text()
    for constant in ("INDEX", "NNODES", "SERVICE"):
        (name,) = re.findall(rf'pub const {constant}: &str = "(\w+)"', source)
        assert f"| `{name}` |" in page
