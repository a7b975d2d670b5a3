"""Where GPUs are, and the CPUs near them: what rlaunch reads, beside the driver and the kernel."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import smi
from launching import environment
from native_hooks import torch_devices

SCRIPT = "import os; print('CPUs', *sorted(os.sched_getaffinity(0)))"
WORD = 64


def test_addresses_are_the_drivers(uuids: list[str]) -> None:
    ours = torch_devices({})
    assert ours == [address.lower()[4:] for (address,) in smi("gpu", "pci.bus_id")]
    assert len(ours) == len(uuids)
    assert all(Path("/sys/bus/pci/devices", str(address)).is_dir() for address in ours)


def near(uuid: str) -> set[int]:
    """The CPUs that the driver's library calls near (nvmlDeviceGetCpuAffinity)."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    assert nvml.nvmlInit_v2() == 0
    device = ctypes.c_void_p()
    assert nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device)) == 0
    words = (ctypes.c_ulong * 16)()
    assert nvml.nvmlDeviceGetCpuAffinity(device, len(words), words) == 0
    assert nvml.nvmlShutdown() == 0
    return {at * WORD + bit for at, word in enumerate(words) for bit in range(WORD) if word >> bit & 1}


@pytest.mark.parametrize("kind", ["node", "socket"])
def test_ranks_are_bound_near_their_gpus(
    tmp_path: Path, uuids: list[str], kind: str, seen: Callable[[str, str], None]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["--nproc-per-node=gpu", f"--numa-binding={kind}", "--bind-report"]
    done = subprocess.run(
        [sys.executable, "-m", "rlaunch.run", *options, "train.py"],
        cwd=tmp_path,
        env=environment(CUDA_DEVICE_ORDER="PCI_BUS_ID"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    bound = [
        {int(cpu) for cpu in line.split()[1:]} for line in done.stdout.splitlines() if line.startswith("CPUs")
    ]
    allowed = os.sched_getaffinity(0)
    assert len(bound) == len(uuids)
    assert sorted(map(sorted, bound)) == sorted(sorted(near(uuid) & allowed) for uuid in uuids)
    seen(f"`--numa-binding {kind}`", f"{len(bound)} rank on the {len(bound[0])} CPUs that NVML calls near")
