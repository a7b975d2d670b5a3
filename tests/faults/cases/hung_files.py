"""A FUSE file system with one file, `file`, which never answers a write: its writers hang in the kernel.

    python hung_files.py FOLDER FLAG

Mounts itself on FOLDER and creates FLAG at the first write. Its end, SIGKILL included, ends all waits for it.
The messages are those of linux/fuse.h, version 7.31.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct
import sys

SIZE = 1 << 20
ROOT, FILE = 1, 2
LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE = 1, 2, 3, 4, 14, 15, 16
RELEASE, FLUSH, INIT, OPENDIR, RELEASEDIR = 18, 25, 26, 27, 29
PR_SET_PDEATHSIG = 1
FOREVER = 3600


def attributes(node: int) -> bytes:
    """struct fuse_attr."""
    mode = stat.S_IFDIR | 0o755 if node == ROOT else stat.S_IFREG | 0o666
    # Node, size, blocks, 3 times and their nanoseconds, mode, links, user, group, device, block size, flags.
    return struct.pack("<6Q10I", node, SIZE, SIZE // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode: int, node: int, body: bytes) -> bytes | int:
    """The answer to a request, or its error number."""
    if opcode == INIT:
        read_ahead = struct.unpack_from("<4I", body)[2]
        return struct.pack("<4I2H2I2H8I", 7, 31, read_ahead, 0, 12, 10, 1 << 17, 1, 32, 0, *[0] * 8)
    if opcode == LOOKUP:
        if body.rstrip(b"\0") != b"file":
            return errno.ENOENT
        return struct.pack("<4Q2I", FILE, 0, FOREVER, FOREVER, 0, 0) + attributes(FILE)
    if opcode in (GETATTR, SETATTR):
        return struct.pack("<Q2I", FOREVER, 0, 0) + attributes(node)
    if opcode in (OPEN, OPENDIR):
        return struct.pack("<Q2I", 1, 0, 0)
    if opcode == READ:
        return bytes(struct.unpack_from("<QQI", body)[2])
    return b"" if opcode in (FLUSH, RELEASE, RELEASEDIR) else errno.ENOSYS


def main(folder: str, flag: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"hung", folder.encode(), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), folder)
    while True:
        try:
            request = os.read(device, 1 << 18)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                continue  # The request was withdrawn.
            if error.errno == errno.ENODEV:
                return  # Unmounted.
            raise
        _, opcode, unique, node = struct.unpack_from("<2I2Q", request)
        if opcode == WRITE:
            open(flag, "w").close()
        elif opcode != FORGET:
            reply = answer(opcode, node, request[40:])
            code, data = (-reply, b"") if isinstance(reply, int) else (0, reply)
            os.write(device, struct.pack("<IiQ", 16 + len(data), code, unique) + data)


if __name__ == "__main__":
    main(*sys.argv[1:])
