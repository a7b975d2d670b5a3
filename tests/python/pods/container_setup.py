"""Runs a command as a container runtime does for Kubernetes: as process 1 of namespaces of its own.

The root file system is this machine's, read-only. The command's user is in no passwd file. It has no
capabilities, no_new_privs and a seccomp filter. The network namespace is the caller's.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import seccomp

NEW_MOUNTS, NEW_NAMES, NEW_IPC, NEW_PIDS, NEW_CGROUPS = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x2000000
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP = 1, 24
MOUNT_SETATTR, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, 0x8000, 1
# Folders of the root that a container has of its own, or that other users may not enter.
OWN = {"app", "dev", "home", "proc", "root", "sys", "tmp"}
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True)


def make_read_only(folder: Path) -> None:
    """With all that is mounted below."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    arguments = (-100, os.fsencode(folder), AT_RECURSIVE, ctypes.byref(attributes), ctypes.sizeof(attributes))
    checked(libc.syscall(MOUNT_SETATTR, *arguments), "mount_setattr")


def show(folder: str | Path, at: Path) -> None:
    """A folder of the image."""
    at.mkdir(parents=True, exist_ok=True)
    mount("--rbind", folder, at)
    make_read_only(at)


def make_root(root: Path, spec: dict[str, Any]) -> None:
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", root)
    for entry in os.scandir("/"):
        if entry.is_symlink():
            (root / entry.name).symlink_to(os.readlink(entry.path))
        elif entry.is_dir() and entry.name not in OWN:
            show(entry.path, root / entry.name)
    for name in OWN:
        (root / name).mkdir()
    mount("--bind", spec["emptyDir"], root / "tmp")
    for folder in spec["image"]:
        if Path(folder).parts[1] in OWN:
            show(folder, root / folder[1:])
    show(spec["app"], root / "app")
    mount("--bind", spec["hosts"], root / "etc/hosts")
    dev = root / "dev"
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", dev)
    for name in DEVICES:
        (dev / name).touch()
        mount("--bind", f"/dev/{name}", dev / name)
    for name in ("pts", "shm"):
        (dev / name).mkdir()
    mount("-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=0620", "devpts", dev / "pts")
    (dev / "ptmx").symlink_to("pts/ptmx")
    (dev / "fd").symlink_to("/proc/self/fd")
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", dev / "shm")
    mount("-t", "sysfs", "-o", "ro", "sysfs", root / "sys")
    mount("-t", "cgroup2", "-o", "ro", "cgroup2", root / "sys/fs/cgroup")
    mount("-o", "remount,ro", root)


def enter(root: Path) -> None:
    """Makes it the root; the machine's is out of reach. The parent keeps its own."""
    checked(libc.unshare(NEW_MOUNTS), "unshare")
    os.chdir(root)
    subprocess.run(["pivot_root", ".", "."], check=True)
    # What is mounted last at the root is the machine's.
    checked(libc.umount2(b".", MNT_DETACH), "umount2")
    os.chdir("/")


def drop_privileges(spec: dict[str, Any]) -> None:
    capability = 0
    while libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    os.setgroups([])
    os.setresgid(spec["gid"], spec["gid"], spec["gid"])
    os.setresuid(spec["uid"], spec["uid"], spec["uid"])
    # After the change of the user, which clears it.
    checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    seccomp.refuse(*({int(number): value for number, value in one.items()} for one in spec["refused"]))


def run(spec: dict[str, Any]) -> None:
    """Becomes the command; in the namespaces of a container that runs this is what `kubectl exec` does."""
    drop_privileges(spec)
    os.chdir(spec["workingDir"])
    os.execvpe(spec["command"][0], spec["command"], spec["env"])


def main(spec: dict[str, Any]) -> int:
    checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    checked(libc.unshare(NEW_MOUNTS | NEW_NAMES | NEW_IPC | NEW_CGROUPS), "unshare")
    socket.sethostname(spec["hostname"])
    mount("--make-rprivate", "/")
    root = Path(spec["root"])
    make_root(root, spec)
    # Process 1 is the first child from here on.
    checked(libc.unshare(NEW_PIDS), "unshare")
    begun, begins = os.pipe()
    pid = os.fork()
    if pid == 0:
        enter(root)
        os.close(begun)
        mount("-t", "proc", "proc", "/proc")
        mount("--bind", "-o", "ro", "/proc/sys", "/proc/sys")
        run(spec)
    os.close(begins)
    # Closed by the command's beginning.
    os.read(begun, 1)
    draft = Path(spec["pidFile"]).with_suffix(".draft")
    draft.write_text(str(pid))
    draft.rename(spec["pidFile"])
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    asked = json.loads(sys.argv[2])
    if sys.argv[1] == "exec":
        run(asked)
    sys.exit(main(asked))
