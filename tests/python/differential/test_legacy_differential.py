"""``--legacy`` beside Paddle's own legacy launcher: the same ranks and variables, for any request."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import cases
from launching import environment, free_ports
from oracle import SEED, Oracle
from oracle_legacy import OWN_ADDRESS

ONE, TWO, NINE = "198.51.100.1", "198.51.100.2", "198.51.100.9"
PARTS = cases(3, 8)
CASES = cases(40, 60, in_ci=60) * PARTS

Asked = dict[str, Any]


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    made = Oracle()
    yield made
    made.close()


def drawn(rng: random.Random) -> Asked:
    """Options and variables, which go together in more than half of all cases."""
    faults = rng.choice([0, 0, 0, 0.1, 0.3])

    def one_of(good: list[Any], bad: list[Any]) -> Any:
        return rng.choice(bad if rng.random() < faults else good)

    gpus = rng.random() < 0.7
    nodes = rng.choice([[ONE, TWO], [TWO, ONE], [TWO, "198.51.100.3", ONE]])
    alone = not gpus or rng.random() < 0.5
    options: dict[str, str | None] = {
        "backend": one_of(
            [None, None, None, "auto", "nccl" if gpus else "gloo", "heter" if gpus else None],
            ["gloo", "nccl", "bkcl", "heter", "mpi", "NCCL", "xccl"],
        ),
        "ips": one_of(
            [None, "127.0.0.1", ONE] if alone else [",".join(nodes), ", ".join(nodes)], [f"{ONE},{TWO}", TWO]
        ),
        "host": one_of([None, NINE] if alone else [ONE, TWO], [None, ONE, NINE]),
        "nproc_per_node": one_of(
            [None, None, "1"] if gpus else [None, "1", "2", "3", "8"], ["2", "3", "4", "8"]
        ),
        "run_mode": one_of([None, None, None, "collective" if gpus else None], ["collective", "junk"]),
    }
    variables: dict[str, str | None] = {
        "FLAGS_START_PORT": one_of([None, None, "port"], ["x", "", "-1"]),
        "PADDLE_DISTRI_BACKEND": one_of([None, None, None, "auto"], ["gloo", "mpi"]),
        "PADDLE_WITH_GLOO": rng.choice([None, None, "0", "1", "2"]),
        "http_proxy": rng.choice([None, "http://127.0.0.1:1"]),
    }
    if gpus:
        shown = one_of([None, None, "4,5,6,7", "7,4", "2", "GPU-aa,GPU-bb"], [""])
        variables["CUDA_VISIBLE_DEVICES"] = shown
        there = ["0", "1", "2", "3"] if shown is None else shown.split(",")
        some = rng.sample(there, rng.randrange(1, len(there) + 1))
        name = rng.choice(["gpus", "selected_gpus"])
        options[name] = one_of([None, ",".join(some)], ["0", "7,4", "5", "4, 5", "0,0", "x"])
        used = len(some) if options[name] else len(there)
        if options["nproc_per_node"] is not None:
            fitting = [str(n) for n in range(1, used + 1) if used % n == 0]
            options["nproc_per_node"] = one_of(fitting, ["2", "3", "4", "8"])
    if rng.random() < 0.4:
        ports = rng.choice([4, 8])
        endpoints = [f"{ip}:{port}" for ip in nodes for port in rng.sample(range(20000, 30000), ports)]
        variables |= {
            "PADDLE_TRAINERS": one_of([",".join(nodes)], [ONE, f"{ONE},{NINE}"]),
            "POD_IP": one_of([ONE, TWO], [NINE]),
            "PADDLE_TRAINER_ID": one_of(["0", "1"], ["2", "x"]),
            "TRAINER_PORTS_NUM": one_of([str(ports)], ["1", "x"]),
            "PADDLE_TRAINERS_NUM": one_of([None, "1", "2", "4"], ["x"]),
            "PADDLE_PORT": one_of([None, "port"], [""]),
            "DISTRIBUTED_TRAINER_ENDPOINTS": one_of([None, ",".join(endpoints)], [endpoints[0]]),
        }
        if rng.random() < 0.15:
            del variables[rng.choice(["PADDLE_TRAINERS", "POD_IP", "PADDLE_TRAINER_ID", "TRAINER_PORTS_NUM"])]
    if "port" in variables.values():
        port = str(free_ports(8))
        variables = {name: port if value == "port" else value for name, value in variables.items()}
    environ = {name: value for name, value in variables.items() if value is not None}
    argv = [f"--{name}={value}" for name, value in options.items() if value is not None]
    rng.shuffle(argv)
    # The devices that CUDA would show of four.
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    count = 4 if listed is None else len([device for device in listed.split(",") if device])
    return {
        "argv": argv,
        "environ": environ,
        "build": "gpu" if gpus else "cpu",
        "count": count if gpus else 0,
    }


def by_rlaunch(asked: Asked, machine: dict[str, str]) -> dict[str, Any]:
    """The processes that rlaunch would start, or the error. A port of another program is free again soon."""
    command = [sys.executable, "-m", "rlaunch", "--legacy=1", "--dry_run=json", *asked["argv"], __file__]
    deadline = time.monotonic() + 30
    while True:
        done = subprocess.run(command, env={**machine, **asked["environ"]}, capture_output=True, text=True)
        assert done.returncode in (0, 2, 66), done.stderr
        if done.returncode == 0:
            break
        (line,) = (line for line in done.stderr.splitlines() if line.startswith("rlaunch: error: "))
        if "is in use" not in line or time.monotonic() > deadline:
            return {"error": line}
        time.sleep(0.05)
    inherited = asked["environ"]
    ranks = json.loads(done.stdout)["ranks"]
    # Importing paddle sets OMP_NUM_THREADS; the oracle has imported it before. PYTHONFAULTHANDLER is ours.
    apart = ("RLAUNCH_", "OMP_NUM_THREADS", "PYTHONFAULTHANDLER")
    own = [{n: v for n, v in rank["env"].items() if not n.startswith(apart)} for rank in ranks]
    return {
        "rows": [{n: v for n, v in row.items() if inherited.get(n) != v} for row in own],
        "removed": [sorted(rank["unset"]) for rank in ranks],
    }


def normal(rows: list[dict[str, str]], fixed: bool) -> list[dict[str, str]]:
    """Without what differs from run to run: free ports, and the name of the job's folder."""
    ports = [row["PADDLE_CURRENT_ENDPOINT"].rpartition(":")[2] for row in rows]
    names = {port: port if fixed else f"p{rank}" for rank, port in enumerate(ports)}
    assert len(names) == len(rows), "a port given to two ranks"

    def renamed(name: str, value: str) -> str:
        if name == "PADDLE_GLOO_FS_PATH":
            return "FOLDER"
        if "ENDPOINT" in name:
            return re.sub(r"(?<=:)\d+(?=,|$)", lambda m: names.get(m[0], m[0]), value)
        return value

    return [{name: renamed(name, value) for name, value in row.items()} for row in rows]


def on_platform(asked: Asked) -> bool:
    """Whether the job platform says of all nodes, this one and their ports."""
    names = ("PADDLE_TRAINERS", "POD_IP", "PADDLE_TRAINER_ID", "TRAINER_PORTS_NUM")
    return all(name in asked["environ"] for name in names)


def several(asked: Asked) -> bool:
    return on_platform(asked) and asked["environ"].get("PADDLE_TRAINERS_NUM", "1") != "1"


def listed_difference(asked: Asked, real: dict[str, Any], mine: dict[str, Any]) -> str | None:
    """Which line of docs/differences-legacy.md this is, if one; None: the two have to agree."""
    environ = asked["environ"]
    error, text = real.get("error", ["", ""])
    refused = mine.get("error", "")
    if text.endswith("CPUONLY launch only support run mode is CPUONLY"):
        return "--run_mode collective without devices"
    if "can only concatenate str" in text and several(asked):
        return "FLAGS_START_PORT on PaddleCloud"
    if (
        asked["build"] == "gpu"
        and asked["count"] == 0
        and text == "Don't supported devices"
        and "error" not in mine
    ):
        return "no devices and no --backend"
    if error == "AssertionError" and "Can't find your gpus" in text and "4, 5" in text + str(asked["argv"]):
        return "whitespace in lists of devices"
    if error == "AssertionError" and OWN_ADDRESS in text:
        return "an address looked up from the host's name"
    if several(asked) and environ["PADDLE_TRAINER_ID"] not in ("0", "1") and "PADDLE_TRAINER_ID" in refused:
        return "a node's number that is none"
    if asked["count"] == 4 and "CUDA_VISIBLE_DEVICES" not in environ and "the driver's devices" in refused:
        return "--gpus with devices that the driver does not show"
    if "error" not in real and re.search("FLAGS_START_PORT.*: is not a port", refused):
        return "ports that are none"
    if "error" not in mine and environ.get("FLAGS_START_PORT") == "" and "invalid literal for int" in text:
        return "variables that are set to nothing"
    if "your paddle is not compiled with" in text and "error" not in mine:
        return "a backend of other devices than the build's"
    if "--gpus x" in refused or "--selected_gpus x" in refused:
        return "--gpus that names no device"
    return None


def agree(oracle: Oracle, machine: dict[str, str], asked: Asked) -> str:
    """Checks that both do the same, or differ as documented; returns the kind of outcome."""
    asked_of_real = dict(asked)
    # There --host has the default that its help speaks of, and variables override options.
    if (pod_ip := asked["environ"].get("POD_IP")) and not several(asked):
        asked_of_real["argv"] = [*asked["argv"], f"--host={pod_ip}"]
    (real,) = oracle.ask(
        {**asked_of_real, "environ": {**asked["environ"], "PATH": os.environ["PATH"]}}, "legacy"
    )
    mine = by_rlaunch(asked, machine)
    context = f"{asked}\nPaddle: {real}\nrlaunch: {mine}"
    if (known := listed_difference(asked, real, mine)) is not None:
        return known
    assert ("error" in real) == ("error" in mine), context
    if "error" in real:
        # Of several faults each may name another.
        return "refused"
    fixed = "find free ports" not in real["said"]
    assert normal(mine["rows"], fixed) == normal(real["rows"], fixed), context
    assert mine["removed"] == real["removed"], context
    # As test_launch_legacy.py wants them of rlaunch.
    assert real["logs"] == [
        "endpoints.log",
        *sorted(f"workerlog.{local}" for local in range(len(mine["rows"]))),
    ]
    endpoints = (
        real["rows"][0].get("PADDLE_TRAINER_ENDPOINTS") or asked["environ"]["PADDLE_TRAINER_ENDPOINTS"]
    )
    assert real["endpoints"] == "PADDLE_TRAINER_ENDPOINTS: \n" + endpoints.replace(",", "\n")
    return "started"


@pytest.mark.parametrize("part", range(PARTS))
def test_any_request(oracle: Oracle, four_gpus: dict[str, str], part: int) -> None:
    rng = random.Random(f"{SEED}/{part}")
    gpus = {**environment(), "LD_LIBRARY_PATH": four_gpus["LD_LIBRARY_PATH"]}
    # Whatever this machine has.
    cpus = {**environment(), "CUDA_VISIBLE_DEVICES": ""}
    seen: dict[str, int] = {}
    for _ in range(CASES // PARTS):
        asked = drawn(rng)
        what = agree(oracle, gpus if asked["build"] == "gpu" else cpus, asked)
        seen[what] = seen.get(what, 0) + 1
    print(seen)
    assert seen["started"] >= CASES // PARTS // 4, seen


GPUS = {"build": "gpu", "count": 4}
CPUS = {"build": "cpu", "count": 0}
BOTH = f"--ips={ONE},{TWO}"
PLATFORM = {
    "PADDLE_TRAINERS": f"{ONE},{TWO}",
    "POD_IP": ONE,
    "PADDLE_TRAINER_ID": "0",
    "TRAINER_PORTS_NUM": "1",
    "PADDLE_TRAINERS_NUM": "2",
}


@pytest.mark.parametrize(
    ("asked", "argv", "variables"),
    [
        (CPUS, ["--backend=mpi"], {}),
        (CPUS, [], {"PADDLE_DISTRI_BACKEND": "GLOO"}),
        (CPUS, ["--backend=gloo", "--run_mode=ps"], {}),
        (CPUS, ["--backend=gloo", "--servers=127.0.0.1:7000"], {}),
        (CPUS, ["--backend=xccl"], {}),
        (CPUS, [BOTH, f"--host={ONE}"], {}),
        (GPUS, ["--backend=gloo", BOTH, f"--host={ONE}"], {}),
        (GPUS, ["--nproc_per_node=3"], {}),
        (GPUS, ["--nproc_per_node=8"], {}),
        (GPUS, ["--gpus=0,1,2", "--nproc_per_node=2"], {}),
        (GPUS, [BOTH, f"--host={NINE}"], {}),
        (GPUS, [], {**PLATFORM, "POD_IP": NINE}),
        (GPUS, [], {**PLATFORM, "DISTRIBUTED_TRAINER_ENDPOINTS": f"{ONE}:1,{TWO}:1"}),
        (GPUS, ["--enable_auto_mapping=1"], {}),
    ],
)
def test_an_error_has_the_text_of_paddles(
    oracle: Oracle,
    four_gpus: dict[str, str],
    asked: Asked,
    argv: list[str],
    variables: dict[str, str],
) -> None:
    asked = {**asked, "argv": argv, "environ": variables}
    (real,) = oracle.ask({**asked, "environ": {**variables, "PATH": os.environ["PATH"]}}, "legacy")
    gpus = {**environment(), "LD_LIBRARY_PATH": four_gpus["LD_LIBRARY_PATH"]}
    cpus = {**environment(), "CUDA_VISIBLE_DEVICES": ""}
    mine = by_rlaunch(asked, gpus if asked["build"] == "gpu" else cpus)
    assert real["error"][1], real
    assert real["error"][1] in mine["error"]


# --- Rank mappings. ---------------------------------------------------------------------------------------


def mapped(rng: random.Random, folder: Path) -> Asked:
    """Ranks on one to three machines, in any order, and this is one of them."""
    machines = rng.sample([ONE, TWO, "198.51.100.3"], rng.randrange(1, 4))
    shown = rng.choice([None, "4,5,6,7", "7,4", "2,0,1"])
    devices = ["0", "1", "2", "3"] if shown is None else shown.split(",")
    counts = [rng.randrange(1, len(devices) + 1) for _ in machines]
    ranks = rng.sample(range(sum(counts)), sum(counts))
    mapping = []
    for at, (machine, count) in enumerate(zip(machines, counts, strict=True)):
        here = ranks[sum(counts[:at]) : sum(counts[: at + 1])]
        placed = {
            str(rank): [int(device)] for rank, device in zip(here, rng.sample(devices, count), strict=True)
        }
        mapping.append({"hostname": f"m{at}", "addr": machine, "ranks": placed})
    (folder / "topology.json").write_text(
        json.dumps({"machines": [{"addr": machine} for machine in machines]})
    )
    (folder / "mapping.json").write_text(json.dumps(mapping))
    argv = [
        "--enable_auto_mapping=1",
        f"--cluster_topo_path={folder}/topology.json",
        f"--host={rng.choice(machines)}",
    ]
    environ = {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    if len(machines) > 1 or rng.random() < 0.5:
        environ[rng.choice(["PADDLE_PORT", "FLAGS_START_PORT"])] = str(free_ports(8))
    match rng.choice(["first", "option", "variable"]):
        case "option":
            argv.append(f"--rank_mapping_path={folder}/mapping.json")
        case "variable":
            environ["PADDLE_RANK_MAPPING_PATH"] = f"{folder}/mapping.json"
    return {"argv": argv, "environ": environ, "build": "gpu", "count": len(devices)}


def test_any_rank_mapping(oracle: Oracle, four_gpus: dict[str, str], tmp_path: Path) -> None:
    rng = random.Random(f"{SEED}/mapping")
    gpus = {**environment(), "LD_LIBRARY_PATH": four_gpus["LD_LIBRARY_PATH"]}
    # Texts that differ in rlaunch, and those that contain the command line.
    apart = ("PADDLE_ENABLE_ELASTIC", "PADDLE_ORIGINAL_CMD_ARGS")
    passes = set()
    for _ in range(cases(30, 80)):
        asked = mapped(rng, tmp_path)
        environ = {**asked["environ"], "PATH": os.environ["PATH"]}
        (real,) = oracle.ask({**asked, "environ": environ}, "legacy")
        mine = by_rlaunch(asked, gpus)
        context = f"{asked}\nPaddle: {real}\nrlaunch: {mine}"
        assert "error" not in real, context
        assert "error" not in mine, context
        assert [set(apart) & set(row) for row in mine["rows"]] == [
            set(apart) & set(row) for row in real["rows"]
        ]
        for row in (*mine["rows"], *real["rows"]):
            for name in apart:
                row.pop(name, None)
        # Where rank 0's endpoint is not the first, Paddle's store would not find it.
        first = mine["rows"][0]["PADDLE_TRAINER_ENDPOINTS"].split(",")[0]
        for row in mine["rows"]:
            assert row.pop("PADDLE_MASTER", None) != first
        fixed = "PADDLE_PORT" in environ or "FLAGS_START_PORT" in environ
        assert normal(mine["rows"], fixed) == normal(real["rows"], fixed), context
        passes.add(mine["rows"][0]["PADDLE_NEED_RANK_MAPPING"])
    assert passes == {"True", "False"}
