"""Connections to the store of rank 0: whether it listens, and whether it has clients."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import time

from .._process import tcp_listeners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# Seconds between two looks.
_INTERVAL = 0.005


def wait_for_listener(port: int, limit: float) -> None:
    """Waits until a process of this machine listens on a port, at most ``limit`` seconds."""
    deadline = time.monotonic() + limit
    while not has_listener(port) and time.monotonic() < deadline:
        time.sleep(_INTERVAL)


def has_listener(port: int) -> bool:
    """Returns whether a socket of this machine listens on a port; True if the system does not tell.

    Reads a list, and does not connect: a connection to this machine may get the port itself as its own end
    (a simultaneous open, RFC 9293 section 3.5), and rank 0 could not listen there.
    """
    try:
        return any(number == port for _, number, _ in tcp_listeners.list_listeners())
    except (OSError, ValueError):
        return True


def wait_for_clients(port: int, limit: float) -> None:
    """Waits until no other process is connected to the store of this one, at most ``limit`` seconds.

    Args:
        port: That of the store. This process is a client too, and does not count.
        limit: Seconds.
    """
    deadline = time.monotonic() + limit
    while _has_clients(port) and time.monotonic() < deadline:
        time.sleep(_INTERVAL)


def _has_clients(port: int) -> bool:
    connections = list(_connections())
    own = {here for here, peer in connections if peer == port}
    return any(here == port and peer not in own for here, peer in connections)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _connections() -> Iterator[tuple[int, int]]:
    """Yields each connection of this process: its own port and that of its peer."""
    # Not by socket.socket(fileno=...): after socket.setdefaulttimeout that makes a connection non-blocking.
    libc = _libc()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            here, peer = _port(libc.getsockname, int(name)), _port(libc.getpeername, int(name))
            if here is not None and peer is not None:
                yield here, peer


def _port(function: Any, number: int) -> int | None:
    """The port of an address; None: it has none."""
    # The beginning of a sockaddr_in and a sockaddr_in6: family, port.
    address = ctypes.create_string_buffer(128)
    size = ctypes.c_uint(len(address))
    if function(number, address, ctypes.byref(size)) != 0:
        return None
    family, port = struct.unpack("=H", address.raw[:2])[0], struct.unpack("!H", address.raw[2:4])[0]
    return int(port) if family in (socket.AF_INET, socket.AF_INET6) else None
