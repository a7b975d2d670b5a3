"""Which devices the ranks of a test get: those that no other test, of any worker or session, has now."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from . import _devices, _lib

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._pytest_marker import Ranks


_VISIBLE = "CUDA_VISIBLE_DEVICES"


@contextlib.contextmanager
def claimed(marker: Ranks) -> Iterator[list[str] | None]:
    """The devices, which are this test's for as long as the block lasts; None: it wants none.

    Raises:
        NotEnough: there are fewer than ranks.
        TimeoutError: others have them, and do not give them back.
    """
    if not marker.gpus:
        yield None
        return
    wanted = visible() if marker.gpus is True else marker.gpus
    count = marker.n if marker.gpus is True else len(wanted)
    with _devices.claim(wanted, count) as devices:
        yield devices


@contextlib.contextmanager
def seen(devices: list[str] | None) -> Iterator[dict[str, Any]]:
    """What ``rlaunch.spawn`` is told of them. Ranks that are started in the block see these and no others."""
    if devices is None:
        yield {"backend": "gloo"}
        return
    before = os.environ.get(_VISIBLE)
    os.environ[_VISIBLE] = ",".join(devices)
    try:
        yield {"backend": "nccl"}
    finally:
        if before is None:
            del os.environ[_VISIBLE]
        else:
            os.environ[_VISIBLE] = before


def visible() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them, or by number."""
    listed = os.environ.get(_VISIBLE)
    if listed is None:
        return [str(number) for number in range(_lib.gpu_count())]
    return [name.strip() for name in listed.split(",") if name.strip()]
