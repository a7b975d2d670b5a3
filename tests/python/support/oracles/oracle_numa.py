"""Asks ``torch.numa.binding``, in a process of its own, which CPUs it would bind to on a machine in a folder.

A line of JSON is a question (``root``, ``kind``, ``allowed``, ``devices``: their PCI addresses); the answer
is a line with the CPUs of each device, or the error. Only what torch reads of its machine is replaced.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
from typing import Any

from torch.numa import binding

Question = dict[str, Any]


class Files:
    """``os``, for a module that is to see another machine."""

    path = os.path

    def __init__(self, asked: Question) -> None:
        self.root, self.allowed = asked["root"], set(asked["allowed"])

    def listdir(self, path: str) -> list[str]:
        return os.listdir(self.root + path)

    def sched_getaffinity(self, _pid: int) -> set[int]:
        return set(self.allowed)


class Torch:
    """The part of ``torch`` that knows devices: an accelerator, and its properties."""

    def __init__(self, devices: list[str]) -> None:
        self.devices = devices
        self.accelerator = self

    def is_available(self) -> bool:
        return bool(self.devices)

    def device_count(self) -> int:
        return len(self.devices)

    def current_accelerator(self) -> Torch:
        return self

    def get_device_module(self, _accelerator: Torch) -> Torch:
        return self

    def get_device_properties(self, index: int) -> Place:
        return Place(self.devices[index])


class Place:
    def __init__(self, address: str) -> None:
        domain, bus, device = address.removesuffix(".0").split(":")
        self.pci_domain_id, self.pci_bus_id = int(domain, 16), int(bus, 16)
        self.pci_device_id = int(device, 16)


def answer(asked: Question) -> list[list[int] | str]:
    def of_root(path: str) -> Any:
        return builtins.open(asked["root"] + path)

    vars(binding).update(os=Files(asked), open=of_root, torch=Torch(asked["devices"]))
    options = binding.NumaOptions(affinity_mode=binding.AffinityMode(asked["kind"]))
    answers: list[list[int] | str] = []
    for index in range(len(asked["devices"])):
        try:
            cpus = binding._get_logical_cpus_to_bind_to(device_index=index, numa_options=options)
            answers.append(sorted(cpus))
        except Exception as error:
            answers.append(f"{type(error).__name__}: {error}")
    return answers


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
