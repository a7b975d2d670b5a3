"""Jobs that are looked into while they run, and lose their folder. Only rlaunch has a control socket."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from pathlib import Path

from cases.case import Group, Observation, case, ended
from job import Job, until
from launchers import Launcher

STATUS = b'{"version": 1, "request": "status"}\n'
# What the other launchers have instead.
NO_SOCKET = Observation("no way to look into a running job", None)


def socket_of(job: Job) -> Path:
    folder = Path(f"/tmp/rlaunch-{os.geteuid()}")
    pattern = f"{job.process.pid}-*"
    until(lambda: list(folder.glob(pattern)), "the control socket", 10)
    return next(folder.glob(pattern))


def connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    client.settimeout(10)
    return client


@case(
    "folder-deleted", Group.CONTROL, "the log folder is deleted, then a rank exits 7", "exit 7, 0 survivors"
)
def log_folder_deleted(launcher: Launcher, folder: Path) -> Observation:
    with Job(launcher, folder, "hold()\nsleep() if rank else os._exit(7)\n") as job:
        job.await_files("ready")
        shutil.rmtree(job.logs)
        job.close_gate()
        return ended(job, 7, launcher.grace + 60)


@case(
    "control-clients",
    Group.CONTROL,
    "its control socket: 40 clients with half a request, 1 that floods and reads nothing",
    "status is answered, exit 0",
)
def clients_that_hang_and_flood(launcher: Launcher, folder: Path) -> Observation:
    if not launcher.ours:
        return NO_SOCKET
    with Job(launcher, folder, "hold()\n") as job, contextlib.ExitStack() as clients:
        job.await_files("ready")
        path = socket_of(job)
        for _ in range(40):
            clients.enter_context(connect(path)).sendall(STATUS[:10])
        greedy = clients.enter_context(connect(path))
        greedy.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(10_000):
                greedy.send(STATUS * 10)
        with connect(path) as client:
            client.sendall(STATUS)
            is_answered = b'"status"' in client.recv(100)
        job.close_gate()
        return ended(job, 0, 30, "status is answered" if is_answered else "no answer", ok=is_answered)


@case("control-user", Group.CONTROL, "another user asks its control socket", "no answer, exit 0")
def another_user(launcher: Launcher, folder: Path) -> Observation:
    if not launcher.ours:
        return NO_SOCKET
    if os.geteuid() != 0:
        return Observation("not tried: only root can be another user", None)
    with Job(launcher, folder, "hold()\n") as job:
        job.await_files("ready")
        path = socket_of(job)
        path.chmod(0o777)
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            # A descriptor leads past the modes of the folders.
            here = os.open(path.parent, os.O_PATH)
            os.setresuid(65534, 65534, 65534)
            with contextlib.suppress(OSError), connect(Path(f"/proc/self/fd/{here}/{path.name}")) as client:
                client.sendall(STATUS)
                os.write(write, client.recv(100))
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        is_refused = os.read(read, 100) == b""
        os.close(read)
        job.close_gate()
        return ended(job, 0, 30, "no answer" if is_refused else "an answer", ok=is_refused)
