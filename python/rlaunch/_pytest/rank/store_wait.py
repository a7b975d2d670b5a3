"""Ranks of a test wait until rank 0's store listens before they connect to it.

A client that connects too early waits before it tries again: with Paddle 3 s (``kDelay`` in its
phi/core/distributed/store/tcp_utils.cc), with torch about half a second. Ranks that a zygote forks get there
at the same moment, so every other test would take that long.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from typing import TYPE_CHECKING

from ..resources import tcp_listeners

if TYPE_CHECKING:
    from typing import Any

# Seconds to wait for the store: as long as Paddle would sleep.
MAX_WAIT = 3.0


def wait_for_stores() -> None:
    """Wraps the imported Paddle's and torch's functions that connect to the store of rank 0.

    For ranks whose rank 0 is on this machine.
    """
    _wrap_paddle()
    _wrap_torch()


def _wrap_paddle() -> None:
    core: Any = sys.modules.get("paddle.base.core")
    create = getattr(core, "create_or_get_global_tcp_store", None)
    if create is None:
        return

    def create_after_wait() -> Any:
        port = _read_paddle_port()
        if port is not None and os.environ.get("PADDLE_TRAINER_ID", "0") != "0":
            _wait_for_listener(port)
        store = create()
        if port is not None:
            _disable_send_delay(port)
        return store

    core.create_or_get_global_tcp_store = create_after_wait


def _wrap_torch() -> None:
    rendezvous = sys.modules.get("torch.distributed.rendezvous")
    handlers: Any = getattr(rendezvous, "_rendezvous_handlers", {})
    handler = handlers.get("env")
    if handler is None:
        return

    def rendezvous_after_wait(url: str, *args: Any, **kwargs: Any) -> Any:
        port = os.environ.get("MASTER_PORT", "")
        if port.isdecimal() and os.environ.get("RANK", "0") != "0":
            _wait_for_listener(int(port))
        return handler(url, *args, **kwargs)

    handlers["env"] = rendezvous_after_wait


def _read_paddle_port() -> int | None:
    """Returns the port of Paddle's store (GetMasterEndpoint in phi/core/distributed/store/store_utils.cc)."""
    environ = os.environ
    endpoint = environ.get("PADDLE_MASTER") or environ.get("PADDLE_TRAINER_ENDPOINTS", "").partition(",")[0]
    port = endpoint.rpartition(":")[2]
    return int(port) if port.isdecimal() else None


def _wait_for_listener(port: int) -> None:
    """Waits until a socket listens on a port, at most ``MAX_WAIT``: the frameworks try again themselves."""
    deadline = time.monotonic() + MAX_WAIT
    while not has_listener(port) and time.monotonic() < deadline:
        time.sleep(0.005)


def _disable_send_delay(port: int) -> None:
    """Sets TCP_NODELAY (tcp(7)) on the connections to a port.

    Paddle writes each request in several pieces. With the delay, each waits 40 ms for the acknowledgement of
    the one before, and its tests spend a quarter of a second on that.
    """
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as end:
                if end.family == socket.AF_INET and end.getpeername()[1] == port:
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def has_listener(port: int) -> bool:
    """Returns whether a socket of this machine listens on a port; True if the system does not tell."""
    try:
        return any(number == port for _, number, _ in tcp_listeners.list_listeners())
    except (OSError, ValueError):
        return True
