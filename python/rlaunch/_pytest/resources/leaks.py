"""Finds what the ranks of a test leave behind on this machine: processes, their ports, shared memory."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import sys

from ... import _lib
from ..._process import tcp_listeners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

SHARED_MEMORY = "/dev/shm"
# torch and Paddle put the creator's pid into the name of shared memory. Containers that share the folder have
# the same pids.
_CREATOR = re.compile(r"^(?:torch|paddle|PADDLE)\D*(\d+)_")


class Leaks:
    """Compares the machine before the ranks start with the machine after they have ended."""

    def __init__(self) -> None:
        self._memory = _list_shared_memory()
        self._ports: dict[int, list[str]] = {}

    def record_ports(self, key: str) -> None:
        """Records the ports of leftover processes. Call it between the end of the ranks and the sweep."""
        self._ports = {pid: list_ports(pid) for pid in _lib.find_leftovers(key)}

    def collect(
        self,
        swept: Iterable[tuple[int, str]],
        ranks: Iterable[int],
        created: Iterable[str],
        removed: Iterable[tuple[str, int]] = (),
    ) -> list[str]:
        """Returns a line for each leak, and removes leaked shared memory.

        Args:
            swept: pid and name of each leftover process.
            ranks: the ranks' pids.
            created: names of the shared memory that the ranks reported as theirs.
            removed: name and size of the shared memory that the sweep removed.
        """
        lines, creators = [], set(ranks)
        for pid, name in swept:
            creators.add(pid)
            ports = self._ports.get(pid)
            lines.append(f"process {pid} ({name})" + (f", listening on {', '.join(ports)}" if ports else ""))
        lines += [f"shared memory {name} ({_format_size(size)})" for name, size in sorted(removed)]
        created = set(created)
        named = set()
        new = _list_shared_memory() - self._memory
        for name in new - created:
            creator = _CREATOR.match(name)
            # Other programs create shared memory meanwhile, too.
            if creator is not None and int(creator[1]) in creators:
                named.add(name)
        if named and not _lib.is_shared_memory_private():
            named.clear()
        for name in sorted(new):
            if name in created or name in named:
                lines.append(f"shared memory {name} ({_format_size_of(name)})")
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(SHARED_MEMORY, name))
                if name in created:
                    _unregister(f"/{name}")
        return lines


def _unregister(name: str) -> None:
    """Unregisters shared memory from the resource tracker, which would otherwise warn when it ends."""
    from multiprocessing import resource_tracker

    with contextlib.suppress(OSError):
        resource_tracker.unregister(name, "shared_memory")


def record_shared_memory() -> Callable[[], list[str]]:
    """In a rank: records what ``multiprocessing.shared_memory`` creates from now on.

    The resource tracker would remove it only when the parent ends, with which spawned ranks share it.

    Returns:
        A function that lists the names that still exist.
    """
    import multiprocessing.resource_tracker as tracker

    names: list[str] = []
    register = tracker.register

    def register_and_record(name: Any, rtype: Any) -> None:
        if rtype == "shared_memory":
            names.append(str(name).lstrip("/"))
        register(name, rtype)

    tracker.register = register_and_record
    module = sys.modules.get("multiprocessing.shared_memory")
    if hasattr(module, "register"):  # Some versions import the function itself.
        module.register = register_and_record  # type: ignore[union-attr]
    return lambda: [name for name in names if os.path.exists(os.path.join(SHARED_MEMORY, name))]


def list_ports(pid: int) -> list[str]:
    """Lists the addresses on which a process listens; empty without permission to inspect it."""
    inodes = set()
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}"))
                if match:
                    inodes.add(match[1])
    addresses = []
    with contextlib.suppress(OSError):  # There is no IPv6, or the process has ended.
        for host, port, inode in tcp_listeners.list_listeners(pid):
            if inode in inodes:
                addresses.append(_format_address(host, port))
    return sorted(addresses)


def _format_address(host: str, port: int) -> str:
    # Words of 32 bits in the byte order of this machine.
    words = [int(host[at : at + 8], 16) for at in range(0, len(host), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    if len(words) == 1:
        return f"{socket.inet_ntop(socket.AF_INET, packed)}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{port}"


def _list_shared_memory() -> set[str]:
    try:
        return set(os.listdir(SHARED_MEMORY))
    except OSError:
        return set()


def _format_size_of(name: str) -> str:
    try:
        return _format_size(os.stat(os.path.join(SHARED_MEMORY, name)).st_size)
    except OSError:
        return "gone by now"


def _format_size(size: int) -> str:
    return (
        f"{size} bytes" if size < 10_000 else f"{size >> 10} KiB" if size < 10 << 20 else f"{size >> 20} MiB"
    )
