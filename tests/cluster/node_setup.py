"""Makes a host a node of a cluster, and runs daemons there until stdin closes.

The node has its own hostname, process ids, /run, /etc/hosts and cgroups. Its programs are this machine's with
Debian's packages of Slurm laid over them. Nothing of it is seen outside, and nothing stays: all its processes
end with the first one.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

NEW_MOUNTS, NEW_NAMES, NEW_PIDS, NEW_CGROUPS = 0x20000, 0x4000000, 0x20000000, 0x2000000
# Slurm's CgroupMountpoint. To know the processes of a step it needs the freezer alone, which can be mounted
# beside cgroup v2.
CGROUPS = Path("/run/cgroup")
FREEZER = CGROUPS / "freezer"
# The same controller as this machine sees it.
OUTER = Path("/run/freezer-of-the-machine")


def unshare(what: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(what) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True)


def first_process(cgroup: Path, daemons: list[list[str]], ready: int) -> None:
    """Starts the daemons, then reaps whatever its parent has left."""
    (cgroup / "tasks").write_text("0")
    # Slurm shall see this node's cgroup as the root.
    unshare(NEW_CGROUPS)
    mount("-t", "cgroup", "-o", "freezer", "freezer", FREEZER)
    mount("-t", "proc", "proc", "/proc")
    for daemon in daemons:
        subprocess.Popen(daemon, stdin=subprocess.DEVNULL)
    os.write(ready, b".")
    os.close(ready)
    while True:
        os.wait()


def main(name: str, hosts: str, over: str, daemons: list[list[str]]) -> None:
    unshare(NEW_MOUNTS | NEW_NAMES)
    socket.sethostname(name)
    mount("--make-rprivate", "/")
    mount("-t", "overlay", "-o", f"lowerdir={over}:/usr", "overlay", "/usr")
    mount("--bind", hosts, "/etc/hosts")
    mount("-t", "tmpfs", "tmpfs", "/run")
    for folder in (OUTER, FREEZER):
        folder.mkdir(parents=True)
    mount("-t", "cgroup", "-o", "freezer", "freezer", OUTER)
    cgroup = OUTER / f"rlaunch-{uuid.uuid4().hex}"
    cgroup.mkdir()
    apart, ready = os.pipe()
    unshare(NEW_PIDS)
    pid = os.fork()
    if pid == 0:
        os.close(apart)
        first_process(cgroup, daemons, ready)
    os.close(ready)
    if os.read(apart, 1):
        print(pid, flush=True)
        sys.stdin.read()
    os.kill(pid, signal.SIGKILL)
    for folder in inner_first(cgroup):
        # A frozen process would not end.
        (folder / "freezer.state").write_text("THAWED")
    os.waitpid(pid, 0)
    for folder in inner_first(cgroup):
        folder.rmdir()


def inner_first(cgroup: Path) -> list[Path]:
    return [Path(folder) for folder, _, _ in os.walk(cgroup, topdown=False)]


if __name__ == "__main__":
    main(*sys.argv[1:4], json.loads(sys.argv[4]))
