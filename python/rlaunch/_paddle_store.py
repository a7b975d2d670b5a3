"""Where Paddle's ranks meet: a store that rank 0 serves. In the ranks of a test nobody waits for it in vain.

Who looks for it too early sleeps for three seconds (``kDelay`` in phi/core/distributed/store/tcp_utils.cc of
Paddle). Ranks that were forked off a zygote come to it at the same moment: many a test would take that long.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# As long as Paddle would sleep, in seconds.
PATIENCE = 3.0
_LISTENS = "0A"


def look_in_time() -> None:
    """In a rank whose rank 0 is on this machine: has Paddle, if it is there, look once there is a server."""
    core: Any = sys.modules.get("paddle.base.core")
    create = getattr(core, "create_or_get_global_tcp_store", None)
    if create is None:
        return

    def create_in_time() -> Any:
        port = _port()
        if port is not None and os.environ.get("PADDLE_TRAINER_ID", "0") != "0":
            _await_server(port)
        return create()

    core.create_or_get_global_tcp_store = create_in_time


def _port() -> int | None:
    """Where Paddle looks (GetMasterEndpoint in its phi/core/distributed/store/store_utils.cc)."""
    environ = os.environ
    endpoint = environ.get("PADDLE_MASTER") or environ.get("PADDLE_TRAINER_ENDPOINTS", "").partition(",")[0]
    port = endpoint.rpartition(":")[2]
    return int(port) if port.isdecimal() else None


def _await_server(port: int) -> None:
    """Waits until somebody listens there. It goes on in any case: Paddle tries again itself."""
    limit = time.monotonic() + PATIENCE
    while not listens(port) and time.monotonic() < limit:
        time.sleep(0.005)


def listens(port: int) -> bool:
    """Whether somebody listens on this port here; True where the system does not say."""
    try:
        for table in ("tcp", "tcp6"):
            with open(f"/proc/self/net/{table}", encoding="ascii") as file:
                # sl, local address, remote address, state, ... (the kernel's proc_net_tcp.rst).
                for _, address, _, state, *_ in map(str.split, file):
                    if state == _LISTENS and address.endswith(f":{port:04X}"):
                        return True
    except (OSError, ValueError):
        return True
    return False
