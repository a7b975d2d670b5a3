"""What ``@pytest.mark.ranks(...)`` says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

METHODS = ("spawn", "fork", "forkserver", "zygote")
DIALECTS = ("paddle", "torch", "jax")


class BadMarker(ValueError):
    """The marker says what cannot be. The text names it."""


@dataclass(frozen=True)
class Ranks:
    """A checked marker.

    Attributes:
        n: how many ranks.
        timeout: seconds, 0 for none; None if the marker does not say.
        options: what ``rlaunch.spawn`` is told beside the function and the devices.
        gpus: True for one a rank, whichever are free; a list of names; None for none.
        shared: names of fixtures.
    """

    n: int
    timeout: float | None
    options: dict[str, Any]
    gpus: list[str] | bool | None
    shared: tuple[str, ...]


def read(mark: pytest.Mark, preload: str | None = None) -> Ranks:
    """What a marker says. ``preload``: what it says of that where it says nothing of that and of starts.

    Raises:
        BadMarker: it says what cannot be.
    """
    try:
        default = {} if "start_method" in mark.kwargs else {"preload": preload}
        return _checked(*mark.args, **{**default, **mark.kwargs})
    except TypeError as error:
        said = str(error).replace("_checked()", "ranks()")
        raise BadMarker(f"@pytest.mark.ranks: {said}") from None


def _checked(
    n: Any,
    *,
    timeout: Any = None,
    start_method: Any = None,
    gpus: Any = None,
    dialect: Any = "paddle,torch",
    preload: Any = None,
    shared: Any = (),
) -> Ranks:
    _need(type(n) is int and n >= 1, "n", n, "the number of ranks, 1 or more")
    _need(timeout is None or _seconds(timeout), "timeout", timeout, "a number of seconds, 0 for none")
    if start_method is None:
        start_method = "zygote" if preload else "spawn"
    _need(start_method in METHODS, "start_method", start_method, f"one of {', '.join(METHODS)}")
    names = dialect.split(",") if isinstance(dialect, str) else [""]
    known = all(name.strip() in DIALECTS for name in names)
    _need(known, "dialect", dialect, f"one of {', '.join(DIALECTS)}, or several joined by commas")
    _need(preload is None or isinstance(preload, str), "preload", preload, "the name of a module")
    zygote = not preload or start_method == "zygote"
    _need(zygote, "start_method", start_method, "zygote where preload is given")
    if isinstance(shared, str):
        shared = (shared,)
    listed = isinstance(shared, (tuple, list)) and all(isinstance(name, str) for name in shared)
    _need(listed, "shared", shared, "names of fixtures")
    options: dict[str, Any] = {"start_method": start_method, "dialect": dialect}
    devices = _devices(gpus)
    listed = not isinstance(devices, list) or len(devices) >= n
    _need(listed, "gpus", gpus, f"as many devices as ranks, so {n}")
    if preload:
        options["preload"] = preload
    return Ranks(n, None if timeout is None else float(timeout), options, devices, tuple(shared))


def _seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9


def _devices(gpus: Any) -> list[str] | bool | None:
    if gpus is None or gpus is False:
        return None
    if gpus is True:
        return True
    several = (
        gpus.split(",") if isinstance(gpus, str) else gpus if isinstance(gpus, (tuple, list)) else [gpus]
    )
    names = [str(gpu).strip() for gpu in several if isinstance(gpu, (int, str)) and not isinstance(gpu, bool)]
    sound = 0 < len(names) == len(several) == len(set(names)) and all(names)
    _need(sound, "gpus", gpus, 'True for one a rank, or devices, each once, as "0,1" or [0, 1]')
    return names


def _need(holds: bool, name: str, value: Any, wanted: str) -> None:
    if not holds:
        raise BadMarker(f"@pytest.mark.ranks: {name} must be {wanted}, but got {value!r}")
