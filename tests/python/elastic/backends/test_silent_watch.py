"""A proxy before etcd keeps the streams of watches open and delivers nothing more. Requests work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from effort import each
from elastic_jobs import FAILED_ELSEWHERE, PADDLE, TORCH, Job
from etcd import Etcd
from multi_host import AtEtcd, MultiHost, await_ranks, joining

PORT = 23791
LEASE = 5.0
SAYS_SO = "a watch has delivered nothing"
# Forwards from an address to another; once a file exists, nothing of watches that were opened before.
PROXY = """
import os, socket, sys, threading
own, port, host, to, mute = *sys.argv[1:6],
server = socket.create_server((own, int(port)))
print(flush=True)

def serve(client):
    try:
        target = socket.create_connection((host, int(to)))
    except OSError:
        return client.close()
    kind = {}

    def requests():
        try:
            while data := client.recv(65536):
                if b"/v3/watch" in data:
                    kind["watch"] = not os.path.exists(mute)
                target.sendall(data)
        except OSError:
            pass
        for one in (client, target):
            one.close()

    threading.Thread(target=requests, daemon=True).start()
    try:
        while data := target.recv(65536):
            if not (kind.get("watch") and os.path.exists(mute)):
                client.sendall(data)
        client.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass

while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
RUNS = """
live_until("finish" if node == "0" else "fail")
sys.exit(0 if node == "0" else 3)
"""


@contextmanager
def muting(made: MultiHost, etcd: Etcd, mute: Path) -> Iterator[str]:
    """The address of the proxy, which is mute once this file exists."""
    host, port = etcd.address.rsplit(":", 1)
    command = [sys.executable, "-c", PROXY, made.server.ip, str(PORT), host, port, str(mute)]
    with made.server.run(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline()
        try:
            yield f"{made.server.ip}:{PORT}"
        finally:
            server.kill()


@each("module", [PADDLE, TORCH])
def test_a_node_notices_that_its_watches_are_silent(
    tmp_path: Path, made: MultiHost, etcd: Etcd, module: str
) -> None:
    mute = tmp_path / "mute"
    with (
        muting(made, etcd, mute) as address,
        Job(tmp_path, made.on, lambda _: AtEtcd(address, f"silent-{module}")) as job,
    ):
        nodes = job.start(*joining(module, 60, LEASE), job.script(RUNS), count=2, module=module)
        await_ranks(job, nodes)
        mute.touch()
        (tmp_path / "fail").touch()
        # Without the check they would wait for as long as the ranks of node 0 run.
        assert [node.end().status for node in nodes] == [FAILED_ELSEWHERE, 3]
        assert SAYS_SO in nodes[0].stderr() + nodes[1].stderr()
        number = nodes[1].events("round_started")[0]["node"]
        assert nodes[0].result()["job_culprit"]["node"] == number
