"""Reads and checks ``@pytest.mark.ranks(...)``."""

from __future__ import annotations

import difflib
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

START_METHODS = ("spawn", "fork", "forkserver", "zygote")
FRAMEWORKS = ("paddle", "torch", "jax")


class MarkerError(ValueError):
    """The marker is invalid. The text names the argument and its value."""


@dataclass(frozen=True)
class RanksMarker:
    """A checked marker.

    Attributes:
        n: number of ranks.
        timeout: seconds, 0 for no limit; None if the marker has none.
        startup_timeout: the same, for the start of the ranks.
        options: options for ``rlaunch.spawn``, except those for devices.
        gpus: True: any free GPU for each rank; a list of their names; None: no GPUs.
        shared: names of fixtures that the parent sets up for all ranks.
    """

    n: int
    timeout: float | None
    startup_timeout: float | None
    options: dict[str, Any]
    gpus: list[str] | bool | None
    shared: tuple[str, ...]


def read_marker(mark: pytest.Mark, preload: str | None = None) -> RanksMarker:
    """Reads a marker. ``preload`` is the default if it has neither ``preload`` nor ``start_method``.

    Raises:
        MarkerError: the marker is invalid.
    """
    try:
        default = {} if "start_method" in mark.kwargs else {"preload": preload}
        return _check_arguments(*mark.args, **{**default, **mark.kwargs})
    except TypeError as error:
        text = str(error).replace("_check_arguments()", "ranks()")
        known = inspect.signature(_check_arguments).parameters
        unknown = [name for name in mark.kwargs if name not in known]
        near = difflib.get_close_matches(unknown[0], known, 1) if unknown else []
        raise MarkerError(f"{text}; did you mean {near[0]!r}?" if near else text) from None


def _check_arguments(
    n: Any,
    *,
    timeout: Any = None,
    startup_timeout: Any = None,
    start_method: Any = None,
    gpus: Any = None,
    frameworks: Any = "paddle,torch",
    preload: Any = None,
    shared: Any = (),
) -> RanksMarker:
    _require(type(n) is int and n >= 1, "n", n, "the number of ranks, 1 or more")
    for name, seconds in (("timeout", timeout), ("startup_timeout", startup_timeout)):
        _require(seconds is None or _is_timeout(seconds), name, seconds, "a number of seconds, 0 for none")
    if start_method is None:
        start_method = "zygote" if preload else "spawn"
    _require(
        start_method in START_METHODS, "start_method", start_method, f"one of {', '.join(START_METHODS)}"
    )
    names = frameworks.split(",") if isinstance(frameworks, str) else [""]
    known = all(name.strip() in FRAMEWORKS for name in names)
    _require(known, "frameworks", frameworks, f"one of {', '.join(FRAMEWORKS)}, or several joined by commas")
    _require(preload is None or isinstance(preload, str), "preload", preload, "the name of a module")
    is_zygote = not preload or start_method == "zygote"
    _require(is_zygote, "start_method", start_method, "zygote where preload is given")
    if isinstance(shared, str):
        shared = (shared,)
    are_names = isinstance(shared, (tuple, list)) and all(isinstance(name, str) for name in shared)
    _require(are_names, "shared", shared, "names of fixtures")
    options: dict[str, Any] = {"start_method": start_method, "frameworks": frameworks}
    devices = _read_devices(gpus)
    are_enough = not isinstance(devices, list) or len(devices) >= n
    _require(are_enough, "gpus", gpus, f"True, or as many devices as ranks, so {n}")
    if preload:
        options["preload"] = preload
    limit, startup_limit = (
        None if seconds is None else float(seconds) for seconds in (timeout, startup_timeout)
    )
    return RanksMarker(n, limit, startup_limit, options, devices, tuple(shared))


def _is_timeout(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9


def _read_devices(gpus: Any) -> list[str] | bool | None:
    if gpus is None or gpus is False:
        return None
    if gpus is True:
        return True
    several = (
        gpus.split(",") if isinstance(gpus, str) else gpus if isinstance(gpus, (tuple, list)) else [gpus]
    )
    names = [str(gpu).strip() for gpu in several if isinstance(gpu, (int, str)) and not isinstance(gpu, bool)]
    are_unique = 0 < len(names) == len(several) == len(set(names)) and all(names)
    _require(are_unique, "gpus", gpus, 'True for one a rank, or devices, each once, as "0,1" or [0, 1]')
    return names


def _require(holds: bool, name: str, value: Any, wanted: str) -> None:
    if not holds:
        raise MarkerError(f"{name} must be {wanted}, but got {value!r}")
