"""Several nodes of a fixed list: real training, and the errors about a wrong list."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Host, hosts
from launching import Ended, Place, environment
from serving import TALK
from serving import script as script_of_servers

UNMET = 66

TRAIN = """
import numpy
import paddle
import paddle.distributed as dist
dist.init_parallel_env()
paddle.seed(7)
model = paddle.DataParallel(paddle.nn.Linear(4, 1))
sgd = paddle.optimizer.SGD(0.1, parameters=model.parameters())
x = paddle.to_tensor(numpy.random.RandomState(rank).rand(16, 4).astype("float32"))
losses = []
for _ in range(5):
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    loss.backward()
    sgd.step()
    sgd.clear_grad()
    losses.append(loss.item())
total = sum(float(p.sum()) for p in model.parameters())
number = paddle.to_tensor([float(rank + 1)])
dist.all_reduce(number)
tell("trained", f"{dist.get_world_size()} {number.item()} {total:.6f} {losses[-1] < losses[0]}")
"""


@pytest.fixture(scope="module")
def two() -> Iterator[list[Host]]:
    with hosts(2) as made:
        yield made


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def launch(place: Place, host: Host, *args: str, **variables: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "rlaunch", f"--log_dir=log.{host.ip}", *args]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return host.run(command, cwd=place.folder, env=environment(**variables), **pipes)


def ended(place: Place, launchers: list[subprocess.Popen[bytes]]) -> list[Ended]:
    """The ends of the launchers, none of which is left running."""
    try:
        return [place.wait(launcher) for launcher in launchers]
    finally:
        for launcher in launchers:
            with place.cleaned(launcher):
                pass


def check_training(place: Place, ends: list[Ended], world: int) -> None:
    assert [end.status for end in ends] == [0] * len(ends), [end.stderr + end.stdout.decode() for end in ends]
    results = {place.text(f"trained.{rank}") for rank in range(world)}
    # All have the same parameters in the end, and the sum that only all of them together have.
    (one,) = results
    size, total, _, learned = one.split()
    assert (size, float(total), learned) == (str(world), world * (world + 1) / 2, "True")


def test_four_hosts_with_two_ranks_each_train_by_ips(place: Place) -> None:
    place.script(TRAIN, framework="paddle")
    with hosts(4) as four:
        args = ["--ips=" + ",".join(host.ip for host in four), "--nproc_per_node=2", "train.py"]
        check_training(place, ended(place, [launch(place, host, *args) for host in four]), 8)


def test_two_hosts_with_two_ranks_each_train_by_ips(place: Place, two: list[Host]) -> None:
    place.script(TRAIN, framework="paddle")
    args = ["--ips=" + ",".join(host.ip for host in two), "--nproc_per_node=2", "train.py"]
    ends = ended(place, [launch(place, host, *args) for host in two])
    check_training(place, ends, 4)
    assert {f"log.{host.ip}" for host in two} <= place.names()
    assert place.names(f"log.{two[1].ip}") >= {"workerlog.0", "workerlog.1"}


def test_two_hosts_train_by_the_variables_of_paddlecloud(place: Place, two: list[Host]) -> None:
    place.script(TRAIN, framework="paddle")
    cloud = {
        "PADDLE_TRAINERS": ",".join(host.ip for host in two),
        "TRAINER_PORTS_NUM": "2",
        "PADDLE_PORT": "7164",
    }
    ends = ended(
        place,
        [
            launch(
                place,
                host,
                "--nproc_per_node=2",
                "train.py",
                **cloud,
                POD_IP=host.ip,
                PADDLE_TRAINER_ID=str(number),
            )
            for number, host in enumerate(two)
        ],
    )
    check_training(place, ends, 4)


def test_two_hosts_train_by_a_list_of_endpoints(place: Place, two: list[Host]) -> None:
    place.script(TRAIN, framework="paddle")
    listed = ",".join(f"{host.ip}:7000" for host in two)
    launchers = [launch(place, host, "train.py", PADDLE_TRAINER_ENDPOINTS=listed) for host in reversed(two)]
    ends = ended(place, launchers)
    check_training(place, ends, 2)
    assert "args reset by env PADDLE_TRAINER_ENDPOINTS" in ends[0].stderr


MEET = """
import socket
names = [text.rsplit(":", 1) for text in os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")]
host, port = os.environ["PADDLE_CURRENT_ENDPOINT"].rsplit(":", 1)
assert names[rank] == [host, port]
family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
listener = socket.socket(family)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind((host.strip("[]"), int(port)))
listener.listen()
for name, number in names:
    while True:
        try:
            socket.create_connection((name.strip("[]"), int(number)), 5).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
for _ in names:
    listener.accept()
tell("met", len(names))
"""


def test_ranks_rendezvous_by_ipv6(place: Place, two: list[Host]) -> None:
    place.script(MEET)
    args = ["--ips=" + ",".join(host.ipv6 for host in two), "--nproc_per_node=2", "train.py"]
    ends = ended(place, [launch(place, host, *args) for host in two])
    assert [end.status for end in ends] == [0, 0], [end.stderr for end in ends]
    assert [place.text(f"met.{rank}") for rank in range(4)] == ["4"] * 4


def test_a_failure_names_the_ranks_number_in_the_job(place: Place, two: list[Host]) -> None:
    place.script("sys.exit(5 if rank == 3 else 0)")
    args = ["--ips=" + ",".join(host.ip for host in two), "--nproc_per_node=2", "train.py"]
    first, second = ended(place, [launch(place, host, *args) for host in two])
    assert (first.status, second.status) == (0, 5)
    assert "rank 3 " in second.stderr
    assert "local rank 1" in second.stderr or "local_rank 1" in second.stderr


def test_a_node_that_is_not_in_the_list_is_refused_and_never_the_first_one(
    place: Place, two: list[Host]
) -> None:
    place.script("tell('started')")
    (end,) = ended(place, [launch(place, two[0], "--ips=10.77.0.8,10.77.0.9", "train.py")])
    assert end.status == UNMET
    (line,) = end.error_lines()
    for word in ("--ips 10.77.0.8,10.77.0.9", "10.77.0.1", "fd77::1", "--host"):
        assert word in line, line
    assert not (place.folder / "started.0").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--ips=10.77.0.1,10.77.0.2", "--host=10.77.0.3"], ["10.77.0.3", "not in the list"]),
        (["--ips=10.77.0.1,127.0.0.5,127.0.0.6"], ["several", "127.0.0.5, 127.0.0.6", "--host"]),
    ],
)
def test_an_address_that_settles_nothing_is_refused(
    place: Place, two: list[Host], args: list[str], words: list[str]
) -> None:
    place.script("tell('started')")
    (end,) = ended(place, [launch(place, two[0], *args, "train.py")])
    assert end.status == UNMET
    (line,) = end.error_lines()
    for word in words:
        assert word in line, line


@pytest.mark.parametrize(
    ("args", "variables", "words"),
    [
        (["--ips=10.77.0.1,,10.77.0.2"], {}, ["--ips", "empty item"]),
        (["--ips=10.77.0.1,10.77.0.1"], {}, ["--ips", "10.77.0.1 twice"]),
        (["--ips=10.77.0.1:6070,10.77.0.2:6070"], {}, ["--ips", "10.77.0.1:6070", "without ports"]),
        (["--ips=10.77.0.1,10.77.0.2", "--start_port=0"], {}, ["--start_port 0"]),
        (["--ips=10.77.0.1,10.77.0.2", "--nnodes=3"], {}, ["--nnodes 3", "2 nodes"]),
        (
            ["--ips=10.77.0.1,10.77.0.2", "--start_port=65535", "--nproc_per_node=2"],
            {},
            ["--start_port", "65535"],
        ),
        (
            [],
            {"PADDLE_TRAINER_ENDPOINTS": "10.77.0.1:1,10.77.0.2:1,10.77.0.1:2"},
            ["returns to 10.77.0.1"],
        ),
        ([], {"PADDLE_TRAINER_ENDPOINTS": "10.77.0.1:1,10.77.0.1:1,10.77.0.2:2"}, ["10.77.0.1:1 twice"]),
        (
            [],
            {"DISTRIBUTED_TRAINER_ENDPOINTS": "10.77.0.1:1,10.77.0.2:x"},
            ["10.77.0.2:x is not an endpoint"],
        ),
        (
            ["--nproc_per_node=3"],
            {"DISTRIBUTED_TRAINER_ENDPOINTS": "10.77.0.1:7001,10.77.0.1:7002,10.77.0.2:7001,10.77.0.2:7002"},
            ["2 endpoint(s) on 10.77.0.1", "3 rank(s)", "--nproc_per_node"],
        ),
    ],
)
def test_a_list_that_is_wrong_is_refused(
    place: Place, two: list[Host], args: list[str], variables: dict[str, str], words: list[str]
) -> None:
    place.script("tell('started')")
    (end,) = ended(place, [launch(place, two[0], *args, "train.py", **variables)])
    assert end.status in (2, UNMET)
    (line,) = end.error_lines()
    for word in words:
        assert word in line, line
    assert not (place.folder / "started.0").exists()


@pytest.mark.parametrize("workers", ["trainers", "workers"])
def test_two_servers_and_two_workers_on_two_hosts_talk(place: Place, two: list[Host], workers: str) -> None:
    script_of_servers(place, TALK)
    servers = ",".join(f"{host.ip}:7000" for host in two)
    others = ",".join(f"{host.ip}:7001" for host in two)
    args = [f"--servers={servers}", f"--{workers}={others}", "train.py"]
    ends = ended(place, [launch(place, host, *args) for host in two])
    assert [end.status for end in ends] == [0, 0], [end.stderr for end in ends]
    for number, host in enumerate(two):
        heard = sorted(place.text(f"log.{host.ip}/serverlog.0").splitlines())
        # Each server heard both workers, called both back, and each said who it was.
        assert heard == sorted(
            ["TRAINER.0", "TRAINER.1"] + [f"TRAINER.{worker} heard PSERVER.{number}" for worker in range(2)]
        )
        heard = sorted(place.text(f"log.{host.ip}/workerlog.0").splitlines())
        assert heard == sorted(
            ["PSERVER.0", "PSERVER.1"] + [f"PSERVER.{server} heard TRAINER.{number}" for server in range(2)]
        )
