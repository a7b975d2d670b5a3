"""Several hosts on this machine: network namespaces on one bridge, as a plain user where that may be."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

AS_USER = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
INTO_USER = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]


class Host:
    """One of them. Its number is the last part of its addresses."""

    def __init__(self, number: int, pid: int, holder: subprocess.Popen[bytes]) -> None:
        self.ip = f"10.77.0.{number}"
        self.ipv6 = f"fd77::{number}"
        self.number, self.pid, self.holder = number, pid, holder
        self.losing: Counter[str] = Counter()

    def link(self, state: str) -> None:
        """Sets its cable's other end, on the switch, `up` or `down`."""
        self._set(state)

    def loses(self, to: Host) -> None:
        """From here on, packets that it sends to another host by IPv4 are lost without an error.

        Each call needs one of `reaches` to end it.
        """
        self.losing[to.ip] += 1
        if self.losing[to.ip] == 1:
            self._set(f"loses {to.ip}")

    def reaches(self, to: Host) -> None:
        self.losing[to.ip] -= 1
        if not self.losing[to.ip]:
            self._set(f"reaches {to.ip}")

    def _set(self, words: str) -> None:
        assert self.holder.stdin is not None
        assert self.holder.stdout is not None
        self.holder.stdin.write(f"{self.number} {words}\n".encode())
        self.holder.stdin.flush()
        assert self.holder.stdout.readline() == b"done\n"

    def run(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """Starts a command on it."""
        enter = ["nsenter", f"--target={self.pid}", "--net", *INTO_USER, "--"]
        return subprocess.Popen([*enter, *command], **options)


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """Hosts 1 to `count`, which reach each other by `ip` and `ipv6` on their interface `wire`."""
    command = ["unshare", *AS_USER, "--net", sys.executable, str(Path(__file__)), str(count)]
    # Ctrl-C at a terminal reaches the tests alone, which end the network last.
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, start_new_session=True, **pipes) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        line = holder.stdout.readline()
        assert line, "no network namespaces here"
        try:
            yield [Host(number, pid, holder) for number, pid in enumerate(json.loads(line), 1)]
        finally:
            holder.stdin.close()


def hold(count: int) -> None:
    """Makes them and keeps them until stdin closes; a line of it is a link's new state."""
    from pyroute2 import IPRoute

    pids: list[int] = []
    pipes: list[tuple[int, int]] = []
    with IPRoute() as switch:
        switch.link("add", ifname="switch", kind="bridge")
        (bridge,) = switch.link_lookup(ifname="switch")
        switch.link("set", index=bridge, state="up")
        for number in range(1, count + 1):
            (apart, tell), (wait, go) = os.pipe(), os.pipe()
            pid = os.fork()
            if pid == 0:
                be_a_host(number, tell, wait)
            os.close(tell)
            os.close(wait)
            pids.append(pid)
            pipes.append((go, apart))
            assert os.read(apart, 1)
            name = f"host{number}"
            switch.link("add", ifname=name, kind="veth", peer={"ifname": "wire", "net_ns_pid": pid})
            (end,) = switch.link_lookup(ifname=name)
            switch.link("set", index=end, master=bridge, state="up")
            os.write(go, b".")
            assert os.read(apart, 1)
        print(json.dumps(pids), flush=True)
        for line in sys.stdin:
            number, state, *to = line.split()
            if to:
                go, apart = pipes[int(number) - 1]
                os.write(go, f"{state} {to[0]}\n".encode())
                assert os.read(apart, 1)
            else:
                (end,) = switch.link_lookup(ifname=f"host{number}")
                switch.link("set", index=end, state=state)
            print("done", flush=True)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def be_a_host(number: int, tell: int, wait: int) -> None:
    from pyroute2 import IPRoute

    new_net, no_detection, dies_with_parent = 0x40000000, 0x02, 1
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(dies_with_parent, signal.SIGKILL)
    if libc.unshare(new_net) != 0:
        os._exit(1)
    os.write(tell, b".")
    os.read(wait, 1)
    with IPRoute() as network:
        for name in ("lo", "wire"):
            (index,) = network.link_lookup(ifname=name)
            network.link("set", index=index, state="up")
        network.addr("add", index=index, address=f"10.77.0.{number}", prefixlen=24)
        # Else the address may not be used for a second, in which a twin of it is looked for.
        network.addr("add", index=index, address=f"fd77::{number}", prefixlen=64, flags=no_detection)
        os.write(tell, b".")
        with os.fdopen(wait) as orders:
            for line in orders:
                state, to = line.split()
                # Frames to an address that no host has.
                nowhere = {"lladdr": "02:00:00:00:00:01", "state": "permanent"}
                if state == "loses":
                    network.neigh("replace", dst=to, ifindex=index, **nowhere)
                else:
                    network.neigh("delete", dst=to, ifindex=index)
                os.write(tell, b".")
    os._exit(0)


if __name__ == "__main__":
    hold(int(sys.argv[1]))
