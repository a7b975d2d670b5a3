"""A folder on a file system that can hang: a FUSE server that passes all to the same folder below it.

While the server is stopped, a process that touches the folder waits, as on a network file system whose server
is gone. The file system is in a mount namespace of its own, so that tests still read the folder. It needs no
root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from struct import calcsize, pack, unpack_from

import psutil

# linux/fuse.h
LOOKUP, FORGET, GETATTR, SETATTR, MKDIR, UNLINK, RMDIR, RENAME = 1, 2, 3, 4, 9, 10, 11, 12
OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, INIT, OPENDIR, READDIR = 14, 15, 16, 17, 18, 20, 26, 27, 28
RELEASEDIR, CREATE, INTERRUPT, BATCH_FORGET, RENAME2 = 29, 35, 36, 42, 45
HEAD, OUT, INIT_OUT = "<2I2Q4I", "<IiQ", "<4I2H2I2HI28x"
SIZE_IS_SET = 8
MAX_WRITE = 1 << 17


class HangingFolder:
    """One on a host, while it is served."""

    def __init__(self, server: subprocess.Popen[bytes]) -> None:
        self.server = psutil.Process(server.pid)
        # The prefix of a command that has the folder.
        self.prefix = ["nsenter", f"--target={server.pid}", "--mount", "--wd", "--"]

    @contextmanager
    def hangs(self) -> Iterator[None]:
        self.server.suspend()
        try:
            yield
        finally:
            self.server.resume()


@contextmanager
def hanging_folder(
    run: Callable[..., AbstractContextManager[subprocess.Popen[bytes]]], folder: Path
) -> Iterator[HangingFolder]:
    """`run`: starts a command, as `subprocess.Popen` and `Host.run` do."""
    if os.geteuid() != 0 and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        import pytest  # Not for the server.

        pytest.skip("/dev/fuse is for root alone here")
    folder.mkdir()
    command = ["unshare", "--mount", sys.executable, str(Path(__file__)), str(folder)]
    with run(command, cwd=folder.parent, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline(), "no FUSE here"
        try:
            yield HangingFolder(server)
        finally:
            server.kill()


class Nodes:
    """The files and folders that the kernel knows: a descriptor of each is its number."""

    def __init__(self, root: int) -> None:
        self.fds = {os.fstat(root).st_ino: root}
        self.root = root

    def fd(self, number: int) -> int:
        return self.root if number == 1 else number

    def path(self, number: int) -> str:
        return f"/proc/self/fd/{self.fd(number)}"

    def entry(self, parent: int, name: bytes) -> bytes:
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self.fd(parent))
        known = self.fds.setdefault(os.fstat(found).st_ino, found)
        if known != found:
            os.close(found)
        return pack("<4Q2I", known, 0, 0, 0, 0, 0) + attributes(known)


def attributes(fd: int) -> bytes:
    of = os.fstat(fd)
    times = [int(time) for time in (of.st_atime, of.st_mtime, of.st_ctime)]
    owner = (of.st_mode, of.st_nlink, of.st_uid, of.st_gid)
    return pack("<6Q10I", of.st_ino, of.st_size, of.st_blocks, *times, 0, 0, 0, *owner, 0, of.st_blksize, 0)


def listing(fd: int, offset: int, size: int) -> bytes:
    names = [os.fsencode(name) for name in os.listdir(f"/proc/self/fd/{fd}")]
    found = b""
    for place, name in enumerate(names[offset:], offset + 1):
        head = pack("<2Q2I", os.stat(name, dir_fd=fd, follow_symlinks=False).st_ino, place, len(name), 0)
        one = (head + name).ljust(-(-(len(head) + len(name)) // 8) * 8, b"\0")
        if len(found) + len(one) > size:
            break
        found += one
    return found


def answer(nodes: Nodes, opcode: int, number: int, body: bytes) -> bytes:
    """The reply to a request. The kernel receives an OSError as its number."""
    fd = nodes.fd(number)
    names = body.split(b"\0")
    match opcode:
        case _ if opcode == INIT:
            return pack(INIT_OUT, 7, 31, 0, 0, 0, 0, MAX_WRITE, 1, 0, 0, 0)
        case _ if opcode == LOOKUP:
            return nodes.entry(number, names[0])
        case _ if opcode in (GETATTR, SETATTR):
            valid, _, _, size = unpack_from("<2I2Q", body) if opcode == SETATTR else (0, 0, 0, 0)
            if valid & SIZE_IS_SET:
                os.truncate(nodes.path(number), size)
            return pack("<Q2I", 0, 0, 0) + attributes(fd)
        case _ if opcode == MKDIR:
            name, (mode,) = body[8:].rstrip(b"\0"), unpack_from("<I", body)
            os.mkdir(name, mode, dir_fd=fd)
            return nodes.entry(number, name)
        case _ if opcode == CREATE:
            name, (flags, mode) = body[16:].rstrip(b"\0"), unpack_from("<2I", body)
            opened = os.open(name, flags & ~os.O_APPEND | os.O_CREAT, mode, dir_fd=fd)
            return nodes.entry(number, name) + pack("<Q2I", opened, 0, 0)
        case _ if opcode in (OPEN, OPENDIR):
            (flags,) = unpack_from("<I", body)
            return pack("<Q2I", os.open(nodes.path(number), flags & ~(os.O_APPEND | os.O_NOFOLLOW)), 0, 0)
        case _ if opcode in (READ, READDIR):
            handle, offset, size = unpack_from("<2QI", body)
            return os.pread(handle, size, offset) if opcode == READ else listing(handle, offset, size)
        case _ if opcode == WRITE:
            handle, offset = unpack_from("<2Q", body)
            return pack("<2I", os.pwrite(handle, body[40:], offset), 0)
        case _ if opcode in (RELEASE, RELEASEDIR):
            os.close(unpack_from("<Q", body)[0])
        case _ if opcode == UNLINK:
            os.unlink(names[0], dir_fd=fd)
        case _ if opcode == RMDIR:
            os.rmdir(names[0], dir_fd=fd)
        case _ if opcode in (RENAME, RENAME2):
            (into,) = unpack_from("<Q", body)
            old, new = body[8 if opcode == RENAME else 16 :].split(b"\0")[:2]
            os.rename(old, new, src_dir_fd=fd, dst_dir_fd=nodes.fd(into))
        case _ if opcode == STATFS:
            of = os.statvfs(nodes.path(number))
            free = (of.f_blocks, of.f_bfree, of.f_bavail, of.f_files, of.f_ffree)
            return pack("<5Q4I24x", *free, of.f_bsize, of.f_namemax, of.f_frsize, 0)
        case _ if opcode == FSYNC:
            pass
        case _:
            # Of FLUSH too: while the server is stopped, a killed process would wait for it at its exit.
            raise OSError(errno.ENOSYS, "")
    return b""


def serve(folder: str) -> None:
    nodes = Nodes(os.open(folder, os.O_PATH | os.O_DIRECTORY))
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode={stat.S_IFDIR:o},user_id={os.getuid()},group_id={os.getgid()}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"folder", os.fsencode(folder), b"fuse", 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    print(flush=True)
    while True:
        request = os.read(device, MAX_WRITE + 4096)
        _, opcode, unique, number, *_ = unpack_from(HEAD, request)
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            continue
        failure, reply = 0, b""
        try:
            reply = answer(nodes, opcode, number, request[calcsize(HEAD) :])
        except OSError as error:
            failure = -(error.errno or errno.EIO)
        os.write(device, pack(OUT, calcsize(OUT) + len(reply), failure, unique) + reply)


if __name__ == "__main__":
    serve(sys.argv[1])
