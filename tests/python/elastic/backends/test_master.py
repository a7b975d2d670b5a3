"""The embedded master where processes are stopped, and go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import native_hooks

LEASE = 2.0
PATIENCE = 60.0

SERVE = f"""
import sys
sys.path.insert(0, sys.argv[1])
import native_hooks
master = native_hooks.Master(lease={LEASE})
print(master.port, flush=True)
sys.stdin.read()
"""


def record(name: str, standing: dict[str, Any]) -> str:
    rules = {"min": 2, "max": 2, "join_ms": 600_000}
    offer = {"name": name, "host": name, "ranks": 1, "rules": rules}
    return json.dumps({"format": 5, "info": offer, "status": standing})


def hear(client: native_hooks.MasterClient, what: str, phase: str | None = None) -> str:
    """Until there is such news, or the job is in such a phase."""
    heard: list[Any] = []
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for kind, text, members in client.heard(1.0):
            heard.append((kind, text, members))
            if kind == what and (phase is None or json.loads(text)["phase"]["is"] == phase):
                return text
    raise AssertionError(f"in vain: {what}, {heard}")


def test_a_master_that_was_suspended_longer_than_a_lease_considers_no_node_lost() -> None:
    served = subprocess.Popen(
        [sys.executable, "-c", SERVE, native_hooks.FOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert served.stdout is not None
    assert served.stdin is not None
    try:
        port = int(served.stdout.readline())
        ready, runs = {"is": "Ready", "seen": 0}, {"is": "Runs", "round": 1}
        clients = {
            name: native_hooks.MasterClient("127.0.0.1", port, name, record(name, ready), lease=LEASE)
            for name in "ab"
        }
        for name, client in clients.items():
            hear(client, "state", "Running")
            client.put(record(name, runs))
        os.kill(served.pid, signal.SIGSTOP)
        began = time.monotonic()
        for client in clients.values():
            hear(client, "lost")
        assert time.monotonic() - began < LEASE
        # As long as a lease and more.
        while time.monotonic() - began < 1.5 * LEASE:
            clients["a"].heard(0.1)
        os.kill(served.pid, signal.SIGCONT)
        for client in clients.values():
            hear(client, "back")
        done = {"is": "Done", "round": 1}
        for name, client in clients.items():
            client.put(record(name, done))
        for client in clients.values():
            assert json.loads(hear(client, "state", "Ended"))["phase"]["end"] == {"by": "Completed"}
            client.close()
    finally:
        served.stdin.close()
        served.send_signal(signal.SIGCONT)
        served.wait(PATIENCE)
        served.stdout.close()
