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
def claimed(marker: Ranks) -> Iterator[dict[str, Any]]:
    """What ``rlaunch.spawn`` is told of the devices, which are this test's for as long as the block lasts.

    Raises:
        NotEnough: there are fewer than ranks.
        TimeoutError: others have them, and do not give them back.
    """
    if not marker.gpus:
        yield {"backend": "gloo"}
        return
    wanted = visible() if marker.gpus is True else marker.gpus
    count = marker.n if marker.gpus is True else len(wanted)
    with _devices.claim(wanted, count) as devices:
        yield {"gpus": ",".join(devices)}


@contextlib.contextmanager
def shown(gpus: str | None) -> Iterator[None]:
    """What is started in this block sees these GPUs and no others, so that rank i's is the i-th it sees.

    torch takes the one of its LOCAL_RANK among those that it sees, and Paddle without CUDA is told of none.
    """
    before = os.environ.get(_VISIBLE)
    if gpus is not None:
        os.environ[_VISIBLE] = gpus
    try:
        yield
    finally:
        if gpus is not None and before is None:
            del os.environ[_VISIBLE]
        elif gpus is not None and before is not None:
            os.environ[_VISIBLE] = before


def visible() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them, or by number."""
    listed = os.environ.get(_VISIBLE)
    if listed is None:
        return [str(number) for number in range(_lib.gpu_count())]
    return [name.strip() for name in listed.split(",") if name.strip()]
