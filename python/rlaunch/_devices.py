"""Devices that tests share: who has claimed some has them alone, of all test runs of this user.

A claim is a lock on a file (flock(2)), so it ends with whoever holds it, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# How often it is looked whether devices have been given back, in seconds.
_AGAIN = 0.05


class NotEnough(Exception):
    """There are fewer devices than wanted, however long one waits."""


@contextlib.contextmanager
def claim(
    devices: Sequence[str], count: int, folder: str | None = None, patience: float = 600.0
) -> Iterator[list[str]]:
    """Claims ``count`` of these devices, the first that nobody has claimed, waiting for them if need be.

    All at once or none: of two who want several, one gets them and then the other.

    Args:
        devices: what they are called, by which all who share them know them.
        folder: where the locks are; default: one of this user's in the folder for temporary files.
        patience: how long to wait, in seconds.

    Raises:
        NotEnough: there are not so many.
        TimeoutError: others have not given them back in time.
    """
    if count > len(devices):
        there = f"only {len(devices)}" if devices else "none"
        raise NotEnough(f"{count} devices are wanted, and there are {there}")
    folder = folder or _own_folder()
    deadline = time.monotonic() + patience
    with contextlib.ExitStack() as held:
        while True:
            claimed = _try(devices, count, folder)
            if claimed is not None:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{count} of the devices {', '.join(devices)} were not free for {patience:g} s"
                )
            time.sleep(_AGAIN)  # flock(2) waits for one file, not for any of several.
        for fd in claimed.values():
            held.callback(os.close, fd)
        yield list(claimed)


def _try(devices: Sequence[str], count: int, folder: str) -> dict[str, int] | None:
    claimed: dict[str, int] = {}
    # One at a time: two who each took half of what they want would wait for each other.
    turn = _open(folder, "turn")
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for device in devices:
            if len(claimed) == count:
                break
            fd = _open(folder, f"device-{device.replace('/', '_')}")
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
            else:
                claimed[device] = fd
    finally:
        os.close(turn)
    if len(claimed) == count:
        return claimed
    for fd in claimed.values():
        os.close(fd)
    return None


def _open(folder: str, name: str) -> int:
    return os.open(os.path.join(folder, f"{name}.lock"), _FLAGS, 0o600)


_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def _own_folder() -> str:
    folder = os.path.join(tempfile.gettempdir(), f"rlaunch-devices-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    if os.stat(folder, follow_symlinks=False).st_uid != os.getuid():
        raise PermissionError(f"{folder} is somebody else's")
    return folder
