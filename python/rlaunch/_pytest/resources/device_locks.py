"""Claims devices for one test at a time, among all test runs of this user.

A claim is a lock on a file (flock(2)): it ends with the process that holds it.
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

# Seconds between two attempts: flock(2) can wait for one file, but not for any of several.
_INTERVAL = 0.05
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class TooFewDevices(Exception):
    """The machine has fewer devices than the test wants."""


@contextlib.contextmanager
def claim(
    devices: Sequence[str], count: int, folder: str | None = None, timeout: float = 600.0
) -> Iterator[list[str]]:
    """Claims the first ``count`` free devices, for as long as the block lasts. Waits until so many are free.

    It claims all of them at once or none, so that two claims cannot wait for each other.

    Args:
        devices: names of the devices, the same in every process.
        folder: where the lock files are. Default: this user's folder among the temporary files.
        timeout: seconds to wait.

    Raises:
        TooFewDevices: ``devices`` has fewer than ``count``.
        TimeoutError: other processes have not released enough devices in time.
    """
    if count > len(devices):
        available = f"only {len(devices)}" if devices else "none"
        raise TooFewDevices(f"{count} devices are wanted, and there are {available}")
    folder = folder or _make_own_folder()
    deadline = time.monotonic() + timeout
    with contextlib.ExitStack() as held:
        while True:
            claimed = _try_to_claim(devices, count, folder)
            if claimed is not None:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{count} of the devices {', '.join(devices)} were not free for {timeout:g} s"
                )
            time.sleep(_INTERVAL)
        for fd in claimed.values():
            held.callback(os.close, fd)
        yield list(claimed)


def _try_to_claim(devices: Sequence[str], count: int, folder: str) -> dict[str, int] | None:
    claimed: dict[str, int] = {}
    # One process at a time: two that each take half of what they want would never get the rest.
    turn = _open_lock(folder, "turn")
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for device in devices:
            if len(claimed) == count:
                break
            fd = _open_lock(folder, f"device-{device.replace('/', '_')}")
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


def _open_lock(folder: str, name: str) -> int:
    return os.open(os.path.join(folder, f"{name}.lock"), _FLAGS, 0o600)


def _make_own_folder() -> str:
    folder = os.path.join(tempfile.gettempdir(), f"rlaunch-devices-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    if os.stat(folder, follow_symlinks=False).st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user; remove it or set TMPDIR")
    return folder
