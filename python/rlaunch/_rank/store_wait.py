"""Ranks wait until rank 0's store listens before they connect to it, if rank 0 is on the same node.

A client that connects too early waits before it tries again: with Paddle 3 s (``kDelay`` in its
phi/core/distributed/store/tcp_utils.cc), with torch about half a second. ``RLAUNCH_STORE_WAIT=0`` leaves the
frameworks as they are.
"""

from __future__ import annotations

import atexit
import os
import sys

from .after_import import AfterImport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "RLAUNCH_STORE_WAIT"

# Seconds to wait for the store: as long as Paddle would sleep. Then the frameworks try again themselves.
MAX_WAIT = 3.0

# Seconds that rank 0 waits at its exit for the other ranks of Paddle to disconnect.
MAX_EXIT_WAIT = 0.5

_PADDLE = "paddle.base.core"
_TORCH = "torch.distributed.rendezvous"


def wait_for_stores() -> None:
    """Wraps Paddle's and torch's functions that connect to the store of rank 0, once they are imported."""
    if os.environ.get(VARIABLE) != "0" and not any(isinstance(one, _StoreWait) for one in sys.meta_path):
        _StoreWait({_PADDLE: _wrap_paddle, _TORCH: _wrap_torch}).install()


class _StoreWait(AfterImport):
    """The finder of ``wait_for_stores``."""


def _wrap_paddle() -> None:
    core: Any = sys.modules[_PADDLE]
    create = getattr(core, "create_or_get_global_tcp_store", None)
    if create is None:
        return
    # The processes in which the store has been created. Later calls return it.
    created = set()

    def create_after_wait() -> Any:
        port = _read_paddle_port()
        if port is None or os.getpid() in created:
            return create()
        from . import store_connection

        if os.environ.get("PADDLE_TRAINER_ID", "0") != "0" and _is_near_in_paddle():
            store_connection.wait_for_listener(port, MAX_WAIT)
        store = create()
        created.add(os.getpid())
        if os.environ.get("PADDLE_TRAINER_ID") == "0":
            atexit.register(_keep_store, os.getpid(), port)
        return store

    core.create_or_get_global_tcp_store = create_after_wait


def _keep_store(pid: int, port: int) -> None:
    """Lets the other ranks disconnect from the store before the exit of the process that has it.

    The thread of Paddle's store runs on while exit(3) destroys what it uses: a rank that disconnects in this
    time makes it abort the process (LibUVClient::readCallback, Paddle 3.3).
    """
    from . import store_connection

    if os.getpid() == pid:
        store_connection.wait_for_clients(port, MAX_EXIT_WAIT)


def _wrap_torch() -> None:
    handlers: Any = getattr(sys.modules[_TORCH], "_rendezvous_handlers", {})
    handler = handlers.get("env")
    if handler is None:
        return

    def rendezvous_after_wait(url: str, *args: Any, **kwargs: Any) -> Any:
        port = os.environ.get("MASTER_PORT", "")
        # init_process_group(rank=...) becomes a query; such a group need not be the launcher's.
        if port.isdecimal() and "rank=" not in url and _is_near_in_torch():
            from . import store_connection

            store_connection.wait_for_listener(int(port), MAX_WAIT)
        return handler(url, *args, **kwargs)

    handlers["env"] = rendezvous_after_wait


def _is_near_in_torch() -> bool:
    """Whether rank 0 is another rank of this node: only there both numbers are equal."""
    rank = os.environ.get("RANK", "0")
    return rank != "0" and rank == os.environ.get("LOCAL_RANK")


def _is_near_in_paddle() -> bool:
    first = os.environ.get("PADDLE_TRAINER_ENDPOINTS", "").partition(",")[0]
    own = os.environ.get("PADDLE_CURRENT_ENDPOINT", "")
    return first.rpartition(":")[0] == own.rpartition(":")[0] != ""


# GetMasterEndpoint in phi/core/distributed/store/store_utils.cc
def _read_paddle_port() -> int | None:
    environ = os.environ
    endpoint = environ.get("PADDLE_MASTER") or environ.get("PADDLE_TRAINER_ENDPOINTS", "").partition(",")[0]
    port = endpoint.rpartition(":")[2]
    return int(port) if port.isdecimal() else None
