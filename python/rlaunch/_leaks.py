"""What the ranks of a test have left behind on this machine: processes, their ports, shared memory."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import sys

from . import _lib, _listening

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

SHARED_MEMORY = "/dev/shm"
# The number of the process that made it, as torch and Paddle have it in their names.
_MAKER = re.compile(r"^(?:torch|paddle|PADDLE)\D*(\d+)_")


class Leaks:
    """What is there before ranks are started, and what is there too much when they have ended."""

    def __init__(self) -> None:
        self._memory = _shared_memory()
        self._ports: dict[int, list[str]] = {}

    def look(self, key: str) -> None:
        """When all ranks have ended, and before what they have left is swept: on what that listens."""
        self._ports = {pid: ports_of(pid) for pid in _lib.find_leftovers(key)}

    def found(self, swept: Iterable[tuple[int, str]], ranks: Iterable[int], made: Iterable[str]) -> list[str]:
        """What was left, a line each; shared memory is removed.

        ``swept``: the ids and names of processes that had to be ended; ``ranks``: the ids that the ranks had;
        ``made``: the names of shared memory that they said they had made.
        """
        lines, makers = [], set(ranks)
        for pid, name in swept:
            makers.add(pid)
            ports = self._ports.get(pid)
            lines.append(f"process {pid} ({name})" + (f", listening on {', '.join(ports)}" if ports else ""))
        made = set(made)
        for name in sorted(_shared_memory() - self._memory):
            maker = _MAKER.match(name)
            # Others on this machine have some as well.
            if name in made or (maker is not None and int(maker[1]) in makers):
                lines.append(f"shared memory {name} ({_size(name)})")
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(SHARED_MEMORY, name))
                if name in made:
                    _untrack(f"/{name}")
        return lines


def _untrack(name: str) -> None:
    """Its rank has told the resource tracker of it, which would warn of it in the end."""
    from multiprocessing import resource_tracker

    with contextlib.suppress(OSError):
        resource_tracker.unregister(name, "shared_memory")


def note_shared_memory() -> Callable[[], list[str]]:
    """In a rank: from now on notes what ``multiprocessing.shared_memory`` makes; gives what tells of it.

    Its resource tracker, which spawned ranks share with their parent, removes them at the parent's end only.
    """
    import multiprocessing.resource_tracker as tracker

    names: list[str] = []
    register = tracker.register

    def noted(name: Any, rtype: Any) -> None:
        if rtype == "shared_memory":
            names.append(str(name).lstrip("/"))
        register(name, rtype)

    tracker.register = noted
    module = sys.modules.get("multiprocessing.shared_memory")
    if hasattr(module, "register"):  # It takes the name along in some versions.
        module.register = noted  # type: ignore[union-attr]
    return lambda: [name for name in names if os.path.exists(os.path.join(SHARED_MEMORY, name))]


def ports_of(pid: int) -> list[str]:
    """The addresses on which a process listens; none if it may not be looked into."""
    inodes = set()
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}"))
                if match:
                    inodes.add(match[1])
    found = []
    with contextlib.suppress(OSError):  # It has no network of version 6, or is gone.
        for host, port, inode in _listening.sockets(pid):
            if inode in inodes:
                found.append(_address(host, port))
    return sorted(found)


def _address(host: str, port: int) -> str:
    # Words of 32 bits in the order of this machine.
    words = [int(host[at : at + 8], 16) for at in range(0, len(host), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    if len(words) == 1:
        return f"{socket.inet_ntop(socket.AF_INET, packed)}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{port}"


def _shared_memory() -> set[str]:
    try:
        return set(os.listdir(SHARED_MEMORY))
    except OSError:
        return set()


def _size(name: str) -> str:
    try:
        size = os.stat(os.path.join(SHARED_MEMORY, name)).st_size
    except OSError:
        return "gone by now"
    return (
        f"{size} bytes" if size < 10_000 else f"{size >> 10} KiB" if size < 10 << 20 else f"{size >> 20} MiB"
    )
