"""Nodes that wait, and nodes that cannot take part: their messages, and that the others are unharmed."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import each
from elastic_jobs import (
    IMPORT_LIMIT,
    NOT_MET,
    PADDLE,
    PADDLES,
    TORCH,
    USAGE,
    AtMaster,
    Backend,
    Job,
    joining,
    start_at_once,
)
from hosts import Host, hosts
from launching import until

RUN = 'tell(f"began.{node}", os.environ.get("GLOO_SOCKET_IFNAME"))'


@pytest.fixture(scope="module")
def three() -> Iterator[list[Host]]:
    with hosts(3) as made:
        yield made


@each("module", [PADDLE, TORCH])
def test_waiting_nodes_list_the_nodes_that_are_here(
    tmp_path: Path, three: list[Host], backend: Backend, module: str
) -> None:
    with Job(tmp_path, three, backend, "3") as job:
        script = job.script(RUN)
        zero = job.node(0, script, module=module)
        zero.await_message(r"1 of 3 nodes are here: .*10\.77\.0\.1")
        one, two = job.node(1, script, module=module), job.node(2, script, module=module)
        job.end_successfully(zero, one, two)
        # The node that serves the master says once what a stranger could do.
        is_open = isinstance(job.backend, AtMaster)
        assert zero.stderr().count("has no secret: every client that reaches this port can join") == is_open
        # The interface that leads to the others.
        assert [path.read_text() for path in tmp_path.glob("began.*")] == ["wire"] * 3


def test_participants_are_listed_every_ten_seconds_by_number(
    tmp_path: Path, three: list[Host], backend: Backend
) -> None:
    with Job(tmp_path, three, backend, "3") as job:
        script = job.script(RUN)
        zero = job.node(0, "--rank=0", "--join_timeout=14", script)
        two = job.node(2, "--rank=2", "--join_timeout=14", script)
        for node in (zero, two):
            end = node.end()
            assert end.status == NOT_MET
            lists = re.findall(r"2 of 3 nodes are here: (.*)", end.stderr)
            assert len(lists) >= 2, end.stderr
            for participants in lists:
                assert re.search(
                    r"0: .*10\.77\.0\.1.*2: .*10\.77\.0\.3.*missing: node\(s\) 1", participants
                ), participants
            assert "not come together within 14 s" in end.error_lines()[-1]
        assert not list(tmp_path.glob("began*"))


@each("module", [PADDLE, TORCH])
def test_too_few_nodes_end_in_time_with_the_participants(
    tmp_path: Path, three: list[Host], backend: Backend, module: str
) -> None:
    with Job(tmp_path, three, backend, "3") as job:
        script = job.script(RUN)
        began = time.monotonic()
        nodes = [job.node(on, *joining(module, 3), script, module=module) for on in (0, 1)]
        for node in nodes:
            end = node.end()
            assert end.status == NOT_MET, end.stderr
            (line,) = end.error_lines()
            for word in ("within 3 s", "2 of 3 nodes are here", "10.77.0.1", "10.77.0.2", "--nnodes"):
                assert word in line, line
        assert time.monotonic() - began > 2.5


@each("module", [PADDLE, TORCH])
def test_a_missing_master_is_an_error_after_the_timeout(
    tmp_path: Path, three: list[Host], module: str
) -> None:
    with Job(tmp_path, three, AtMaster) as job:
        node = job.node(1, *joining(module, 3), job.script(RUN), module=module)
        node.await_message(r"waiting for the master at 10\.77\.0\.1:\d+")
        end = node.end()
        assert end.status == NOT_MET
        (line,) = end.error_lines()
        assert re.search(r"10\.77\.0\.1:\d+: no(t reached| master) within 3 s: .*refused", line), line


@each("module", [PADDLE, TORCH])
def test_nodes_that_join_one_after_another_stop_no_round_before_its_time(
    tmp_path: Path, three: list[Host], backend: Backend, module: str
) -> None:
    shortest = 4
    elastic = {
        PADDLE: ["--elastic_level=1", "--elastic_timeout=1", "--restart_delay=0"],
        TORCH: ["--max-restarts=3", "--rdzv-conf=last_call_timeout=1"],
    }[module]
    with Job(tmp_path, three, backend, "1:3") as job:
        script = job.script("live_until('finish')")
        option = {"RLAUNCH_MIN_ROUND_TIME": str(shortest)}
        own = job.node(0, *elastic, script, module=module, **option)
        own.await_round(1, 1)
        for on in (1, 2):
            job.node(on, *elastic, script, module=module, **option)
        own.await_round(3)
        job.finish()
        job.end_successfully()
        began, ended = own.events("round_started"), own.events("round_ended")
        lasted = [end["monotonic"] - begin["monotonic"] for begin, end in zip(began, ended, strict=True)][:-1]
        # On a slow machine the second comes later than the first one's round.
        assert 1 <= len(lasted) <= 2
        assert min(lasted) > shortest - 0.5, (began, ended)
        assert list(job.check_one_world().values()) in ([1, 3], [1, 2, 3])


@pytest.mark.parametrize(
    ("module", "number", "serves"),
    [
        (PADDLE, signal.SIGINT, True),
        (PADDLE, signal.SIGTERM, False),
        (TORCH, signal.SIGTERM, True),
        (TORCH, signal.SIGINT, False),
    ],
)
def test_a_wait_ends_at_once_and_quietly(
    tmp_path: Path, three: list[Host], module: str, number: int, serves: bool
) -> None:
    with Job(tmp_path, three, AtMaster) as job:
        node = job.node(0 if serves else 1, job.script(RUN), module=module)
        node.await_message("waiting for|are here")
        node.process.send_signal(number)
        # The wait itself would take longer than this does.
        end = node.end()
        assert end.status == 128 + number, end.stderr
        assert "Traceback" not in end.stderr
        assert f"SIG{'INT' if number == signal.SIGINT else 'TERM'}" in end.stderr


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (["--rank=1"], ["--rank=1"], ["--rank 1", "has that number already"]),
        (["--nnodes=2"], ["--nnodes=3"], ["--nnodes", "started with 3", "with 2", "alike"]),
        (["--nnodes=2"], ["--nnodes=1:2"], ["--nnodes", "started with 1:2", "with 2"]),
        (["--job_id=ours"], ["--job_id=theirs"], ["job ours", "job theirs"]),
        (["--elastic_level=1"], ["--elastic_level=0"], ["restarts", "alike"]),
    ],
)
def test_a_node_that_cannot_take_part_gets_the_reason_and_harms_no_other(
    tmp_path: Path,
    three: list[Host],
    backend: Backend,
    first: list[str],
    second: list[str],
    words: list[str],
) -> None:
    with Job(tmp_path, three, backend) as job:
        script = job.script(RUN)
        zero = job.node(0, *first, script)
        zero.await_message("1 of 2 nodes are here|waiting for other nodes")
        wrong = job.node(1, *second, script)
        end = wrong.end()
        assert end.status == NOT_MET, end.stderr
        (line,) = end.error_lines()
        for word in words:
            assert word in line, line
        right = [one for one in first if not one.startswith("--rank")]
        job.end_successfully(zero, job.node(2, *right, script))


@each("module", [PADDLE, TORCH])
@pytest.mark.parametrize(("own", "other"), [("a" * 16, "b" * 16), ("a" * 16, ""), ("", "b" * 16)])
def test_only_nodes_with_the_jobs_secret_are_admitted(
    tmp_path: Path, three: list[Host], module: str, own: str, other: str
) -> None:
    with Job(tmp_path, three, AtMaster) as job:
        script = job.script(RUN)
        zero = job.node(0, script, module=module, RLAUNCH_JOB_SECRET=own)
        zero.await_message("1 of 2 nodes are here|waiting for other nodes")
        end = job.node(1, script, module=module, RLAUNCH_JOB_SECRET=other).end()
        assert end.status == NOT_MET, end.stderr
        (line,) = end.error_lines()
        assert "RLAUNCH_JOB_SECRET" in line
        job.end_successfully(zero, job.node(2, script, module=module, RLAUNCH_JOB_SECRET=own))


@pytest.mark.timeout(300)
def test_a_job_with_a_secret_does_not_join_the_master_of_the_real_paddle(
    tmp_path: Path, three: list[Host]
) -> None:
    with Job(tmp_path, three, AtMaster) as job:
        script = job.script(RUN)
        job.node(0, script, module=PADDLES, POD_IP=three[0].ip)
        end = job.node(1, script, RLAUNCH_JOB_SECRET="0123456789abcdef").end(IMPORT_LIMIT)
        assert end.status == NOT_MET, end.stderr
        (line,) = end.error_lines()
        assert "speaks Paddle's protocol, which cannot prove the job's secret" in line


@pytest.mark.parametrize("rank", ["2", "-7", "x"])
def test_a_number_out_of_range_is_a_wrong_command_line(tmp_path: Path, three: list[Host], rank: str) -> None:
    with Job(tmp_path, three, AtMaster) as job:
        end = job.node(0, f"--rank={rank}", "--join_timeout=1", job.script(RUN)).end()
        assert end.status == USAGE
        assert f"--rank {rank}" in end.error_lines()[0]


def test_garbage_at_the_masters_port_harms_no_node(tmp_path: Path, three: list[Host]) -> None:
    garbage = """
import os, socket, sys
said = [os.urandom(300), b"GET / HTTP/1.1\\r\\n\\r\\n", b"PUT /job/info HTTP/1.0\\r\\n", b""]
for number in range(200):
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as guest:
        guest.sendall(said[number % 4])
"""
    with Job(tmp_path, three, AtMaster) as job:
        script = job.script(RUN)
        zero = job.node(0, script)
        assert isinstance(job.backend, AtMaster)
        where = [job.backend.host, str(job.backend.port)]
        until(lambda: "waiting for other nodes" in zero.stderr() or "are here" in zero.stderr(), "the master")
        with three[1].run([sys.executable, "-c", garbage, *where]) as guest:
            assert guest.wait() == 0
        job.end_successfully(zero, job.node(2, script))


def test_another_listener_at_the_masters_port_is_named(tmp_path: Path, three: list[Host]) -> None:
    with Job(tmp_path, three, AtMaster) as job:
        script = job.script(RUN)
        assert isinstance(job.backend, AtMaster)
        server = job.run(0, [sys.executable, "-u", "-m", "http.server", str(job.backend.port)])
        until(lambda: "Serving" in (tmp_path / "out.0").read_text(), "the server")
        for on in (0, 1):
            end = job.node(on, "--join_timeout=5", script).end()
            assert end.status == NOT_MET, end.stderr
            (line,) = end.error_lines()
            for word in (
                f"--master 10.77.0.1:{job.backend.port}",
                "something else listens there",
                "HTTP",
                "free port",
            ):
                assert word in line, line
        server.process.kill()
        server.process.wait()


def test_the_command_that_is_printed_starts_the_other_node(tmp_path: Path, three: list[Host]) -> None:
    with Job(tmp_path, three, AtMaster) as job:
        script = job.script(RUN)
        args = ["--nnodes=2", "--nproc_per_node=1", "--log_dir=a log", script, "an argument", "$HOME"]
        zero = job.run(0, [sys.executable, "-m", "rlaunch", *args])
        until(lambda: (tmp_path / "out.0").read_text().count("-" * 80) == 2, "the command")
        line = (tmp_path / "out.0").read_text().split("-" * 80)[1].strip()
        assert re.match(r"RLAUNCH_JOB_SECRET=[0-9A-Za-z]{32} python -m rlaunch --master ", line), line
        # Without the secret, the command does not lead into the job.
        stranger = job.run(
            2, ["sh", "-c", line.split(" ", 1)[1].replace("python", shlex.quote(sys.executable), 1)]
        )
        assert stranger.end().status == NOT_MET
        shell = ["sh", "-c", line.replace("python", shlex.quote(sys.executable), 1)]
        job.end_successfully(zero, job.run(1, shell))


@each("on", [pytest.param((0, 1), id="apart"), pytest.param((0, 0), id="on one host")])
def test_two_that_start_at_once_make_one_world(
    tmp_path: Path, three: list[Host], backend: Backend, on: tuple[int, int]
) -> None:
    for turn in range(10):
        (tmp_path / str(turn)).mkdir()
        with Job(tmp_path / str(turn), three, backend) as job:
            start_at_once(job, on, job.script('tell(f"began.{node}", world)'))
            job.end_successfully()
            written = {path.name: path.read_text() for path in job.folder.glob("began.*")}
            assert sorted(written) in (["began.0.0", "began.1.1"], ["began.0.1", "began.1.0"])
            assert set(written.values()) == {"2"}


# A client of torch's store: greets and sends a PING (torch/csrc/distributed/c10d/TCPStoreBackend.hpp), and
# prints whether it is answered.
KNOCK = """
import socket, struct, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) as store:
    try:
        store.sendall(struct.pack("<BIBI", 0, 0x3C85F7CE, 13, 7))
        print("answered" if store.recv(4) == struct.pack("<I", 7) else "closed")
    except ConnectionResetError:
        print("closed")
"""


@pytest.mark.parametrize(("peers", "seen"), [("nodes", "closed"), ("any", "answered")])
def test_the_store_of_ranks_takes_connections_from_the_nodes_alone(
    tmp_path: Path, three: list[Host], backend: Backend, peers: str, seen: str
) -> None:
    def knock(host: Host) -> str:
        at = (tmp_path / "store.0").read_text().split()
        with host.run([sys.executable, "-c", KNOCK, *at], stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            return str(client.stdout.read().strip())

    with Job(tmp_path, three, backend) as job:
        script = job.script("""
            tell("store", os.environ["MASTER_ADDR"] + " " + os.environ["MASTER_PORT"])
            live_until("finish")
        """)
        nodes = job.start(f"--store-peers={peers}", script, count=2, module=TORCH)
        job.await_files("store.0")
        assert [knock(host) for host in three] == ["answered", "answered", seen]
        job.finish()
        job.end_successfully()
    named = [re.findall(r"the store refused a connection from ([0-9.]+)", node.stderr()) for node in nodes]
    assert [address for of_node in named for address in of_node] == ["10.77.0.3"] * (seen == "closed")


ELASTIC = {
    PADDLE: ["--elastic_level=1", "--elastic_timeout=60", "--restart_delay=0"],
    TORCH: ["--max-restarts=3", "--rdzv-conf=last_call_timeout=60"],
}


@each("module", [PADDLE, TORCH])
def test_a_spare_with_its_preload_server_replaces_a_lost_node(
    tmp_path: Path, three: list[Host], backend: Backend, module: str
) -> None:
    with Job(tmp_path, three, backend, "2") as job:
        args = [*ELASTIC[module], "--spares=1", "--preload=json", job.script('live_until("finish")')]
        zero, one = (job.node(on, *args, module=module) for on in range(2))
        for node in (zero, one):
            node.await_round(2, 1)
        spare = job.node(2, *args, module=module)
        spare.await_message("this node waits to replace a lost one")
        until(lambda: spare.events("zygote_ready"), "its preload server")
        end = job.node(2, *args, module=module).end()
        assert end.status == NOT_MET, end.stderr
        assert "--spares 1: the job has 2 nodes and 1 spare(s) already" in end.stderr
        one.kill()
        # Sooner than the last call for more nodes.
        for node in (zero, spare):
            node.await_round(2, 2, limit=45)
        job.finish()
        job.end_successfully(zero, spare)
        assert len(spare.events("zygote_ready")) == 1
        assert job.check_one_world() == {1: 2, 2: 2}


@pytest.mark.parametrize(
    ("module", "args", "instead"),
    [
        (PADDLE, [], "--elastic_level 1, or --nnodes MIN:MAX"),
        (TORCH, ["--max-restarts=0"], "--max-restarts, or --nnodes MIN:MAX"),
    ],
)
def test_spares_of_a_job_that_ends_with_a_lost_node_are_refused(
    tmp_path: Path, three: list[Host], module: str, args: list[str], instead: str
) -> None:
    with Job(tmp_path, three, AtMaster, "2") as job:
        for spares, words in (("1", f"ends when it loses a node; give {instead}"), ("-1", "give 0 or more")):
            end = job.node(0, *args, f"--spares={spares}", "train.py", module=module).end()
            assert end.status == USAGE, end.stderr
            assert words in end.stderr
