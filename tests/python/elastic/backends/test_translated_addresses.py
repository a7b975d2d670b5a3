"""The address of the serving node is translated (a Service, a mapped port): none of its interfaces has it."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from elastic_jobs import PADDLE, TORCH, Job
from hosts import Host
from multi_host import MultiHost

PORTS = itertools.count(29900)
RUNS = 'open(f"began.{node}", "w").close()'
# Forwards connections to this port to the same one of `sys.argv[2]`, but none of those from `sys.argv[3]`.
FORWARD = """
import socket, sys, threading
own, to, without, port = *sys.argv[1:4], int(sys.argv[4])
server = socket.create_server((own, port))
print(flush=True)

def pump(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    for one in (source, target):
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

while True:
    client, (host, _) = server.accept()
    try:
        assert host != without
        target = socket.create_connection((to, port))
    except (AssertionError, OSError):
        client.close()
        continue
    for pair in ((client, target), (target, client)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
"""


@dataclass
class Translated:
    """Nodes find each other at an address that leads to one of them."""

    host: str
    port: int

    def paddle(self) -> list[str]:
        return [f"--master={self.host}:{self.port}"]

    def torch(self) -> list[str]:
        return ["--rdzv-backend=c10d", f"--rdzv-endpoint={self.host}:{self.port}", "--rdzv-id=job"]

    def close(self) -> None:
        pass


class TranslatedStatic(Translated):
    def torch(self) -> list[str]:
        return [f"--master-addr={self.host}", f"--master-port={self.port}"]


@contextmanager
def translated(made: MultiHost, to: Host, *, hairpin: bool, static: bool = False) -> Iterator[Translated]:
    """`hairpin`: the node behind the address reaches itself by it."""
    port = next(PORTS)
    without = "" if hairpin else to.ip
    command = [sys.executable, "-c", FORWARD, made.server.ip, to.ip, without, str(port)]
    with made.server.run(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline()
        try:
            yield (TranslatedStatic if static else Translated)(made.server.ip, port)
        finally:
            server.kill()


# The options of the node behind the address, and of the other one.
CASES = {
    "c10d, is_host": (TORCH, ["--rdzv-conf=is_host=true"], ["--rdzv-conf=is_host=false"], False),
    "c10d, --node-rank": (TORCH, ["--node-rank=0"], ["--node-rank=1"], False),
    "static": (TORCH, ["--node-rank=0"], ["--node-rank=1"], True),
    "paddle": (PADDLE, ["--rank=0"], ["--rank=1"], False),
}


@pytest.mark.parametrize("hairpin", [True, False], ids=["hairpin", "no-hairpin"])
@pytest.mark.parametrize("case", CASES)
def test_the_node_that_the_user_names_serves_behind_a_translated_address(
    tmp_path: Path, made: MultiHost, case: str, hairpin: bool
) -> None:
    module, first, second, static = CASES[case]
    with (
        translated(made, made.on[0], hairpin=hairpin, static=static) as at,
        Job(tmp_path, made.on, lambda _: at) as job,
    ):
        script = job.script(RUNS)
        zero = job.node(0, *first, script, module=module)
        zero.await_message(f"serves the (master|store) on {re.escape(made.on[0].ip)}:{at.port}")
        job.node(1, *second, script, module=module)
        job.end_successfully()
        job.await_files("began.0", "began.1")


def test_rank_0_may_be_on_another_machine_than_the_master(tmp_path: Path, made: MultiHost) -> None:
    """It serves too while no master answers, and then joins that one."""
    port = next(PORTS)
    with Job(tmp_path, made.on, lambda _: Translated(made.on[1].ip, port)) as job:
        script = job.script('open(f"rank{rank}.{node}", "w").close()')
        for module, option in ((PADDLE, "--rank"), (TORCH, "--node-rank")):
            nodes = len(job.nodes)
            zero = job.node(0, f"{option}=0", script, module=module)
            zero.await_message("unless another node's master answers there")
            job.node(1, f"{option}=1", script, module=module)
            job.end_successfully(*job.nodes[nodes:])
            job.await_files(f"rank0.{nodes}", f"rank1.{nodes + 1}")
