"""The manifests of examples/kubernetes, and the containers that their controllers make of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml
from paths import ROOT

FOLDER = ROOT / "examples/kubernetes"
# The files, each with the kind whose controller makes pods.
WITH_PODS = {"job.yaml": "Job", "jobset.yaml": "JobSet", "trainjob.yaml": "TrainingRuntime"}


def objects(file: str) -> dict[str, dict[str, Any]]:
    """The objects of a file by their kind."""
    return {one["kind"]: one for one in yaml.safe_load_all((FOLDER / file).read_text())}


def job_spec(file: str) -> dict[str, Any]:
    """The spec of the indexed Job that the file results in."""
    spec: dict[str, Any] = objects(file)[WITH_PODS[file]]["spec"]
    if WITH_PODS[file] == "Job":
        return spec
    (replicated,) = spec.get("template", {"spec": spec})["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]
    return spec


@dataclass
class Container:
    """A pod's container as the kubelet starts it."""

    hostname: str
    subdomain: str
    command: list[str]
    env: dict[str, str]
    pod: dict[str, Any]

    @property
    def spec(self) -> dict[str, Any]:
        (container,) = self.pod["containers"]
        return dict(container)


def containers(file: str, secret: str) -> list[Container]:
    """Those of all nodes."""
    found = objects(file)
    pod = job_spec(file)["template"]["spec"]
    (spec,) = pod["containers"]
    env = {one["name"]: one.get("value", secret) for one in spec["env"]}
    command = list(spec["command"])
    kind = WITH_PODS[file]
    name = found[kind]["metadata"]["name"]
    nodes = job_spec(file).get("completions")
    # JobSet names a Job after itself, the replicated job and its number.
    job, subdomain = (name, pod["subdomain"]) if kind == "Job" else (f"{name}-node-0", name)
    if kind == "TrainingRuntime":
        train_job = found["TrainJob"]
        trainer, subdomain = train_job["spec"]["trainer"], train_job["metadata"]["name"]
        nodes, job = trainer["numNodes"], f"{subdomain}-node-0"
        command += trainer["args"]
        # What the Trainer sets for torch.
        env |= {
            "PET_NNODES": str(nodes),
            "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
            "PET_MASTER_ADDR": f"{job}-0.{subdomain}",
            "PET_MASTER_PORT": "29500",
        }
    made = []
    for index in range(nodes):
        own = {"HOSTNAME": f"{job}-{index}", "JOB_COMPLETION_INDEX": str(index)}
        if kind == "TrainingRuntime":
            own["PET_NODE_RANK"] = str(index)
        variables = {**own, **env}
        expanded = [expand(word, variables) for word in command]
        made.append(Container(own["HOSTNAME"], subdomain, expanded, variables, pod))
    return made


def expand(word: str, variables: dict[str, str]) -> str:
    """`$(NAME)` in a command, which Kubernetes replaces."""
    for name, value in variables.items():
        word = word.replace(f"$({name})", value)
    return word
