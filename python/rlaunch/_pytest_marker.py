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
        options: what ``rlaunch.spawn`` is told beside the function.
        shared: names of fixtures.
    """

    n: int
    timeout: float | None
    options: dict[str, Any]
    shared: tuple[str, ...]


def read(mark: pytest.Mark) -> Ranks:
    """What a marker says.

    Raises:
        BadMarker: it says what cannot be.
    """
    try:
        return _checked(*mark.args, **mark.kwargs)
    except TypeError as error:
        said = str(error).replace("_checked()", "ranks()")
        raise BadMarker(f"@pytest.mark.ranks: {said}") from None


def _checked(
    n: Any,
    *,
    timeout: Any = None,
    start_method: Any = "spawn",
    gpus: Any = None,
    dialect: Any = "paddle,torch",
    preload: Any = None,
    shared: Any = (),
) -> Ranks:
    _need(type(n) is int and n >= 1, "n", n, "the number of ranks, 1 or more")
    _need(timeout is None or _seconds(timeout), "timeout", timeout, "a number of seconds, 0 for none")
    _need(start_method in METHODS, "start_method", start_method, f"one of {', '.join(METHODS)}")
    names = dialect.split(",") if isinstance(dialect, str) else [""]
    known = all(name.strip() in DIALECTS for name in names)
    _need(known, "dialect", dialect, f"one of {', '.join(DIALECTS)}, or several joined by commas")
    _need(preload is None or isinstance(preload, str), "preload", preload, "the name of a module")
    if isinstance(shared, str):
        shared = (shared,)
    listed = isinstance(shared, (tuple, list)) and all(isinstance(name, str) for name in shared)
    _need(listed, "shared", shared, "names of fixtures")
    options: dict[str, Any] = {"start_method": start_method, "dialect": dialect}
    if gpus is None:
        options["backend"] = "gloo"
    else:
        options["gpus"] = _devices(gpus)
    if preload is not None:
        options["preload"] = preload
    return Ranks(n, None if timeout is None else float(timeout), options, tuple(shared))


def _seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9


def _devices(gpus: Any) -> str:
    several = gpus if isinstance(gpus, (tuple, list)) else [gpus]
    sound = all(isinstance(gpu, (int, str)) and not isinstance(gpu, bool) for gpu in several)
    _need(sound and bool(several), "gpus", gpus, 'devices, as "0,1" or [0, 1]')
    return ",".join(map(str, several))


def _need(holds: bool, name: str, value: Any, wanted: str) -> None:
    if not holds:
        raise BadMarker(f"@pytest.mark.ranks: {name} must be {wanted}, but got {value!r}")
