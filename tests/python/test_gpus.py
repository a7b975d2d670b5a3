"""GPUs through the driver's library, where there is none: a fake of its three calls, built here."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

FAKE = """
static int devices = %d;
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = devices; return 0; }
"""


@pytest.fixture(scope="module")
def four_gpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the driver shows four GPUs."""
    folder = tmp_path_factory.mktemp("nvml")
    source = folder / "nvml.c"
    source.write_text(FAKE % 4)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    hidden = ("CUDA_VISIBLE_DEVICES", "XPU_VISIBLE_DEVICES", "XPULINK_VISIBLE_DEVICES")
    environ = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**environ, "LD_LIBRARY_PATH": str(folder)}


def run(environ: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], env=environ, capture_output=True, text=True, check=False
    )


def planned(environ: dict[str, str], *options: str) -> list[str | None]:
    done = run(environ, "-m", "rlaunch", "--dry_run=json", *options, __file__)
    assert done.returncode == 0, done.stderr
    return [rank["env"].get("FLAGS_selected_gpus") for rank in json.loads(done.stdout)["ranks"]]


def test_the_launcher_gives_each_gpu_a_rank(four_gpus: dict[str, str]) -> None:
    assert planned(four_gpus) == ["0", "1", "2", "3"]
    assert planned(four_gpus, "--gpus", "2,3") == ["2", "3"]
    assert planned(four_gpus, "--nproc_per_node", "1", "--gpus", "1,3") == ["1,3"]
    assert planned({**four_gpus, "CUDA_VISIBLE_DEVICES": "all"}) == ["0", "1", "2", "3"]


def test_a_visible_list_is_trusted_and_an_empty_one_hides_all(four_gpus: dict[str, str]) -> None:
    listed = {**four_gpus, "CUDA_VISIBLE_DEVICES": "4,5,6,7,8"}
    assert planned(listed, "--gpus", "6,7") == ["2", "3"]
    assert planned({**four_gpus, "CUDA_VISIBLE_DEVICES": ""}) == [None]


def test_a_gpu_that_is_not_there_is_refused(four_gpus: dict[str, str]) -> None:
    done = run(four_gpus, "-m", "rlaunch", "--gpus", "3,4", __file__)
    assert done.returncode == 2
    assert "device 4 is not in what the driver shows (0,1,2,3)" in done.stderr
    done = run(four_gpus, "-m", "rlaunch", "--nproc_per_node", "5", __file__)
    assert done.returncode == 2
    assert "the driver has only 4 device(s) for 5 ranks" in done.stderr


SPAWN_DEFAULTS = """
import json
from rlaunch.spawn import _get_default_nprocs, _get_subprocess_env_list
options = {}
selected = [environ.get("FLAGS_selected_gpus") for environ in _get_subprocess_env_list(2, options)]
print(json.dumps([_get_default_nprocs(), options["backend"], selected]))
"""


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [4, "nccl", ["0", "1"]]),
        ("1,3", [2, "nccl", ["0", "1"]]),
        ("", [os.cpu_count(), "gloo", [None, None]]),
        ("-1", [os.cpu_count(), "gloo", [None, None]]),
    ],
)
def test_spawn_asks_the_driver_when_paddle_is_not_imported(
    four_gpus: dict[str, str], visible: str | None, expected: list[object]
) -> None:
    environ = dict(four_gpus) if visible is None else {**four_gpus, "CUDA_VISIBLE_DEVICES": visible}
    done = run(environ, "-c", SPAWN_DEFAULTS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected
