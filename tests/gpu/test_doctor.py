"""``rlaunch doctor`` on a machine with a GPU, beside nvidia-smi."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import smi, stranger
from launching import LIMIT, environment

# More than an idle GPU uses by the doctor's rule, which is a tenth.
PART = 8
MIB = 1 << 20


def doctor(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rlaunch.control", "doctor", *args],
        cwd=folder,
        env=environment(**env),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )


def examine(folder: Path, **env: str) -> dict[str, list[dict[str, Any]]]:
    """What the doctor says of this machine, by check."""
    done = doctor(folder, "--json", **env)
    found: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(done.stdout)["findings"]:
        found.setdefault(one["check"], []).append(one)
    return found


def test_the_doctor_names_gpus_and_driver(
    tmp_path: Path, uuids: list[str], seen: Callable[[str, str], None]
) -> None:
    found = examine(tmp_path)
    ((name, driver), *_) = smi("gpu", "name", "driver_version")
    (gpus,) = found["GPUs"]
    assert (gpus["level"], gpus["text"]) == ("ok", f"{len(uuids)} ({name}), driver {driver}")
    assert "GPU memory" not in found
    assert "GPU fault" not in found
    seen("`rlaunch doctor`, an idle GPU", f"`{gpus['text']}`, no warning about a GPU")


def test_the_doctor_names_who_holds_memory(tmp_path: Path, seen: Callable[[str, str], None]) -> None:
    total = int(smi("gpu", "memory.total")[0][0]) * MIB
    with stranger(total // PART) as holder:
        (memory,) = examine(tmp_path)["GPU memory"]
        assert doctor(tmp_path, "--strict").returncode == 1
    assert memory["level"] == "warning"
    assert memory["text"].startswith("GPU 0: ")
    assert f"(pid {holder.pid})" in memory["text"], memory
    assert "--gpus" in memory["hint"]
    seen("`rlaunch doctor`, a stranger on the GPU", "a warning with the stranger's name, number and memory")


def test_the_doctor_refuses_a_list_with_an_unknown_gpu(tmp_path: Path, uuids: list[str]) -> None:
    listed = f"0,{len(uuids)}"
    (visible,) = examine(tmp_path, CUDA_VISIBLE_DEVICES=listed)["CUDA_VISIBLE_DEVICES"]
    assert visible["level"] == "error"
    assert f"there is no GPU {len(uuids)}" in visible["text"]
