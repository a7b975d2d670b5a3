"""Which CPUs ranks are bound to, beside real torch's own rules on the same machines, which are folders."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import native_hooks
import pytest
from oracle import SEED
from paths import ORACLES
from preloaded import python

KINDS = ("node", "socket", "exclusive", "core-complex")
ORACLE = ORACLES / "oracle_numa.py"


@dataclass
class Machine:
    sockets: int
    nodes: int  # of each socket
    cores: int  # of each node
    threads: int  # of each core
    complex: int  # cores that share their last cache
    adjacent: bool  # a core's threads have numbers that follow each other
    devices: list[int]  # the node of each, as the kernel says it
    allowed: list[int]

    @property
    def all_cores(self) -> int:
        return self.sockets * self.nodes * self.cores

    def cpus(self, cores: Iterable[int]) -> list[int]:
        if self.adjacent:
            return sorted(c * self.threads + t for c in cores for t in range(self.threads))
        return sorted(t * self.all_cores + c for c in cores for t in range(self.threads))

    def place(self, device: int) -> str:
        return f"0000:{0x1A + 7 * device:02x}:00.0"

    def write(self, root: Path) -> None:
        def write(path: str, text: object) -> None:
            file = root / "sys" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")

        of_system = "devices/system"
        write(f"{of_system}/node/possible", f"0-{self.sockets * self.nodes - 1}")
        for node in range(self.sockets * self.nodes):
            first = node * self.cores
            own = self.cpus(range(first, first + self.cores))
            write(f"{of_system}/node/node{node}/cpulist", listed(own))
        for core in range(self.all_cores):
            first = core - core % self.complex
            shared = {"Data": [core], "Instruction": [core], "Unified": range(first, first + self.complex)}
            for cpu in self.cpus([core]):
                of_cpu = f"{of_system}/cpu/cpu{cpu}"
                write(f"{of_cpu}/topology/physical_package_id", core // (self.nodes * self.cores))
                write(f"{of_cpu}/topology/thread_siblings_list", listed(self.cpus([core])))
                for index, (kind, cores) in enumerate(shared.items()):
                    write(f"{of_cpu}/cache/index{index}/type", kind)
                    write(f"{of_cpu}/cache/index{index}/level", 3 if kind == "Unified" else 1)
                    write(f"{of_cpu}/cache/index{index}/shared_cpu_list", listed(self.cpus(cores)))
        for device, node in enumerate(self.devices):
            write(f"bus/pci/devices/{self.place(device)}/numa_node", node)

    def whole_nodes(self) -> bool:
        """Whether each node has an allowed CPU. Torch's ``socket`` fails where any node has none."""
        nodes = (range(n * self.cores, (n + 1) * self.cores) for n in range(self.sockets * self.nodes))
        return all(set(self.cpus(cores)) & set(self.allowed) for cores in nodes)


def listed(cpus: Iterable[int]) -> str:
    return ",".join(map(str, cpus))


def drawn(draw: random.Random) -> Machine:
    complex = draw.choice([1, 2, 4])
    machine = Machine(
        sockets=draw.choice([1, 2]),
        nodes=draw.choice([1, 1, 2]),
        cores=complex * draw.choice([1, 2, 3]),
        threads=draw.choice([1, 2]),
        complex=complex,
        adjacent=draw.random() < 0.5,
        devices=[],
        allowed=[],
    )
    count = machine.sockets * machine.nodes
    nodes = [-1] if count == 1 and draw.random() < 0.5 else range(count)
    machine.devices = [draw.choice(nodes) for _ in range(draw.choice([1, 2, 4, 8]))]
    cpus = machine.cpus(range(machine.all_cores))
    share = draw.choice([0.3, 0.8, 1, 1])
    machine.allowed = [cpu for cpu in cpus if draw.random() < share] or cpus[:1]
    return machine


def expanded(text: str) -> list[int]:
    cpus: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def test_the_same_cpus_as_torchs(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    machines = [drawn(draw) for _ in range(40)]
    questions = []
    for number, machine in enumerate(machines):
        root = tmp_path / str(number)
        machine.write(root)
        devices = [machine.place(device) for device in range(len(machine.devices))]
        for kind in KINDS:
            asked = {"root": str(root), "kind": kind, "allowed": machine.allowed, "devices": devices}
            questions.append((machine, asked))
    lines = "".join(json.dumps(asked) + "\n" for _, asked in questions)
    done = subprocess.run(
        [*python("torch"), str(ORACLE)], input=lines, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    bound = 0
    for (machine, asked), theirs in zip(questions, answers, strict=True):
        failed = next((rank for rank, cpus in enumerate(theirs) if isinstance(cpus, str)), None)
        # An empty set is an error of torch's too, a step later.
        empty = next((rank for rank, cpus in enumerate(theirs) if cpus == []), None)
        first = min((rank for rank in (failed, empty) if rank is not None), default=None)
        call = (asked["kind"], len(theirs), asked["devices"], asked["root"], listed(asked["allowed"]))
        if first is None:
            assert [expanded(cpus) for cpus in native_hooks.bound_cpus(*call)] == theirs, machine
            bound += 1
        elif asked["kind"] != "socket" or machine.whole_nodes():
            with pytest.raises(ValueError, match=f"local rank {first}: "):
                native_hooks.bound_cpus(*call)
    assert bound >= 40, "too little was compared"


def test_a_socket_is_bound_to_where_another_has_no_allowed_cpu(tmp_path: Path) -> None:
    """Torch fails here: it looks at an allowed CPU of every node."""
    machine = Machine(2, 1, 2, 1, 2, False, [0], [0, 1])
    machine.write(tmp_path)
    assert native_hooks.bound_cpus("socket", 1, [machine.place(0)], str(tmp_path), "0-1") == ["0-1"]


def test_without_devices_this_machine_is_bound_to_as_well() -> None:
    allowed = os.sched_getaffinity(0)
    for kind in KINDS:
        (cpus,) = native_hooks.bound_cpus(kind, 1, [])
        assert set(expanded(cpus)) <= allowed
    with pytest.raises(ValueError, match="no kind of binding"):
        native_hooks.bound_cpus("nodes", 1, [])


def test_devices_are_found_at_their_places(four_gpus: dict[str, str]) -> None:
    def found(visible: str | None) -> list[str | None]:
        environ = four_gpus if visible is None else {**four_gpus, "CUDA_VISIBLE_DEVICES": visible}
        ask = "import native_hooks; print(json.dumps(native_hooks.torch_devices(dict(os.environ))))"
        ask = f"import json, os, sys; sys.path.insert(0, {native_hooks.FOLDER!r}); {ask}"
        command = [sys.executable, "-c", ask]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        places: list[str | None] = json.loads(done.stdout)
        return places

    places = ["0000:1a:00.0", "0000:5a:00.0", None, "0000:da:00.0"]
    assert found(None) == places
    assert found("3,0") == [places[3], places[0]]
    assert found("GPU-a1") == [places[1]]
    assert found("MIG-b2,MIG-b0") == [places[3]]
    assert found("") == []
