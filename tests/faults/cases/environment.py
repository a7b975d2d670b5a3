"""Unusual environments: no /proc, closed descriptors, ignored signals, a host program that forks or dies."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from cases.case import Group, Observation, case, ended
from job import Job, Late, mounted, namespaces, until
from launchers import Launcher
from marked import Member, describe, members, stat_of, survivors

# Rank 0 fails, and leaves a process behind in its group.
FAIL = """
if rank == 0:
    leave("child")
hold()
os._exit(0 if rank else 7)
"""


@case(
    "no-proc",
    Group.ENVIRONMENT,
    "/proc is not mounted; rank 0 has a child and exits 7",
    "exit 7, 0 survivors, within 2 s",
)
def no_proc(launcher: Launcher, folder: Path) -> Observation:
    with Job(launcher, folder, FAIL, wrap=mounted("-t", "tmpfs", "none", "/proc")) as job:
        job.await_files("ready")
        job.close_gate()
        first = time.monotonic()
        job.wait(60)
        took = time.monotonic() - first
        return ended(job, 7, 0.1, f"{took:.1f} s", ok=took <= 2)


# PID 1 of the namespace that /proc is of. Its children 2 to 20 have the children 21 to 58.
NUMBERS = """
import os, subprocess, sys, time

def fork(body):
    pid = os.fork()
    if pid == 0:
        body()
        time.sleep(600)
    return pid

start = os.pipe()

def parent():
    os.close(start[1])
    os.read(start[0], 1)
    for _ in range(2):
        fork(lambda: None)

for number in range(2, 21):
    assert fork(parent) == number
os.close(start[1])
sys.exit(subprocess.call(sys.argv[1:]))
"""
# PID 1 of the namespace below. The launcher has a number from 2 to 20, bystanders have all from 21 to 58.
BYSTANDERS = """
import os, signal, subprocess, sys, time

def await_file(name):
    while not os.path.exists(name):
        time.sleep(0.005)

launcher = subprocess.Popen(sys.argv[1:])
for rank in range(2):
    await_file(f"ready.{rank}")
bystanders = []
while not bystanders or bystanders[-1] < 70:
    bystanders.append(os.fork())
    if bystanders[-1] == 0:
        time.sleep(600)
open("bystanders", "w").close()
status = launcher.wait()
killed = sum(os.waitpid(pid, os.WNOHANG) != (0, 0) for pid in bystanders)
with open("result.tmp", "w") as file:
    file.write(f"{status if status >= 0 else 128 - status} {killed}")
os.rename("result.tmp", "result")
await_file("seen")
"""


@case(
    "foreign-proc",
    Group.ENVIRONMENT,
    "/proc is of another PID namespace, with processes of the same numbers; rank 0 has a child and exits 7",
    "exit 7, 0 survivors, within 2 s, no bystander killed",
)
def foreign_proc(launcher: Launcher, folder: Path) -> Observation:
    above = [
        *namespaces("--pid", "--fork", "--mount-proc", "--kill-child"),
        sys.executable,
        "-S",
        "-c",
        NUMBERS,
    ]
    below = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-S", "-c", BYSTANDERS]
    with Job(launcher, folder, FAIL, wrap=[*above, *below]) as job:
        job.await_files("ready")
        until((folder / "bystanders").exists, "the bystanders", 30)
        job.close_gate()
        first = time.monotonic()
        until((folder / "result").exists, "the launcher's end", 60)
        took = time.monotonic() - first
        status, killed = map(int, (folder / "result").read_text().split())
        with contextlib.suppress(Late):
            until(lambda: not of_ranks(job), "the end of the ranks", 2)
        left = of_ranks(job)
        # The end of PID 1 would end them all.
        (folder / "seen").touch()
        text = f"exit {status}, {took:.1f} s, {describe(left)}, {killed} bystanders killed"
        return Observation(text, status == 7 and took <= 2 and not left and not killed)


def of_ranks(job: Job) -> list[Member]:
    return [member for member in members(job.mark) if member.kind in ("rank", "child")]


SPEAK = """
os.write(1, b"to stdout\\n")
os.write(2, b"to stderr\\n")
"""


@case(
    "closed-stderr",
    Group.ENVIRONMENT,
    "the launcher's stderr is closed (2>&-)",
    "exit 0, stdout and stderr of the ranks in the log",
)
def closed_stderr(launcher: Launcher, folder: Path) -> Observation:
    with Job(launcher, folder, SPEAK, wrap=["sh", "-c", 'exec "$0" "$@" 2>&-']) as job:
        job.wait(60)
        logs = b"".join(path.read_bytes() for path in sorted(job.logs.rglob("*")) if path.is_file())
        lines = min(logs.count(b"to stdout\n"), 2) + min(logs.count(b"to stderr\n"), 2)
        return ended(job, 0, 0.1, f"{lines} of 4 lines in the log", ok=lines == 4)


def ignore_children() -> None:
    """Children are reaped by the kernel then, which discards their status (waitpid(2)); execve keeps it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@case("sigchld", Group.ENVIRONMENT, "SIGCHLD is ignored; rank 0 exits 7", "exit 7, 0 survivors")
def sigchld_ignored(launcher: Launcher, folder: Path) -> Observation:
    body = "hold() if rank else os._exit(7)\n"
    with Job(launcher, folder, body, before_exec=ignore_children) as job:
        return ended(job, 7, launcher.grace + 30)


# Its unmapping writes the page back, while it holds the lock of its memory: it can neither be killed, nor can
# another process read its environment, command line or mappings.
HANG = """
import ctypes
while not os.path.exists("mount/file"):
    time.sleep(0.005)
pid = 0 if rank else os.fork()
if pid == 0 and rank == 0:
    os.setsid()
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    MAP_SHARED, MAP_FIXED_PRIVATE_ANONYMOUS = 1, 0x32
    file = os.open("mount/file", os.O_RDWR)
    page = libc.mmap(None, 4096, 3, MAP_SHARED, file, 0)
    os.close(file)
    ctypes.memset(page, 65, 4096)
    tell("hung", os.getpid())
    libc.mmap(page, 4096, 3, MAP_FIXED_PRIVATE_ANONYMOUS, -1, 0)
    os._exit(0)
hold()
os._exit(0)
"""


@contextlib.contextmanager
def hung_files(folder: Path) -> Iterator[None]:
    """The file system `folder`/mount; its end releases the processes that wait for it."""
    mount = folder / "mount"
    mount.mkdir()
    program = Path(__file__).with_name("hung_files.py")
    command = [sys.executable, "-S", program, mount, folder / "written"]
    daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        until(lambda: mount.is_mount() or daemon.poll() is not None, "the mount", 10)
        if not mount.is_mount():
            raise OSError("cannot mount a FUSE file system: this case needs root and /dev/fuse")
        yield
    finally:
        daemon.kill()
        daemon.wait()
        subprocess.run(["umount", "--lazy", mount], check=False)


@case(
    "hung-kernel",
    Group.ENVIRONMENT,
    "rank 0 leaves a process that hangs in the kernel with the lock of its memory held",
    "exit 0 within grace + 10 s, the process is named",
    quick=False,
)
def hung_in_kernel(launcher: Launcher, folder: Path) -> Observation:
    # Nothing of the matrix may read the environment of that process before it is released.
    with Job(launcher, folder, HANG) as job, hung_files(folder):
        until((folder / "written").exists, "the process that hangs", 90)
        job.await_files("ready")
        job.close_gate()
        first = time.monotonic()
        job.wait(launcher.grace + 10)
        took = time.monotonic() - first
        pid = (folder / "hung.0").read_text()
        named = re.search(rf"\b{pid}\b", job.errors()) is not None
        text = f"{job.status()}, {took:.1f} s, {'' if named else 'not '}named"
        return Observation(text, job.code == 0 and named)


# A host program: its fork ends by Python's own way out, through whatever frames the signal came upon.
HOST = """
import os, runpy, signal, sys

def run(rank=None):
    if rank is not None:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
    runpy.run_path("train.py", run_name="__main__")

def fork(*_):
    pid = os.fork()
    if pid == 0:
        sys.exit()
    with open("fork.tmp", "w") as file:
        file.write(str(pid))
    os.rename("fork.tmp", "fork")
"""
START = """
if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, fork)
"""
JOIN = """
    try:
        while not context.join():
            pass
    except Exception as error:
        with open("failure", "w") as file:
            file.write(str(error))
        sys.exit(1)
"""


def indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.strip().splitlines())


def host_of(launcher: Launcher, folder: Path, code: str) -> list[str | Path]:
    """The command of a program with this code below its `if __name__ == "__main__"`."""
    (folder / "host.py").write_text(HOST + START + code)
    options = launcher.options(2, folder / "log")
    return [launcher.python, folder / "host.py", *options, folder / "train.py"]


def forked(where: str, launcher: Launcher, folder: Path) -> Observation:
    code = indented(launcher.spawn_code) + JOIN if where == "spawn" else indented(launcher.run_code)
    with Job(launcher, folder, "hold()\n", program=host_of(launcher, folder, code)) as job:
        ranks = job.await_files("ready")
        job.process.send_signal(signal.SIGUSR1)
        until((folder / "fork").exists, "the fork", 10)
        fork = int((folder / "fork").read_text())
        with contextlib.suppress(Late):
            until(lambda: not is_running(fork), "the end of the fork", 10)
        exits = not is_running(fork)
        alive = sum(map(is_running, ranks))
        job.close_gate()
        notes = [f"{alive} of 2 ranks went on", *([] if exits else ["the fork does not exit within 10 s"])]
        return ended(job, 0, 30, *notes, ok=exits and alive == 2)


def is_running(pid: int) -> bool:
    try:
        return stat_of(pid)[0] not in "ZX"
    except OSError:
        return False


for where, title in {
    "run": "the program runs the launcher in its own process, and forks while ranks run; the fork exits",
    "spawn": "the program starts ranks by spawn, and forks while they run; the fork exits",
}.items():
    case(f"fork-{where}", Group.HOST, title, "the ranks go on, exit 0")(functools.partial(forked, where))


@case(
    "spawn-sigchld",
    Group.HOST,
    "the program ignores SIGCHLD and starts ranks by spawn; rank 0 exits 7",
    "join names exit code 7, 0 survivors",
    quick=False,  # Before Linux 6.15 the kernel keeps no status (PIDFD_GET_INFO).
)
def spawn_with_sigchld_ignored(launcher: Launcher, folder: Path) -> Observation:
    program = host_of(launcher, folder, indented(launcher.spawn_code) + JOIN)
    body = "hold() if rank else os._exit(7)\n"
    with Job(launcher, folder, body, program=program, before_exec=ignore_children) as job:
        job.wait(launcher.grace + 30)
        failure = folder / "failure"
        text = failure.read_text().strip() if failure.exists() else ""
        named = "exit code 7" in text
        return ended(job, 1, 0.1, f"{text.splitlines()[-1] if text else 'no exception'}", ok=named)


def kill_guardian(job: Job) -> bool:
    """Kills the process that outlives the host to end what ranks leave; False if there is none."""
    guardians = [member.pid for member in members(job.mark) if member.kind == "guardian"]
    for pid in guardians:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(is_running, guardians)), "the guardian's end", 10)
    return bool(guardians)


def kill_host(job: Job, guarded: bool) -> Observation:
    job.process.kill()
    job.process.wait()
    left = survivors(job.mark)
    if job.launcher.ours and not guarded:
        return Observation(f"no guardian to be killed, {describe(left)}", False)
    return Observation(("" if guarded else "has none, ") + describe(left), not left)


@case("guardian", Group.HOST, "SIGKILL to the guardian of spawn's ranks, then to the program", "0 survivors")
def guardian_killed(launcher: Launcher, folder: Path) -> Observation:
    program = host_of(launcher, folder, indented(launcher.spawn_code) + JOIN)
    with Job(launcher, folder, "hold()\n", program=program) as job:
        job.await_files("ready")
        return kill_host(job, kill_guardian(job))


AGAIN = """
    import time
    open("joined", "w").close()
    while not os.path.exists("again"):
        time.sleep(0.005)
"""
LEAVE_AGAIN = """
if os.path.exists("again"):
    leave("setsid")
    hold()
"""


@case(
    "guardian-next",
    Group.HOST,
    "SIGKILL to the guardian, spawn once more, each rank has a child in a session of its own, "
    "SIGKILL to the program",
    "0 survivors",
)
def next_guardian(launcher: Launcher, folder: Path) -> Observation:
    start = indented(launcher.spawn_code) + JOIN
    program = host_of(launcher, folder, start + AGAIN + start)
    with Job(launcher, folder, LEAVE_AGAIN, program=program) as job:
        until((folder / "joined").exists, "the end of the first ranks", 90)
        guarded = kill_guardian(job)
        (folder / "again").touch()
        job.await_files("ready")
        return kill_host(job, guarded)
