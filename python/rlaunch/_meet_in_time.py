"""Where the ranks of a test meet: a store that rank 0 serves, and that nobody is to look for in vain.

Who looks too early waits before he looks again: with Paddle for 3 s (``kDelay`` in its
phi/core/distributed/store/tcp_utils.cc), with torch for about half a second. Ranks that were forked off a
zygote come to it at the same moment: every other test would take that long.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time

from . import _listening

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# As long as Paddle would sleep, in seconds.
PATIENCE = 3.0


def look_in_time() -> None:
    """In a rank whose rank 0 is on this machine: what it has of Paddle and torch looks in time."""
    _have_paddle_wait()
    _have_torch_wait()


def _have_paddle_wait() -> None:
    core: Any = sys.modules.get("paddle.base.core")
    create = getattr(core, "create_or_get_global_tcp_store", None)
    if create is None:
        return

    def create_in_time() -> Any:
        port = _port_of_paddle()
        if port is not None and os.environ.get("PADDLE_TRAINER_ID", "0") != "0":
            _await_server(port)
        store = create()
        if port is not None:
            _send_at_once(port)
        return store

    core.create_or_get_global_tcp_store = create_in_time


def _have_torch_wait() -> None:
    rendezvous = sys.modules.get("torch.distributed.rendezvous")
    handlers: Any = getattr(rendezvous, "_rendezvous_handlers", {})
    meet = handlers.get("env")
    if meet is None:
        return

    def meet_in_time(url: str, *args: Any, **kwargs: Any) -> Any:
        port = os.environ.get("MASTER_PORT", "")
        if port.isdecimal() and os.environ.get("RANK", "0") != "0":
            _await_server(int(port))
        return meet(url, *args, **kwargs)

    handlers["env"] = meet_in_time


def _port_of_paddle() -> int | None:
    """Where Paddle looks (GetMasterEndpoint in its phi/core/distributed/store/store_utils.cc)."""
    environ = os.environ
    endpoint = environ.get("PADDLE_MASTER") or environ.get("PADDLE_TRAINER_ENDPOINTS", "").partition(",")[0]
    port = endpoint.rpartition(":")[2]
    return int(port) if port.isdecimal() else None


def _await_server(port: int) -> None:
    """Waits until somebody listens there. It goes on in any case: the frameworks try again themselves."""
    limit = time.monotonic() + PATIENCE
    while not listens(port) and time.monotonic() < limit:
        time.sleep(0.005)


def _send_at_once(port: int) -> None:
    """Has no request wait for what was sent before it to be acknowledged, 40 ms later (tcp(7), TCP_NODELAY).

    Paddle writes each in several pieces: its tests would spend a quarter of a second waiting so.
    """
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as end:
                if end.family == socket.AF_INET and end.getpeername()[1] == port:
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def listens(port: int) -> bool:
    """Whether somebody listens on this port here; True where the system does not say."""
    try:
        return any(number == port for _, number, _ in _listening.sockets())
    except (OSError, ValueError):
        return True
