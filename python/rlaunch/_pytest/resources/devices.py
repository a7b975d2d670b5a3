"""Assigns GPUs to the ranks of a test: GPUs that no other test of this user has."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from ... import _lib
from . import device_locks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..marker import RanksMarker


_VISIBLE = "CUDA_VISIBLE_DEVICES"


@contextlib.contextmanager
def claim_gpus(marker: RanksMarker) -> Iterator[list[str] | None]:
    """Yields the GPUs of a test, claimed for as long as the block lasts; None: the test uses none.

    Raises:
        TooFewDevices: the machine has fewer GPUs than the test has ranks, or none of that name.
        TimeoutError: other tests have not released theirs in time.
    """
    if not marker.gpus:
        yield None
        return
    visible = list_visible_gpus()
    wanted = visible if marker.gpus is True else marker.gpus
    if any(_is_missing(name, visible) for name in wanted):
        available = f"only {', '.join(visible)}" if visible else "none"
        raise device_locks.TooFewDevices(f"devices {', '.join(wanted)} are wanted, and there are {available}")
    count = marker.n if marker.gpus is True else len(wanted)
    with device_locks.claim(wanted, count) as devices:
        yield devices


def _is_missing(name: str, visible: list[str]) -> bool:
    """Whether a device is certainly not visible. A number and a UUID may be two names of one device."""
    return not visible or (name not in visible and all(map(str.isdigit, [name, *visible])))


@contextlib.contextmanager
def expose(devices: list[str] | None) -> Iterator[dict[str, Any]]:
    """Makes these devices the only visible ones in the block; yields the options for ``rlaunch.spawn``."""
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


def list_visible_gpus() -> list[str]:
    """Lists the GPUs that this process may use: the items of CUDA_VISIBLE_DEVICES, else their indices."""
    listed = os.environ.get(_VISIBLE)
    if listed is None:
        return [str(number) for number in range(_lib.gpu_count())]
    return [name.strip() for name in listed.split(",") if name.strip()]
