"""Ranks wait until rank 0's store listens before they connect to it.

A client that connects too early waits before it tries again: with Paddle 3 s (``kDelay`` in its
phi/core/distributed/store/tcp_utils.cc), with torch about half a second. ``RLAUNCH_STORE_WAIT=0`` leaves the
frameworks as they are.
"""

from __future__ import annotations

import os
import sys

from .after_import import AfterImport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "RLAUNCH_STORE_WAIT"

# Seconds to wait for the store. After that, the frameworks try again themselves.
MAX_WAIT = 30.0

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

    def create_after_wait() -> Any:
        endpoint = _read_paddle_endpoint()
        if endpoint is None:
            return create()
        from . import store_connection

        if os.environ.get("PADDLE_TRAINER_ID", "0") != "0":
            store_connection.wait_for_listener(*endpoint, MAX_WAIT)
        store = create()
        store_connection.disable_send_delay(endpoint[1])
        return store

    core.create_or_get_global_tcp_store = create_after_wait


def _wrap_torch() -> None:
    handlers: Any = getattr(sys.modules[_TORCH], "_rendezvous_handlers", {})
    handler = handlers.get("env")
    if handler is None:
        return

    def rendezvous_after_wait(url: str, *args: Any, **kwargs: Any) -> Any:
        host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        if host and port.isdecimal() and os.environ.get("RANK", "0") != "0":
            from . import store_connection

            timeout: Any = kwargs.get("timeout")
            limit = min(timeout.total_seconds(), MAX_WAIT) if timeout else MAX_WAIT
            store_connection.wait_for_listener(host, int(port), limit)
        return handler(url, *args, **kwargs)

    handlers["env"] = rendezvous_after_wait


def _read_paddle_endpoint() -> tuple[str, int] | None:
    # GetMasterEndpoint in phi/core/distributed/store/store_utils.cc
    environ = os.environ
    endpoint = environ.get("PADDLE_MASTER") or environ.get("PADDLE_TRAINER_ENDPOINTS", "").partition(",")[0]
    host, _, port = endpoint.rpartition(":")
    return (host, int(port)) if host and port.isdecimal() else None
