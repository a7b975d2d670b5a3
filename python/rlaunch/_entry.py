"""``python -m rlaunch._entry PAYLOAD RESULTS``: a rank whose program is a function.

Its launcher's Python side calls ``dump`` before, and ``results`` after.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import TYPE_CHECKING, Any

from . import _whole_file
from .errors import NoResultError, record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def dump(entrypoint: Callable[..., Any], args: Iterable[Any], path: str) -> None:
    """Writes a function and its arguments to a file, for its owner alone.

    What pickle knows only by a name that ranks cannot look up (a lambda, a function of a notebook) is
    written whole if cloudpickle is installed.

    Raises:
        RuntimeError: a rank still imports its main module, which has no main guard.
        OSError: the file cannot be written. Other exceptions are pickle's: something cannot be pickled.
    """
    from ._sending import preparation
    from .spawn import check_main_is_imported

    check_main_is_imported()
    told, has_main = preparation("rank")
    # As bytes: the type that it has refuses to be pickled outside of multiprocessing.
    told["authkey"] = bytes(told["authkey"])
    call = (entrypoint, tuple(args))
    by_name = has_main or getattr(entrypoint, "__module__", "__main__") != "__main__"
    try:
        pickled = pickle.dumps(call) if by_name else _whole(call)
    except (pickle.PicklingError, AttributeError, TypeError):
        pickled = _whole(call)
    _whole_file.put(path, pickle.dumps((told, pickled)))


def results(folder: str, ranks: Iterable[int]) -> dict[int, Any]:
    """What each of these ranks has returned.

    Raises:
        NoResultError: one has ended without returning.
    """
    found = {}
    for rank in ranks:
        try:
            with open(_result(folder, rank), "rb") as file:
                found[rank] = pickle.load(file)
        except FileNotFoundError:
            raise NoResultError(
                f"the result of rank {rank} is not there: the rank ended without one"
            ) from None
    return found


def main(payload: str, folder: str) -> None:
    """Runs the function, as the rank that RANK names, and puts what it returns into the folder.

    What is raised, by loading it too, is recorded as ``rlaunch.errors.record`` does. ``sys.exit(0)`` returns
    None.
    """
    record(_run)(payload, _result(folder, int(os.environ["RANK"])))


def _run(payload: str, result: str) -> None:
    entrypoint, args = _load(payload)
    value = None
    try:
        value = entrypoint(*args)
    except SystemExit as ending:
        if ending.code != 0:
            raise
    try:
        content = pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError):
        content = _whole(value)
    _whole_file.put(result, content)


def _load(payload: str) -> Any:
    from multiprocessing import process, spawn

    with open(payload, "rb") as file:
        told, pickled = pickle.load(file)
    # While it is there, whoever starts processes is told that a main guard is missing.
    process.current_process()._inheriting = True  # type: ignore[attr-defined]
    try:
        spawn.prepare(told)
        return pickle.loads(pickled)
    finally:
        del process.current_process()._inheriting  # type: ignore[attr-defined]


def _result(folder: str, rank: int) -> str:
    return os.path.join(folder, f"{rank}.pickle")


def _whole(value: Any) -> bytes:
    """Pickled with all that only this process knows by name.

    Raises:
        PicklingError: for want of cloudpickle.
    """
    try:
        import cloudpickle
    except ImportError:
        message = f"{value!r} is known to this process alone; with cloudpickle installed it can be sent"
        raise pickle.PicklingError(message) from None
    pickled: bytes = cloudpickle.dumps(value)
    return pickled


if __name__ == "__main__":
    # By its own name: what is pickled here is not to be sought in a main module.
    from rlaunch import _entry

    _entry.main(*sys.argv[1:])
