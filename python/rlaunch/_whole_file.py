"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os


def put(path: str, content: bytes) -> None:
    """Puts a file at ``path``, for its owner alone, in the place of what is there.

    What is no regular file (a FIFO, ``/dev/null``) is written to, and stays.

    Raises:
        OSError: it cannot be made there.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as file:
            file.write(content)
        return
    own = f"{path}.{os.getpid()}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(own)
    fd = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(content)
        os.replace(own, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(own)
        raise
