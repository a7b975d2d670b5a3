"""Writes files atomically: a reader sees the whole file or none."""

from __future__ import annotations

import contextlib
import os


def write_atomically(path: str, content: bytes) -> None:
    """Replaces the file at ``path``; the new one has mode 0600.

    A path that is not a regular file (a FIFO, ``/dev/null``) is written to and not replaced.

    Raises:
        OSError: the file cannot be written.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as file:
            file.write(content)
        return
    temporary = f"{path}.{os.getpid()}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
