"""The variables of processes of parameter-server and RPC jobs, against Paddle's two launchers."""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from effort import cases, each
from launching import LIMIT, Place, environment, free_ports, until
from oracle import SEED, Oracle
from preloaded import python

# Values that are not the job's: folders, random names, variables that only one of the two writes.
APART = {
    "PADDLE_LOG_DIR", "POD_NAME", "PADDLE_GLOO_FS_PATH", "PADDLE_BACKUP_ENV_PATH",
    "RLAUNCH_EXPORTED", "RLAUNCH_OUTER_LOGS",
    "CUSTOM_DEVICE_ROOT", "OMP_NUM_THREADS", "PYTHONFAULTHANDLER",
}  # fmt: skip
NUMBERED_BY = {"TRAINER": "PADDLE_TRAINER_ENDPOINTS", "COORDINATOR": "PADDLE_COORDINATOR_ENDPOINTS"}
CASES = cases(40, 175)

Rows = list[tuple[str, dict[str, str]]]


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    made = Oracle()
    yield made
    made.close()


def ask_rlaunch(folder: Path, argv: list[str], environ: dict[str, str]) -> Rows | str:
    """The plan's logs and environments, or the error. Another program's port is free again before long."""
    (folder / "train.py").touch()
    deadline = time.monotonic() + LIMIT
    while True:
        done = subprocess.run(
            [sys.executable, "-m", "rlaunch", "--dry_run=json", *argv, "train.py"],
            cwd=folder,
            env={**environment(), **environ},
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        if " is in use" not in done.stderr or time.monotonic() > deadline:
            break
    if done.returncode != 0:
        (line,) = (line for line in done.stderr.splitlines() if not line.startswith("LAUNCH "))
        return line
    ranks = json.loads(done.stdout)["ranks"]
    return [
        (
            rank["log"].rpartition("/")[2],
            {name: value for name, value in {**environ, **rank["env"]}.items() if name not in rank["unset"]},
        )
        for rank in ranks
    ]


def normal(rows: Rows, given: set[str], by_place: bool = False) -> Rows:
    """Free ports by the order in which they appear, numbers by the place in the list, if they are not so."""
    names: dict[str, str] = {}

    def port_name(port: str) -> str:
        return port if port in given else names.setdefault(port, f"p{len(names)}")

    normal = []
    for log, env in rows:
        env = {name: value for name, value in env.items() if name not in APART}
        # Paddle counts node by node, whatever the list's order.
        if place := NUMBERED_BY.get(env.get("TRAINING_ROLE", "")):
            own = f"{env['POD_IP']}:{env['PADDLE_PORT']}"
            number = str(env[place].split(",").index(own))
            assert not by_place or env["PADDLE_TRAINER_ID"] == number
            env["PADDLE_TRAINER_ID"] = number
        for name in sorted(env):
            if name == "PADDLE_PORT":
                env[name] = port_name(env[name])
            elif re.search("LIST|ENDPOINT", name):
                env[name] = re.sub(r"(?<=:)\d+", lambda m: port_name(m[0]), env[name])
        normal.append((log, env))
    return normal


def agree(
    oracle: Oracle, folder: Path, which: str, argv: list[str], environ: dict[str, str]
) -> tuple[Rows, dict[str, Any]]:
    given = set(re.findall(r"\d+", " ".join([*argv, *environ.values()]))) | {"6767"}
    given |= {str(port) for port in range(6170, 6200)}
    if start := environ.get("FLAGS_START_PORT"):
        given |= {str(int(start) + i) for i in range(40)}
    # A free port may happen to be one of the given ones: then another draw agrees.
    for last in (False, True):
        (real,) = oracle.ask({"argv": argv, "environ": environ}, which)
        ours = ask_rlaunch(folder, argv, environ)
        if "error" in real:
            assert isinstance(ours, str), (argv, environ, real)
            assert real["error"].rstrip(".") in ours, (argv, environ, ours)
            return [], real
        assert not isinstance(ours, str), (argv, environ, ours)
        rows = normal([(log, env) for log, env in real["rows"]], given)
        if last or normal(ours, given, by_place=True) == rows:
            break
    assert normal(ours, given, by_place=True) == rows, (argv, environ)
    return ours, real


class Draw:
    """Endpoints that no process has, on some nodes."""

    def __init__(self, seed: str, nodes: list[str]) -> None:
        self.random = random.Random(seed)
        ports = free_ports(80)
        self.ports = iter(range(ports, ports + 40))
        self.start_port = ports + 40
        self.nodes = self.random.sample(nodes, self.random.randint(1, len(nodes)))
        self.own = self.random.choice(self.nodes)

    def flip(self, chance: float = 0.5) -> bool:
        return self.random.random() < chance

    def endpoints(self, most: int = 3, ports: bool = True) -> str:
        hosts = [self.random.choice(self.nodes) for _ in range(self.random.randint(1, most))]
        return ",".join(f"{host}:{next(self.ports)}" if ports else host for host in hosts)


NODES = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


def a_newer_request(draw: Draw) -> tuple[list[str], dict[str, str]]:
    if draw.flip():
        argv = [
            f"--{name}={draw.random.randint(0, 4)}" for name in ("server_num", "trainer_num") if draw.flip()
        ]
        return ["--run_mode=ps", *argv], {}
    # The own node has at least one of each: else Paddle starts nothing there, and numbers the others wrongly.
    servers = draw.endpoints() + f",{draw.own}:{next(draw.ports)}"
    argv = [f"--servers={servers}", f"--trainers={draw.own}:{next(draw.ports)},{draw.endpoints()}"]
    if draw.flip(0.3):
        argv.append(f"--with_gloo={draw.random.randint(0, 2)}")
    if draw.flip(0.3):
        argv.append(f"--gloo_port={next(draw.ports)}")
    # Paddle looks its address up by its name unless this option has it; the variable alone is enough here.
    return [*argv, f"--host={draw.own}"], {"POD_IP": draw.own} if draw.flip() else {}


@pytest.mark.parametrize("case", range(CASES))
def test_newer_options_are_understood_as_by_paddle(oracle: Oracle, tmp_path: Path, case: int) -> None:
    argv, environ = a_newer_request(Draw(f"{SEED} newer {case}", NODES))
    agree(oracle, tmp_path, "newer ps", argv, environ)


# A process that prints its environment, and waits for those of all nodes: a launcher of Paddle's that serves
# the master ends as soon as its own processes have.
SHOW = """
import json, os, pathlib, time
print(json.dumps(dict(os.environ)), flush=True)
folder = pathlib.Path(os.environ["MEET"])
(folder / os.environ["POD_IP"]).touch()
deadline = time.monotonic() + 60
while len(list(folder.iterdir())) < int(os.environ["NODES"]) and time.monotonic() < deadline:
    time.sleep(0.02)
"""
RLAUNCH = [sys.executable, "-m", "rlaunch"]


def launched_nodes(
    folder: Path, commands: list[list[str]], environ: dict[str, str], first_at: tuple[str, int] | None = None
) -> list[Rows]:
    """The logs and environments of the processes of each node's launcher; each has to end successfully.

    ``first_at``: where the first one serves, before the others start.
    """
    (folder / "meet").mkdir(parents=True)
    (folder / "train.py").write_text(SHOW)
    own = environment(**environ, MEET=str(folder / "meet"), NODES=str(len(commands)))
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    launchers = []
    with ExitStack() as stack:
        for number, command in enumerate(commands):
            words = [*command, f"--log_dir=log{number}", "train.py"]
            process = subprocess.Popen(words, cwd=folder, env=own, **pipes)
            launchers.append(stack.enter_context(Place.cleaned(process)))
            if first_at and number == 0:
                until(lambda at=first_at: listens(*at), "the master")
        ends = [Place.wait(launcher) for launcher in launchers]
    assert [end.status for end in ends] == [0] * len(ends), [end.stderr for end in ends]
    nodes = []
    for number in range(len(commands)):
        # Servers first; each launcher has other files beside these.
        logs = sorted((folder / f"log{number}").glob("[sw]*erlog.*"))
        seen = [(log.name, json.loads(log.read_text())) for log in logs]
        nodes.append(
            [
                (log, {name: value for name, value in env.items() if own.get(name) != value})
                for log, env in seen
            ]
        )
    return nodes


def listens(host: str, port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((host, port)) == 0


def of_the_job(nodes: list[Rows]) -> Rows:
    """The rows in the order of the nodes, which is that of their servers."""
    listed = nodes[0][0][1]["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")
    first = [listed.index(f"{env['POD_IP']}:{env['PADDLE_PORT']}") for ((_, env), *_) in nodes]
    rows = [row for _, node in sorted(zip(first, nodes, strict=True), key=lambda one: one[0]) for row in node]
    # Without those that rlaunch has for itself.
    return [
        (log, {name: value for name, value in env.items() if not name.startswith("RLAUNCH_")})
        for log, env in rows
    ]


def nodes_that_find_each_other(draw: Draw) -> tuple[list[list[str]], bool, dict[str, str]]:
    """The options of each node, and whether these number the nodes."""
    count = draw.random.randint(1, 3)
    numbered = draw.flip()
    shared = [f"--master=127.0.0.1:{next(draw.ports)}"]
    environ = {}
    if count > 1 and draw.flip(0.3):
        environ["PADDLE_NNODES"] = str(count)
    elif count > 1 or draw.flip():
        shared.append(f"--nnodes={count}")
    if draw.flip(0.3):
        shared.append(f"--with_gloo={draw.random.randint(0, 2)}")
    if draw.flip(0.3):
        shared.append(f"--nproc_per_node={draw.random.randint(1, 3)}")
    if draw.flip(0.3):
        shared.append(f"--job_id=job{draw.random.randint(0, 9)}")
    nodes = []
    for rank in draw.random.sample(range(count), count):
        counts = [
            f"--{name}={draw.random.randint(0, 2)}"
            for name in ("server_num", "trainer_num")
            if draw.flip(0.7)
        ]
        # Paddle serves at its own address what is asked for at 127.0.0.1.
        own = ["--run_mode=ps", *counts, f"--host=127.0.0.{2 + len(nodes)}"]
        nodes.append([*shared, *own, *([f"--rank={rank}"] if numbered else [])])
    return nodes, numbered, environ


@pytest.mark.parametrize("case", range(cases(4, 60, in_ci=8)))
def test_nodes_that_find_each_other_tell_their_processes_the_same(tmp_path: Path, case: int) -> None:
    nodes, numbered, environ = nodes_that_find_each_other(Draw(f"{SEED} nodes {case}", NODES))
    ours = launched_nodes(tmp_path / "ours", [[*RLAUNCH, *node] for node in nodes], environ)
    own = of_the_job(ours)
    if not numbered:
        # Names that are drawn decide the order, but for the node that serves the master: Paddle gets ours.
        hosts = list(dict.fromkeys(env["POD_IP"] for _, env in own))
        nodes = [[*node, f"--rank={hosts.index(f'127.0.0.{2 + at}')}"] for at, node in enumerate(nodes)]
    paddle = [*python("paddle"), "-m", "paddle.distributed.launch", "--enable_gpu_log=0"]
    theirs = launched_nodes(tmp_path / "theirs", [[*paddle, *node] for node in nodes], environ)
    master = nodes[0][0].rpartition(":")[2]
    assert normal(own, {master}, by_place=True) == normal(of_the_job(theirs), {master}, by_place=True)


@pytest.mark.parametrize("first", ["rlaunch", "paddle"])
@each("numbered", [False, True])
def test_nodes_of_both_launchers_find_each_other(tmp_path: Path, first: str, numbered: bool) -> None:
    """`first` serves the master; with numbers it is the second node."""
    port = free_ports(1)
    paddle = [*python("paddle"), "-m", "paddle.distributed.launch", "--enable_gpu_log=0"]
    launchers = [RLAUNCH, paddle, RLAUNCH] if first == "rlaunch" else [paddle, RLAUNCH, RLAUNCH]
    shared = ["--nnodes=3", "--run_mode=ps", "--trainer_num=2"]
    # Paddle's launcher takes 127.0.0.1 for its own address, at which rlaunch does not serve.
    masters = [
        "127.0.0.1" if first == "paddle" or launcher is RLAUNCH else "localhost" for launcher in launchers
    ]
    commands = [
        [
            *launcher,
            *shared,
            f"--master={masters[at]}:{port}",
            f"--server_num={1 + at}",
            f"--host=127.0.0.{2 + at}",
        ]
        for at, launcher in enumerate(launchers)
    ]
    if numbered:
        commands = [[*command, f"--rank={(at + 1) % 3}"] for at, command in enumerate(commands)]
    rows = of_the_job(launched_nodes(tmp_path / "job", commands, {}, ("127.0.0.1", port)))
    hosts = list(dict.fromkeys(env["POD_IP"] for _, env in rows))
    assert hosts[1 if numbered else 0] == "127.0.0.2"
    assert hosts[2] == "127.0.0.3" or not numbered
    for name in ("PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_GLOO_HTTP_ENDPOINT"):
        assert len({env[name] for _, env in rows}) == 1, name
    normal(rows, set(), by_place=True)
    trainers = [env for _, env in rows if env["TRAINING_ROLE"] == "TRAINER"]
    assert [env["PADDLE_TRAINER_ID"] for env in trainers] == [str(number) for number in range(6)]
    assert {(env["PADDLE_TRAINERS_NUM"], env["PADDLE_NNODES"]) for _, env in rows} == {("6", "3")}


def of_a_kind(draw: Draw, kind: str, local: bool, default_ports: bool = False) -> list[str]:
    """A count, endpoints, or both, which may not agree."""
    if local and draw.flip():
        return [f"--{kind}_num={draw.random.randint(1, 3)}"]
    endpoints = draw.endpoints(ports=not default_ports)
    argv = [f"--{kind}s={endpoints}"]
    if not default_ports and (draw.flip(0.3) or kind == "coordinator"):
        count = endpoints.count(",") + 1
        argv.append(f"--{kind}_num={count + (1 if draw.flip(0.2) else 0)}")
    return argv


def a_legacy_request(draw: Draw) -> tuple[list[str], dict[str, str]]:
    environ = {}
    local = draw.flip()
    if local:
        draw.nodes, draw.own = ["127.0.0.1"], "127.0.0.1"
    if draw.flip(0.2):
        environ["FLAGS_START_PORT"] = str(draw.start_port)
    if draw.flip(0.2):
        environ["PADDLE_WITH_GLOO"] = "1"
    argv = [
        *of_a_kind(draw, "server", local),
        *of_a_kind(draw, "worker", local, default_ports=draw.flip(0.2)),
    ]
    known = set(re.findall(r"10\.0\.0\.\d|127\.0\.0\.1", " ".join(argv)))
    draw.nodes = sorted(known) or draw.nodes
    if draw.flip(0.3) and "FLAGS_START_PORT" not in environ:
        # With a first port, Paddle's coordinators have those of servers.
        argv += of_a_kind(draw, "coordinator", local)
    if draw.flip():
        stages = draw.random.randint(1, 3)
        devices = ";".join(draw.random.choice(["cpu", "gpu"]) for _ in range(stages))
        argv.append(f"--heter_devices={devices}")
        if local and draw.flip():
            argv.append(
                "--heter_worker_num=" + ";".join(str(draw.random.randint(1, 3)) for _ in range(stages))
            )
        else:
            ports = draw.flip(0.8) or not (local or "FLAGS_START_PORT" in environ)
            argv.append("--heter_workers=" + ";".join(draw.endpoints(ports=ports) for _ in range(stages)))
    if not local:
        environ["POD_IP"] = draw.random.choice(draw.nodes)
    if not local or draw.flip(0.3):
        argv.append(f"--http_port={next(draw.ports)}")
    if draw.flip(0.2):
        argv.append("--run_mode=" + ("ps-heter" if "heter" in " ".join(argv) else "ps"))
    return argv, environ


@pytest.mark.parametrize("case", range(CASES))
def test_legacy_options_are_understood_as_by_paddle(oracle: Oracle, tmp_path: Path, case: int) -> None:
    argv, environ = a_legacy_request(Draw(f"{SEED} legacy {case}", NODES))
    agree(oracle, tmp_path, "legacy ps", argv, environ)


def test_rpc_variables_are_those_of_paddle(oracle: Oracle, tmp_path: Path) -> None:
    argv = ["--run_mode=rpc", f"--master=127.0.0.1:{free_ports(1)}", "--nproc_per_node=3"]
    ours, real = agree(oracle, tmp_path, "newer ps", argv, {})
    assert real["mode"] == "RpcController"
    assert [log for log, _ in ours] == ["workerlog.0", "workerlog.1", "workerlog.2"]


def test_the_platform_s_process_runs_once_with_its_inherited_environment(
    oracle: Oracle, tmp_path: Path
) -> None:
    environ = {
        "PADDLE_TRAINERS": "10.0.0.1,10.0.0.2", "POD_IP": "10.0.0.1", "PADDLE_TRAINER_ID": "0",
        "TRAINER_PORTS_NUM": "1", "TRAINING_ROLE": "TRAINER", "PADDLE_PORT": "7000",
        "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:7000",
    }  # fmt: skip
    (real,) = oracle.ask({"argv": ["--worker_num=2", "--server_num=2"], "environ": environ}, "legacy ps")
    ((_, theirs),) = real["rows"]
    ours = ask_rlaunch(tmp_path, ["--worker_num=2", "--server_num=2"], environ)
    ((log, variables),) = ours
    # Beside it, variables for launchers inside it, and what importing paddle sets.
    assert log == "workerlog.0"
    own = {name: value for name, value in variables.items() if not name.startswith("RLAUNCH_")}
    assert own == {**environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    assert {name: theirs[name] for name in environ} == environ
