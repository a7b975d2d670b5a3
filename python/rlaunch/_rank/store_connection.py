"""Connections to the store of rank 0: whether it listens, and how requests are sent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import time

from .._process import tcp_listeners

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


def disable_send_delay(port: int) -> None:
    """Sets TCP_NODELAY (tcp(7)) on the IPv4 connections of this process to a port.

    Paddle writes each request in several pieces. With the delay, each waits 40 ms for the acknowledgement of
    the one before: a quarter of a second for a new process group.
    """
    # Not by socket.socket(fileno=...): after socket.setdefaulttimeout that makes a connection non-blocking.
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port)
    on = ctypes.c_int(1)
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            # The beginning of a sockaddr_in: family, port.
            peer = ctypes.create_string_buffer(128)
            size = ctypes.c_uint(len(peer))
            if libc.getpeername(int(name), peer, ctypes.byref(size)) == 0 and peer.raw[:4] == wanted:
                option = (socket.IPPROTO_TCP, socket.TCP_NODELAY, ctypes.byref(on), ctypes.sizeof(on))
                libc.setsockopt(int(name), *option)
