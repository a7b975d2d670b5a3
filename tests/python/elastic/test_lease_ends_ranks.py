"""Ranks end before their node's lease has lapsed, whatever else happens on it: ways to two worlds of one job.

What nodes do when nothing else is wrong is in test_elastic_faults.py and test_elastic_etcd_faults.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

import psutil
import pytest
from effort import each
from elastic_jobs import PADDLE, AtMaster, Backend, Job, Node
from etcd import Etcd, EtcdCluster
from hanging_folder import hanging_folder
from hosts import Host
from launching import gone, supervisor_of, until
from multi_host import AtEtcd, MultiHost, await_ranks, joining, lived, onto

LEASE = 3.0
# Even if it is asked to end.
DEAF = """
for one in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(one, signal.SIG_IGN)
live_until("finish")
"""

# The election timeout of etcd. A leader that is cut off renews leases for up to twice as long (CheckQuorum).
# Its successor comes one such time later at the earliest, and prolongs all leases by another (etcd's
# server/lease/lessor.go, Promote).
ELECTION = 1.0

# The launcher process had to kill the ranks.
GUARD = "has not ended the ranks in time"

# Accepts connections on this port of 127.0.0.1 and closes them, as a proxy does that reaches no member.
ACCEPT_ALL = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print(flush=True)
while True:
    server.accept()[0].close()
"""

# Answers each question for an IPv4 address with that of `sys.argv[1]`, and each other with nothing.
NAME_SERVER = """
import socket, struct, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 53))
print(flush=True)
while True:
    query, client = server.recvfrom(512)
    end = query.index(0, 12) + 5
    is_ipv4 = query[end - 4:end - 2] == b"\\0\\1"
    answer = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\0\\0\\4" + socket.inet_aton(sys.argv[1])
    head = query[:2] + struct.pack(">5H", 0x8180, 1, is_ipv4, 0, 0)
    server.sendto(head + query[12:end] + answer * is_ipv4, client)
"""


@pytest.fixture(params=["master", "etcd"])
def backend(request: pytest.FixtureRequest, made: MultiHost) -> Backend:
    if request.param == "master":
        return AtMaster
    etcd: Etcd = request.getfixturevalue("etcd")
    return made.at(etcd)


@contextmanager
def serving(host: Host, program: str, argument: str) -> Iterator[None]:
    """A server on a host, once it listens."""
    with host.run([sys.executable, "-c", program, argument], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline()
        try:
            yield
        finally:
            server.kill()


def both(job: Job, *prefix: str, loss: float | None = None) -> list[Node]:
    """Two nodes of an elastic job whose ranks run; the launchers after this prefix."""
    words = [*joining(PADDLE, 30, LEASE, loss), "--elastic_level=1", "--grace_period=1", job.script(DEAF)]
    nodes = [job.run(on, [*prefix, *job.command(PADDLE, *words)]) for on in range(2)]
    await_ranks(job, nodes)
    return nodes


def check_cut(
    made: MultiHost, job: Job, zero: Node, within: float = 0.8 * LEASE + 0.2
) -> tuple[float, float]:
    """Cuts node 1 off for good: its rank has ended when the other node begins the next round alone.

    How long after the cut either was.
    """
    cut = time.monotonic()
    made.on[1].link("down")
    try:
        zero.await_round(1, 2)
        until(lambda: list(job.folder.glob("life.0.1.*")), "the rank of the next round")
    finally:
        made.on[1].link("up")
    (life,) = job.folder.glob("life.1.0.*")
    last = float(life.read_text().split()[-2]) - cut
    alone = lived(job, 2)[0] - cut
    print(f"the rank ran for {last:.2f} s after the cut, the next round began after {alone:.2f} s")
    assert last < within
    assert last < alone
    return last, alone


def test_a_proxy_on_the_node_is_no_contact(tmp_path: Path, made: MultiHost, etcd: Etcd) -> None:
    port = 23790
    at = AtEtcd(f"{etcd.address},127.0.0.1:{port}", "beside-a-proxy")
    with serving(made.on[1], ACCEPT_ALL, str(port)), Job(tmp_path, made.on, lambda _: at, "1:2") as job:
        zero, one = both(job)
        check_cut(made, job, zero)
        assert GUARD not in one.stderr()


@each("endpoints", ["all", "own"])
def test_a_member_of_etcd_on_the_node_is_no_contact(tmp_path: Path, made: MultiHost, endpoints: str) -> None:
    """Not even if it led the others, and is the only one that the node knows."""
    places = [(host.ip, onto(host)) for host in (made.on[0], made.on[1], made.server)]
    with (
        EtcdCluster(tmp_path / "etcd", places=places) as cluster,
        Job(tmp_path, made.on, made.at(cluster), "1:2") as job,
    ):
        own = cluster.members[1]
        words = [*joining(PADDLE, 30, LEASE), "--elastic_level=1", "--grace_period=1", job.script(DEAF)]
        commands = [job.command(PADDLE, *words) for _ in range(2)]
        if endpoints == "own":
            commands[1] = [word.replace(cluster.addresses, own.address) for word in commands[1]]
        nodes = []
        for on, command in enumerate(commands):
            nodes.append(job.run(on, [word.replace("log.0", f"log.{on}") for word in command]))
        await_ranks(job, nodes)
        while cluster.leader() is not own:
            cluster.move_leader()
        last, alone = check_cut(made, job, nodes[0], 2 * ELECTION + 0.8 * LEASE + 0.2)
        # After the lapse of the lease the other node has waited 2 s for further nodes.
        assert last < alone - 2
        assert GUARD not in nodes[1].stderr()


def test_ranks_outlive_etcd_for_the_time_that_all_nodes_wait_for(
    tmp_path: Path, made: MultiHost, etcd: Etcd
) -> None:
    loss = 4.0
    with Job(tmp_path, made.on, made.at(etcd), "1:2") as job:
        zero, one = both(job, loss=loss)
        last, alone = check_cut(made, job, zero, 0.8 * LEASE + loss + 0.2)
        assert last > LEASE
        assert alone > LEASE + loss - 1
        assert GUARD not in one.stderr()


def test_ranks_do_not_outlive_a_master_for_that_time(tmp_path: Path, made: MultiHost) -> None:
    with Job(tmp_path, made.on, AtMaster, "1:2") as job:
        zero, one = both(job, loss=20)
        check_cut(made, job, zero)
        assert GUARD not in one.stderr()


def test_names_that_do_not_resolve_delay_nothing(tmp_path: Path, made: MultiHost, etcd: Etcd) -> None:
    resolv = tmp_path / "resolv.conf"
    resolv.write_text(f"nameserver {made.server.ip}\n")
    at = AtEtcd(f"etcd.test:{etcd.address.rpartition(':')[2]}", "by-name")
    mount = f'mount --bind {resolv} /etc/resolv.conf && exec "$@"'
    prefix = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    with (
        serving(made.server, NAME_SERVER, made.server.ip),
        Job(tmp_path, made.on, lambda _: at, "1:2") as job,
    ):
        zero, one = both(job, *prefix)
        check_cut(made, job, zero)
        assert GUARD not in one.stderr()


def test_ranks_end_though_the_supervisor_process_is_stopped(
    tmp_path: Path, made: MultiHost, backend: Backend
) -> None:
    """As one that waits for a log folder which hangs: the launcher process kills them."""
    with Job(tmp_path, made.on, backend, "1:2") as job:
        zero, one = both(job)
        (rank,) = one.ranks()
        supervisor = supervisor_of(one.process)
        supervisor.suspend()
        try:
            check_cut(made, job, zero, LEASE)
            assert gone(rank)
            one.await_message(rf"its supervisor process \(pid \d+\) {GUARD}")
        finally:
            supervisor.resume()
        # The ranks' deaths are no failure of theirs.
        until(lambda: one.events("round_ended"), "the end of the round")
        assert one.events("round_ended")[0]["outcome"] == "regrouped", one.events("round_ended")
        assert "failed" not in one.stderr()


@pytest.mark.parametrize("writes", [False, True], ids=["kills-first", "writes-before"])
def test_ranks_end_though_the_log_folder_hangs(
    tmp_path: Path, made: MultiHost, backend: Backend, writes: bool
) -> None:
    """The supervisor process kills them before it records that. While it waits to record something else, the
    launcher process does.
    """
    with (
        # With memory of Paddle's on the machine, the supervisor process looks whose it is before it kills.
        NamedTemporaryFile(dir="/dev/shm", prefix=f"paddle_{os.getpid()}_"),
        hanging_folder(made.on[1].run, tmp_path / "log.1") as logs,
        Job(tmp_path, made.on, backend, "1:2") as job,
    ):
        zero, one = both(job, *logs.prefix)
        (rank,) = one.ranks()
        (life,) = tmp_path.glob("life.1.0.*")
        # It is deaf by its second line.
        job.await_text(life.name, lambda text: text.count("\n") > 1)
        with logs.hangs():
            if writes:
                # It is forwarded to the rank and recorded.
                one.process.send_signal(signal.SIGUSR1)
            check_cut(made, job, zero, LEASE)
            assert gone(rank)
            if writes:
                one.await_message(rf"its supervisor process \(pid \d+\) {GUARD}")
            else:
                assert GUARD not in one.stderr()
        until(lambda: one.events("round_ended"), "the end of the round")
        assert one.events("round_ended")[0]["outcome"] == "regrouped", one.events("round_ended")


# Says whether it may save, until it sees that it may not.
SAVES = """
import rlaunch
while rlaunch.lease_valid():
    live()
    time.sleep(0.01)
try:
    with rlaunch.checkpoint_guard():
        tell("saved")
except rlaunch.StaleRoundError as error:
    tell(f"refused.{node}", str(error))
live_until("finish")
"""


def test_a_rank_whose_launcher_is_stopped_may_not_save(
    tmp_path: Path, made: MultiHost, backend: Backend
) -> None:
    """No process can kill it: it sees by itself that its round is over."""
    with Job(tmp_path, made.on, backend, "1:2") as job:
        words = [*joining(PADDLE, 30, LEASE), "--elastic_level=1", "--grace_period=1", job.script(SAVES)]
        zero, one = job.start(*words)
        await_ranks(job, [zero, one])
        frozen = [psutil.Process(one.process.pid), supervisor_of(one.process)]
        for process in frozen:
            process.suspend()
        try:
            zero.await_round(1, 2)
            until(lambda: list(tmp_path.glob("refused.1.*")), "the rank that may not save")
        finally:
            for process in frozen:
                process.resume()
        (refused,) = tmp_path.glob("refused.*")
        assert refused.read_text() == "round 1 of the job is over, and a newer one may run: nothing was saved"
        assert not list(tmp_path.glob("saved.*"))
        job.finish()
