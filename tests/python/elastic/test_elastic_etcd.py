"""Jobs whose nodes rendezvous at a real etcd: training, growing, names, leftovers, and unusable servers."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest
from effort import each
from elastic_jobs import (
    FAILED_ELSEWHERE,
    NODE_LOST,
    NOT_MET,
    PADDLE,
    STAR,
    STOPPED_ELSEWHERE,
    TORCH,
    USAGE,
    Job,
    Node,
    start_at_once,
)
from etcd import Certificates, Etcd
from hosts import Host
from launching import Ended, Place, environment, free_ports, until
from multi_host import MultiHost, await_ranks, joining, multi_host, name_of
from test_elastic_scale import LEARN, elastic, open_gate
from test_elastic_training import DDP, check_training
from test_launch_nodes import TRAIN
from torch_launching import TorchPlace

PREFLIGHT = 66
LEASE = 2.0
RUN = 'live_until("finish")\n'


@pytest.fixture(scope="module")
def made() -> Iterator[MultiHost]:
    with multi_host(4) as made:
        yield made


def await_nothing_below(etcd: Etcd, job: Job, limit: float) -> float:
    """Waits until no key of the job is left; how long that took."""
    began = time.monotonic()
    until(lambda: not etcd.keys(f"/rlaunch/{name_of(job)}/"), "the end of the job's keys", limit)
    return time.monotonic() - began


# All is trained and written by then. torch 2.15 may abort as the interpreter ends: see test_torch_cpu.py.
LEAVE = "os._exit(0)\n"


@pytest.mark.parametrize(("module", "body"), [(PADDLE, TRAIN), (TORCH, DDP + LEAVE)])
def test_two_hosts_train(tmp_path: Path, made: MultiHost, etcd: Etcd, module: str, body: str) -> None:
    with Job(tmp_path, made.on[:2], made.at(etcd)) as job:
        framework = "torch" if module == TORCH else "paddle"
        job.start(job.script(body, framework=framework), module=module)
        check_training(job, 2)


@pytest.mark.parametrize(("module", "how"), [(PADDLE, "killed"), (TORCH, "stopped")])
def test_two_become_four_and_two_again(
    tmp_path: Path, made: MultiHost, etcd: Etcd, module: str, how: str
) -> None:
    with Job(tmp_path, made.on, made.at(etcd), "2:4") as job:
        script = job.script(STAR + LEARN)
        args = [*joining(module, 30, LEASE), *elastic(module), script]

        def at(step: int, nodes: list[Node]) -> None:
            for node in nodes:
                node.await_round(len(nodes))
            job.await_text("checkpoint", lambda text: json.loads(text)[0] == step)

        open_gate(job, 10)
        nodes = [job.node(on, *args, module=module) for on in (0, 1)]
        at(10, nodes)
        nodes += [job.node(on, *args, module=module) for on in (2, 3)]
        for node in nodes:
            node.await_round(4)
        open_gate(job, 30)
        at(30, nodes)
        for node in nodes[2:]:
            if how == "killed":
                node.kill()
            else:
                node.process.send_signal(signal.SIGTERM)
        nodes = nodes[:2]
        for node in nodes:
            node.await_round(2)
        open_gate(job, 60)
        job.end_successfully(*nodes)
        worlds = list(job.check_one_world().values())
        assert (worlds[0], max(worlds), worlds[-1]) == (2, 4, 2)
        learned = (tmp_path / "learned.0").read_text()
        await_nothing_below(etcd, job, 3 * LEASE)
    assert learned == uninterrupted()


def uninterrupted() -> str:
    """The result of one process that is never interrupted."""
    points, a, b, loss = [(x, 5 * x + 11) for x in range(8)], 0, 0, 0
    for _ in range(60):
        errors = [(x, (a * x + b >> 16) - y) for x, y in points]
        loss = sum(e * e for _, e in errors)
        a, b = a - sum(e * x for x, e in errors) * 600, b - sum(e for _, e in errors) * 600
    return str(loss)


def test_jobs_with_a_common_prefix_do_not_rendezvous(tmp_path: Path, made: MultiHost, etcd: Etcd) -> None:
    with contextlib.ExitStack() as stack:
        jobs = []
        for name in ("ex7", "ex7e", "ex"):
            (tmp_path / name).mkdir()
            jobs.append(stack.enter_context(Job(tmp_path / name, made.on[:2], made.at(etcd, name))))
        # All at once, on the same hosts.
        for on in (0, 1):
            for job in jobs:
                job.node(on, *joining(PADDLE, 30, LEASE), job.script(RUN))
        for job in jobs:
            await_ranks(job, job.nodes)
        one, other, third = jobs
        one.finish()
        one.end_successfully()
        assert etcd.keys("/rlaunch/ex7/") == []
        third.nodes[1].kill()
        assert third.nodes[0].end().status == NODE_LOST
        assert len([key for key in etcd.keys("/rlaunch/ex7e/") if "/nodes/" in key]) == 2
        other.finish()
        other.end_successfully()
        assert etcd.keys("/rlaunch/ex7e/") == []
        for job in (one, other):
            assert job.check_one_world() == {1: 2}
        assert third.check_one_world() == {1: 2}


@pytest.mark.parametrize("end", ["well", "failed", "stopped", "one killed", "too few"])
def test_nothing_is_left_at_etcd(tmp_path: Path, made: MultiHost, etcd: Etcd, end: str) -> None:
    with Job(tmp_path, made.on[:2], made.at(etcd), "3" if end == "too few" else "2") as job:
        body = 'if rank == 1:\n    raise ValueError("the sea is out")\n' if end == "failed" else ""
        patience = 1 if end == "too few" else 30
        nodes = job.start(*joining(PADDLE, patience, LEASE), job.script(body + RUN))
        if end not in ("too few", "failed"):
            await_ranks(job, nodes)
            assert len(etcd.keys(f"/rlaunch/{name_of(job)}/")) >= 4
        if end == "well":
            job.finish()
        elif end == "stopped":
            nodes[0].process.send_signal(signal.SIGTERM)
        elif end == "one killed":
            nodes[0].kill()
            nodes = nodes[1:]
        statuses = sorted(node.end().status for node in nodes)
        expected = {
            "well": [0, 0],
            "failed": [1, FAILED_ELSEWHERE],
            "stopped": [STOPPED_ELSEWHERE, 128 + signal.SIGTERM],
            "one killed": [NODE_LOST],
            "too few": [NOT_MET, NOT_MET],
        }
        assert statuses == expected[end], [node.stderr() for node in nodes]
        # The keys of a killed launcher go with its lease, which etcd ends up to a second late.
        took = await_nothing_below(etcd, job, LEASE + 2 if end == "one killed" else 0.5)
        print(f"{end}: nothing left after {took:.2f} s")


def test_a_job_whose_launchers_were_all_killed_may_begin_again(
    tmp_path: Path, made: MultiHost, etcd: Etcd
) -> None:
    with Job(tmp_path, made.on[:2], made.at(etcd)) as job:
        lost = 3
        args = [*joining(PADDLE, 30, LEASE, lost), job.script(RUN)]
        old = job.start(*args)
        await_ranks(job, old)
        for node in old:
            node.kill()
        began = time.monotonic()
        new = job.start(*args)
        for node in new:
            node.await_round(2, limit=20)
        # Cut off, the older ranks would have run for so long.
        took = max(node.events("round_started")[0]["monotonic"] for node in new) - began
        assert lost < took < LEASE + lost + 4
        assert re.search(
            r"starting in \d s when ranks of lost nodes have ended", "".join(n.stderr() for n in new)
        )
        print(f"begun again after {took:.2f} s, of which the lease was {LEASE} s")
        job.finish()
        job.end_successfully(*new)
        lines = [line for path in tmp_path.glob("life.[01].0.*") for line in path.read_text().splitlines()]
        ends = [float(line.split()[0]) for line in lines]
        begins = [float(path.read_text().split()[0]) for path in tmp_path.glob("life.[23].0.*")]
        assert len(begins) == 2
        assert max(ends) < min(begins)
        # Keys that only the older job's end clears go with its lease.
        print(f"nothing left after {await_nothing_below(etcd, job, 60):.2f} s")


@each("turns", [range(8), range(8, 15)])
def test_two_that_start_in_the_same_moment_make_one_world(
    tmp_path: Path, made: MultiHost, etcd: Etcd, turns: range
) -> None:
    for turn in turns:
        check_start(tmp_path / str(turn), made, etcd, made.on[:2], turn)


def check_start(folder: Path, made: MultiHost, etcd: Etcd, on: list[Host], turn: int) -> None:
    folder.mkdir()
    with Job(folder, on, made.at(etcd)) as job:
        # On hosts of their own, and on one.
        start_at_once(
            job, (0, turn % 2), *joining(PADDLE, 30, LEASE), job.script('tell(f"began.{node}", world)')
        )
        job.end_successfully()
        written = {path.name: path.read_text() for path in job.folder.glob("began.*")}
        assert sorted(written) in (["began.0.0", "began.1.1"], ["began.0.1", "began.1.0"]), written
        assert set(written.values()) == {"2"}
        assert job.check_one_world() == {1: 2}


# An unusable etcd, and the errors about it.


class OldEtcd(BaseHTTPRequestHandler):
    """One that has the second version of its API alone."""

    def do_GET(self) -> None:
        found = {"/version": '{"etcdserver":"2.3.8","etcdcluster":"2.3.0"}', "/v2/keys/": '{"action":"get"}'}
        self.answer(200 if self.path in found else 404, found.get(self.path, "404 page not found"))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer(404, "404 page not found")

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


class Garbage(BaseRequestHandler):
    """A server of something else."""

    def handle(self) -> None:
        self.request.recv(10)
        self.request.sendall(b"\x00\xffSSH-2.0-garbage\r\n" * 20)


@contextlib.contextmanager
def serving(server: ThreadingTCPServer) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One that speaks TLS, and wants certificates of its clients."""
    folder = tmp_path_factory.mktemp("secured")
    with Etcd(folder / "etcd", certificates=Certificates.make(folder / "tls"), client_auth=True) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def with_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One that lets `me:secret` in."""
    with Etcd(tmp_path_factory.mktemp("named")) as etcd:
        etcd.ask_for_users("me", "secret")
        yield etcd


def refused(place: Place, module: str, master: str, options: dict[str, str], **variables: str) -> Ended:
    """How a launcher ends that finds no server there. `options`: Paddle's `--etcd_...`, without that."""
    script = place.script("")
    if module == PADDLE:
        words = [f"--etcd_{name}={value}" for name, value in options.items()]
        command = ["--nnodes=2", f"--master={master}", "--job_id=j", "--join_timeout=2", *words, script]
        end = place.run(*command, env=environment(**variables))
    else:
        scheme, _, endpoint = master.partition("://")
        user, _, password = options.get("user", "").partition(":")
        conf = {"join_timeout": "2", "last_call_timeout": "1"}
        if scheme == "etcds":
            conf["protocol"] = "https"
        conf |= {"user": user, "password": password} if user else {}
        same = {"ca": "ca_cert", "cert": "ssl_cert", "key": "ssl_cert_key"}
        conf |= {same[name]: value for name, value in options.items() if name in same}
        words = ["--rdzv-conf=" + ",".join(f"{name}={value}" for name, value in conf.items())]
        command = [
            "--nnodes=2",
            "--rdzv-backend=etcd",
            f"--rdzv-endpoint={endpoint}",
            "--rdzv-id=j",
            *words,
            script,
        ]
        end = TorchPlace(place.folder).run(*command, env=environment(**variables))
    assert "Traceback" not in end.stderr
    assert "panicked" not in end.stderr
    return end


def check_words(end: Ended, status: int, *words: str) -> None:
    assert end.status == status, end.stderr
    (line,) = end.error_lines()
    for word in words:
        assert word in line, line


@each("module", [PADDLE, TORCH])
def test_an_authority_or_certificate_that_does_not_fit_is_named(
    place: Place, secured: Etcd, tmp_path: Path, module: str
) -> None:
    other = Certificates.make(tmp_path / "other")
    right = secured.certificates
    assert right is not None
    own = {"cert": str(right.client_cert), "key": str(right.client_key)}
    at = f"etcds://{secured.address}"
    check_words(
        refused(place, module, at, {"ca": str(other.ca), **own}), NOT_MET, secured.address, "authority"
    )
    foreign = {"ca": str(right.ca), "cert": str(other.client_cert), "key": str(other.client_key)}
    check_words(refused(place, module, at, foreign), NOT_MET, secured.address, "certificate")
    check_words(refused(place, module, at, {"ca": str(right.ca)}), NOT_MET, secured.address, "certificate")
    # Never without TLS where it is asked for, nor with it where it is not.
    check_words(refused(place, module, f"etcd://{secured.address}", {}), NOT_MET, secured.address, "TLS")


@each("module", [PADDLE, TORCH])
def test_files_that_are_not_there_or_no_certificates_are_named(place: Place, module: str) -> None:
    (place.folder / "no.pem").write_text("nothing")
    for ca in ("nowhere.pem", "no.pem"):
        check_words(refused(place, module, "etcds://127.0.0.1:1", {"ca": ca}), PREFLIGHT, ca)
    # torch takes it for a file that has both.
    end = refused(place, module, "etcds://127.0.0.1:1", {"cert": "no.pem"})
    check_words(end, USAGE if module == PADDLE else PREFLIGHT, "key" if module == PADDLE else "no.pem")


@each("module", [PADDLE, TORCH])
def test_a_wrong_password_is_refused_and_never_shown(place: Place, with_users: Etcd, module: str) -> None:
    at = f"etcd://{with_users.address}"
    end = refused(place, module, at, {"user": "me:hunter2"})
    check_words(end, NOT_MET, with_users.address, "user", "password")
    assert "hunter2" not in end.stderr
    check_words(refused(place, module, at, {}), NOT_MET, with_users.address, "name a user")


def test_the_right_password_and_certificate_are_accepted(
    place: Place, with_users: Etcd, secured: Etcd
) -> None:
    right = secured.certificates
    assert right is not None
    files = {"ca": right.ca, "cert": right.client_cert, "key": right.client_key}
    words = [f"--etcd_{name}={path}" for name, path in files.items()]
    script = place.script("")
    common = ["--nnodes=1", "--job_id=j", script]
    end = place.run(f"--master=etcds://{secured.address}", *words, *common)
    assert end.status == 0, end.stderr
    end = place.run(
        f"--master=etcd://{with_users.address}", *common, env=environment(RLAUNCH_ETCD_USER="me:secret")
    )
    assert end.status == 0, end.stderr


@each("module", [PADDLE, TORCH])
def test_servers_that_are_no_etcd_or_too_old_are_named(place: Place, module: str) -> None:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), OldEtcd)) as old:
        check_words(refused(place, module, f"etcd://{old}", {}), NOT_MET, old, "v2 API only", "3.4")
    with serving(ThreadingTCPServer(("127.0.0.1", 0), Garbage)) as garbage:
        check_words(refused(place, module, f"etcd://{garbage}", {}), NOT_MET, garbage, "is not etcd")


@each("module", [PADDLE, TORCH])
def test_a_missing_server_is_an_error_in_time(place: Place, module: str) -> None:
    port = free_ports(1)
    began = time.monotonic()
    end = refused(place, module, f"etcd://127.0.0.1:{port}", {})
    check_words(end, NOT_MET, f"127.0.0.1:{port}", "not reached within 2 s", "refused")
    assert time.monotonic() - began < 2 + 4
