"""Connections to the store of rank 0: whether it listens, and how requests are sent."""

from __future__ import annotations

import contextlib
import os
import socket
import time

from .._process import tcp_listeners

# Seconds between two looks. Each look at another machine is a connection.
_LOCAL_INTERVAL = 0.005
_REMOTE_INTERVAL = 0.1

# Seconds for a connection to another machine.
_CONNECT_TIMEOUT = 1.0


def wait_for_listener(host: str, port: int, limit: float) -> None:
    """Waits until a process listens on a port, at most ``limit`` seconds. Raises nothing."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        return
    deadline = time.monotonic() + limit
    is_local = is_own_address(family, address)
    while time.monotonic() < deadline:
        started = time.monotonic()
        if has_listener(port) if is_local else _accepts(family, address):
            return
        # With many sockets a look takes longer. It does not keep the processor busy.
        pause = 10 * (time.monotonic() - started) if is_local else _REMOTE_INTERVAL
        time.sleep(max(pause, _LOCAL_INTERVAL))


def is_own_address(family: int, address: tuple[object, ...]) -> bool:
    """Whether an address is one of this machine."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as end:
            end.bind((address[0], 0, *address[2:]))
    except OSError:
        return False
    return True


def has_listener(port: int) -> bool:
    """Returns whether a socket of this machine listens on a port; True if the system does not tell.

    Reads a list, and does not connect: a connection to this machine may get the port itself as its own end
    (a simultaneous open, RFC 9293 section 3.5), and rank 0 could not listen there.
    """
    try:
        return any(number == port for _, number, _ in tcp_listeners.list_listeners())
    except (OSError, ValueError):
        return True


def _accepts(family: int, address: tuple[object, ...]) -> bool:
    """Whether another machine accepts a connection. The stores ignore one that is closed unused."""
    with socket.socket(family, socket.SOCK_STREAM) as end:
        end.settimeout(_CONNECT_TIMEOUT)
        try:
            end.connect(address)
        except OSError:
            return False
    return True


def disable_send_delay(port: int) -> None:
    """Sets TCP_NODELAY (tcp(7)) on the connections of this process to a port.

    Paddle writes each request in several pieces. With the delay, each waits 40 ms for the acknowledgement of
    the one before: a quarter of a second for a new process group.
    """
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as end:
                if end.family == socket.AF_INET and end.getpeername()[1] == port:
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
