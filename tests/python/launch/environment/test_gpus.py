"""GPUs through the driver's library, where there is none: a fake of its calls."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pytest
from effort import FULL
from nvml import Driver
from oracle import Oracle


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


def device_variables(environ: dict[str, str], *options: str) -> list[tuple[str | None, str | None]]:
    """CUDA_VISIBLE_DEVICES of each rank, if it is changed, and the rank's place in it."""
    done = run(environ, "-m", "rlaunch", "--dry_run=json", *options, __file__)
    assert done.returncode == 0, done.stderr
    ranks = [rank["env"] for rank in json.loads(done.stdout)["ranks"]]
    return [(env.get("CUDA_VISIBLE_DEVICES"), env.get("FLAGS_selected_gpus")) for env in ranks]


def test_uuids_and_mig_devices_are_found_by_their_beginnings(four_gpus: dict[str, str]) -> None:
    gpus = "GPU-a2,GPU-a0"
    assert device_variables(four_gpus, "--gpus", gpus) == [(gpus, "0"), (gpus, "1")]
    assert device_variables(four_gpus, "--gpus", "MIG-b2,MIG-b0") == [("MIG-b2", "0"), ("MIG-b0", "0")]
    # In another form than the list.
    assert device_variables({**four_gpus, "CUDA_VISIBLE_DEVICES": "3,2"}, "--gpus", "GPU-a2") == [(None, "1")]
    assert device_variables({**four_gpus, "CUDA_VISIBLE_DEVICES": "GPU-a3,GPU-a1"}, "--gpus", "1,3") == [
        (None, "1"),
        (None, "0"),
    ]


@pytest.mark.parametrize("missing", ["GPU-a4", "GPU-a", "MIG-b1", "MIG-b"])
def test_a_uuid_that_is_not_exactly_one_device_is_refused(four_gpus: dict[str, str], missing: str) -> None:
    done = run(four_gpus, "-m", "rlaunch", "--gpus", missing, __file__)
    assert done.returncode == 2
    assert (
        f"{missing} does not match exactly one device of the driver; nvidia-smi -L lists them" in done.stderr
    )


def test_the_device_list_all_is_removed_for_cuda(four_gpus: dict[str, str]) -> None:
    listed = {**four_gpus, "CUDA_VISIBLE_DEVICES": "all"}
    done = run(listed, "-m", "rlaunch", "--dry_run=json", __file__)
    assert [rank["unset"] for rank in json.loads(done.stdout)["ranks"]] == [["CUDA_VISIBLE_DEVICES"]] * 4
    assert "CUDA does not support this value and would hide every GPU; it is unset for ranks" in done.stderr


def test_a_driver_that_is_not_loaded_is_no_driver(driver: Driver) -> None:
    unloaded = driver("-DUNLOADED")
    assert planned(unloaded) == [None]
    assert planned(unloaded, "--gpus", "0,1") == ["0", "1"]


def test_a_library_that_cannot_name_its_gpus_still_counts_them(driver: Driver) -> None:
    old = driver("-DOLD")
    assert planned(old) == ["0", "1", "2", "3"]
    done = run({**old, "CUDA_VISIBLE_DEVICES": "3"}, "-m", "rlaunch", "--gpus", "GPU-a3", __file__)
    assert done.returncode == 2
    assert "device GPU-a3 is not in CUDA_VISIBLE_DEVICES (3)" in done.stderr


def test_a_gpu_that_is_not_there_is_refused(four_gpus: dict[str, str]) -> None:
    done = run(four_gpus, "-m", "rlaunch", "--gpus", "3,4", __file__)
    assert done.returncode == 2
    assert "device 4 is not in the driver's devices (0,1,2,3)" in done.stderr
    done = run(four_gpus, "-m", "rlaunch", "--nproc_per_node", "5", __file__)
    assert done.returncode == 2
    assert "the driver has only 4 device(s) for 5 ranks" in done.stderr


SPAWN_DEFAULTS = """
import json
from rlaunch._spawn.plan.paddle_devices import default_nprocs
from rlaunch._spawn.plan.ranks import get_environs
options = {}
selected = [environ.get("FLAGS_selected_gpus") for environ in get_environs(2, options)]
print(json.dumps([default_nprocs(), options["backend"], selected]))
"""


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [4, "nccl", ["0", "1"]]),
        ("1,3", [2, "nccl", ["0", "1"]]),
        ("", [os.cpu_count(), "gloo", [None, None]]),
        ("-1", [os.cpu_count(), "gloo", [None, None]]),
        ("all", [os.cpu_count(), "gloo", [None, None]]),
        ("0,1,-1,2", [2, "nccl", ["0", "1"]]),
        ("1,2,4", [2, "nccl", ["0", "1"]]),
    ],
)
def test_spawn_asks_the_driver_when_paddle_is_not_imported(
    four_gpus: dict[str, str], visible: str | None, expected: list[object]
) -> None:
    environ = dict(four_gpus) if visible is None else {**four_gpus, "CUDA_VISIBLE_DEVICES": visible}
    done = run(environ, "-c", SPAWN_DEFAULTS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


def test_spawn_refuses_a_list_that_the_driver_would_misread(four_gpus: dict[str, str]) -> None:
    done = run({**four_gpus, "CUDA_VISIBLE_DEVICES": "0,0"}, "-c", SPAWN_DEFAULTS)
    assert done.stderr.splitlines()[-1] == (
        "ValueError: CUDA_VISIBLE_DEVICES 0,0: '0' occurs twice, and CUDA would find no device; name each "
        "device once"
    )


# --- Beside Paddle's own launcher, made to believe in as many devices ------------------------------------

ABOUT_DEVICES = ("FLAGS_selected_", "PADDLE_DISTRI_BACKEND", "PADDLE_XCCL_BACKEND")
SHOWN = ["4,5,6,7", "7,4", "2", "GPU-aa,GPU-bb"]
WANTED = [None, "0", "7,4", "4,4", "5,6,7", "GPU-bb"]
NUMBERS = [None, "1", "2", "5"]


def by_rlaunch(environ: dict[str, str], argv: list[str]) -> list[dict[str, str]] | None:
    """The device variables of each rank; None: it is refused."""
    done = run(environ, "-m", "rlaunch", "--dry_run=json", *argv, __file__)
    assert done.returncode in (0, 2), done.stderr
    if done.returncode == 2:
        return None
    return [about_devices(rank["env"]) for rank in json.loads(done.stdout)["ranks"]]


def about_devices(env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(ABOUT_DEVICES)}


@pytest.mark.parametrize(
    ("variable", "shown"),
    [
        *(("CUDA", shown) for shown in (None, "all", *SHOWN)),
        *itertools.product(("XPU", "XPULINK", "NPU"), SHOWN),
    ],
)
def test_each_rank_has_the_device_variables_of_paddles_launcher(
    oracle: Oracle, four_gpus: dict[str, str], variable: str, shown: str | None
) -> None:
    listed = {} if shown is None else {f"{variable}_VISIBLE_DEVICES": shown}
    custom = ["npu"] if variable == "NPU" else []
    # `make test` asks about a third of them: with each list that is shown, others.
    asked = list(itertools.product(WANTED, NUMBERS))
    first = SHOWN.index(shown) if shown in SHOWN else 0
    for wanted, number in asked if FULL else asked[first % 3 :: 3]:
        argv = [f"--devices={wanted}"] * (wanted is not None) + [f"--nproc_per_node={number}"] * bool(number)
        question = {
            "argv": argv,
            "environ": {**listed, "PATH": os.environ["PATH"]},
            "custom": custom,
            "devices": 4,
        }
        (real,) = oracle.ask(question, "launch")
        mine = by_rlaunch({**four_gpus, **listed}, argv)
        assert mine == (None if "error" in real else [about_devices(row) for row in real["rows"]]), argv


@pytest.mark.parametrize(
    ("visible", "has_driver", "shown"),
    [
        ("0", True, "1 GPU(s) to 3 local ranks"),
        ("1,9", True, "1 GPU(s) to 3 local ranks"),
        ("0,1,2", True, None),
        ("", True, None),
        (None, True, None),
        ("0", False, None),
    ],
)
def test_torchruns_front_end_says_that_ranks_share_gpus(
    four_gpus: dict[str, str], visible: str | None, has_driver: bool, shown: str | None
) -> None:
    environ = {**four_gpus, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})}
    if not has_driver:
        del environ["LD_LIBRARY_PATH"]
    command = ["-m", "rlaunch.run", "--nproc-per-node=3", "--omp-compat", "--dry-run", __file__]
    done = run(environ, *command)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == (shown is not None), done.stderr
    assert shown is None or f"CUDA_VISIBLE_DEVICES {visible}: shows {shown}" in done.stderr
