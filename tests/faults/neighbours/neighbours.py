"""Runs random jobs in two containers that share /dev/shm, and looks after each whether others were touched.

    python tests/faults/neighbours/neighbours.py --jobs 200 --seed 1

Both containers have PID namespaces and cgroups of their own, one of them in a cgroup namespace.
Each has neighbours of the jobs: processes that were started into it (`docker exec`), a service in a cgroup
`rlaunch-*.service`, and shared memory with the ids of all processes in its names. Needs root. Exit status 1
if something was touched.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LIMIT = 120
MEMORY = Path("/dev/shm")
# Process 1 of a container: reaps orphans until it is killed.
INIT = 'touch "$1"; while :; do sleep 1000 & wait; done'
PIDS = range(1, 400)

JOB = """
import json, mmap, os, signal, subprocess, sys, time, uuid
rank, plan = int(os.environ["PADDLE_TRAINER_ID"]), json.load(open("plan.json"))
kept = []

def share(kind):
    with open(f"/dev/shm/{kind}_{os.getpid()}_0_{plan['token']}_{uuid.uuid4().hex}", "x+b") as file:
        file.truncate(4096)
        kept.append(mmap.mmap(file.fileno(), 4096))

def fork(then):
    read, write = os.pipe()
    if os.fork() == 0:
        then()
        os.write(write, b".")
        while True:
            time.sleep(600)
    os.close(write)
    os.read(read, 1)

quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
actions = {
    "paddle": lambda: share("paddle"),
    "torch": lambda: share("torch"),
    "handed on": lambda: (share("paddle"), kept.pop().close()),
    "worker": lambda: fork(lambda: share("paddle")),
    "helper": lambda: fork(lambda: (os.setsid(), share("paddle"))),
    "daemon": lambda: subprocess.run(["sh", "-c", "setsid sleep 600 > /dev/null 2>&1 &"]),
    "bare": lambda: subprocess.Popen(["sleep", "600"], env={}, **quiet),
}
for action in plan["actions"][rank]:
    actions[action]()
open(f"ready.{rank}", "w").close()
if rank == plan["first"]:
    while not all(os.path.exists(f"ready.{other}") for other in range(len(plan["actions"]))):
        time.sleep(0.005)
    supervisor = os.getppid()
    launcher = int(open(f"/proc/{supervisor}/stat").read().rpartition(")")[2].split()[1])
    how = plan["ending"]
    if how == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "stop":
        os.kill(launcher, signal.SIGTERM)
    elif how == "launcher":
        os.kill(launcher, signal.SIGKILL)
    elif how == "supervisor":
        os.kill(supervisor, signal.SIGKILL)
    else:
        os._exit(0 if how == "success" else 3)
elif plan["ending"] == "success":
    os._exit(0)
time.sleep(600)
"""
ACTIONS = ("paddle", "torch", "handed on", "worker", "helper", "daemon", "bare")
# How a job ends, and its exit status.
STATUS = {"success": 0, "failure": 3, "signal": 137, "stop": 143, "launcher": -9, "supervisor": 72}


def draw(rng: random.Random) -> dict[str, Any]:
    """One job."""
    ranks = rng.randint(1, 3)
    actions = [rng.sample(ACTIONS, rng.randint(0, 4)) for _ in range(ranks)]
    return {"actions": actions, "first": rng.randrange(ranks), "ending": rng.choice([*STATUS])}


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def started(pid: int) -> str:
    """The start time of a process that runs; empty if it does not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def cgroup_folder() -> Path | None:
    """Where this machine's cgroups of version 2 are, if they may be made."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        at = Path(line.split()[4])
        if " - cgroup2 " in line and os.access(at / "cgroup.procs", os.W_OK):
            return at
    return None


@dataclass
class Container:
    """PID and mount namespaces, and the processes and files in them that are none of a job."""

    folder: Path
    pid: int
    token: str
    has_own_cgroups: bool
    box: Path | None
    cgroup: Path | None = None
    processes: dict[int, str] = field(default_factory=dict)
    holders: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def command(self, *words: str) -> list[str]:
        """Runs words in it, as `docker exec` does."""
        words = ("nsenter", f"--target={self.pid}", "--pid", "--mount", "--", *words)
        if self.box is None:
            return [*words]
        # In the container's cgroup.
        enter = f'echo $$ > {self.box}/cgroup.procs; exec "$@"'
        spaces = ["--cgroup"] if self.has_own_cgroups else []
        return ["sh", "-ec", enter, "sh", words[0], *spaces, *words[1:]]

    def neighbour(self) -> int:
        """Starts a process in it, which its job must not end; returns its id outside."""
        holder = subprocess.Popen(self.command("sleep", "100000"))
        self.holders.append(holder)
        until(lambda: children(holder.pid) or started(holder.pid) == "", "a neighbour")
        (pid,) = children(holder.pid)
        self.processes[pid] = started(pid)
        return pid

    def touched(self) -> list[str]:
        """What is no longer as it was."""
        ended = [f"process {pid}" for pid, since in self.processes.items() if started(pid) != since]
        lost = [str(file) for file in files_of(self.token) if not file.exists()]
        removed = [str(self.cgroup)] if self.cgroup and not self.cgroup.exists() else []
        return [*ended, *lost, *removed]


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def files_of(token: str) -> list[Path]:
    return [MEMORY / f"{kind}_{pid}_0_{token}" for kind in ("paddle", "torch") for pid in PIDS]


@contextlib.contextmanager
def container(folder: Path, has_own_cgroups: bool) -> Iterator[Container]:
    folder.mkdir()
    machine, token = cgroup_folder(), uuid.uuid4().hex
    box = machine / f"box-{token}" if machine else None
    setup, enter = "", 'exec "$@"'
    spaces = ["--pid", "--fork", "--mount-proc", "--kill-child"]
    if box:
        box.mkdir()
        enter = f"echo $$ > {box}/cgroup.procs; {enter}"
    if box and has_own_cgroups:
        setup = 'umount "$2"; mount -t cgroup2 none "$2"; '
        spaces.append("--cgroup")
    init = ["sh", "-c", setup + INIT, "sh", str(folder / "init"), str(machine)]
    holder = subprocess.Popen(["sh", "-c", enter, "sh", "unshare", *spaces, *init])
    service = None
    try:
        until((folder / "init").exists, "the container")
        (pid,) = children(holder.pid)
        made = Container(folder, pid, token, has_own_cgroups, box)
        for _ in range(3):
            service = made.neighbour()
        if box and service:
            made.cgroup = box / f"rlaunch-{token}.service"
            made.cgroup.mkdir()
            (made.cgroup / "cgroup.procs").write_text(str(service))
        for file in files_of(token):
            file.touch()
        yield made
    finally:
        holder.kill()
        holder.wait()
        for one in made.holders:
            one.kill()
            one.wait()
        for file in MEMORY.glob(f"*{token}*"):
            file.unlink(missing_ok=True)
        for group in [group for group in (made.cgroup, box) if group and group.exists()]:
            (group / "cgroup.kill").write_text("1")
            until(
                lambda group=group: "populated 0" in (group / "cgroup.events").read_text(), "the end of all"
            )
            for below in sorted(group.glob("rlaunch-*"), reverse=True):
                below.rmdir()
            group.rmdir()


def run_job(inside: Container, plan: dict[str, Any], number: int) -> int:
    """Runs a job in a container; its exit status."""
    folder = inside.folder / f"job-{number}"
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps({**plan, "token": inside.token}))
    (folder / "train.py").write_text(JOB)
    words = [f"--nproc_per_node={len(plan['actions'])}", "--grace_period=2", "train.py"]
    # The folder of the caller is one of another mount namespace.
    enter = ["sh", "-ec", 'cd "$0"; exec "$@"', str(folder)]
    command = inside.command(*enter, sys.executable, "-m", "rlaunch", *words)
    # Processes that survive the launcher hold no pipe of it.
    with open(folder / "output", "wb") as output:
        done = subprocess.run(command, stdout=output, stderr=output, timeout=LIMIT)
    assert done.returncode == STATUS[plan["ending"]], (plan, done.returncode, (folder / "output").read_text())
    return done.returncode


def run_jobs(inside: Container, jobs: int, seed: str) -> Iterator[tuple[dict[str, Any], int]]:
    rng = random.Random(seed)
    for number in range(jobs):
        plan = draw(rng)
        yield plan, run_job(inside, plan, number)


def find_touched(jobs: int, seed: int, folder: Path) -> list[str]:
    """Runs jobs, half of them in each container, both at once. Returns what was touched, and by which job."""
    with container(folder / "a", False) as first, container(folder / "b", True) as second:
        both = (first, second)

        def run(inside: Container) -> list[str]:
            for plan, status in run_jobs(inside, jobs // 2, f"{seed}/{inside.folder.name}"):
                if touched := [what for one in both for what in one.touched()]:
                    return [f"{touched[:5]} ({len(touched)}) by {plan} (status {status}) in {inside.folder}"]
            return []

        with ThreadPoolExecutor(2) as pool:
            return [line for lines in pool.map(run, both) for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(description="Jobs in containers that share /dev/shm.")
    parser.add_argument("--jobs", type=int, default=200, help="how many (200)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="for the same jobs again")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="neighbours-") as folder:
        touched = find_touched(args.jobs, args.seed, Path(folder))
    print(f"{args.jobs} jobs, seed {args.seed}:", *(touched or ["nothing of others was touched"]), sep="\n")
    return int(bool(touched))


if __name__ == "__main__":
    sys.exit(main())
