"""``python -m rlaunch._elastic.function_worker PAYLOAD RESULTS``: a rank whose program is a function.

The program that starts the launcher calls ``dump_call`` before and ``load_results`` afterwards.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
from typing import TYPE_CHECKING, Any

from .._errors.atomic_file import write_atomically
from ..errors import NoResultError, record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def dump_call(entrypoint: Callable[..., Any], args: Iterable[Any], path: str) -> None:
    """Writes a function and its arguments to a file of mode 0600.

    What ranks cannot look up by name (a lambda, a function of a notebook) is pickled by value, which needs
    cloudpickle. Tensors are sent by value.

    Raises:
        RuntimeError: this process is a rank that still imports its main module: there is no main guard.
        OSError: the file cannot be written.
        PicklingError, AttributeError, TypeError and others: pickle's own. The first line names what cannot be
            pickled.
    """
    from .._spawn.main_guard import check_main_guard
    from .._spawn.sending.call import dump_call
    from .._spawn.sending.doubtful_modules import DoubtfulModules
    from .._spawn.sending.pickling import Pickler, build_preparation_data
    from .._spawn.start.preparation import add_cell_sources

    check_main_guard()
    preparation, has_main = build_preparation_data("rank")
    add_cell_sources(preparation)
    # multiprocessing's type for it can only be pickled for a process of its own.
    preparation["authkey"] = bytes(preparation["authkey"])
    call = (entrypoint, tuple(args))
    parts = {"entrypoint": entrypoint, "args": call[1]}
    pickled = io.BytesIO()
    with _without_picklers_frames():
        pickler = Pickler(parts, "the ranks", True, True, DoubtfulModules())
        dump_call(pickler, call, pickled, has_main)
    write_atomically(path, pickle.dumps((preparation, pickled.getvalue())))


def load_results(folder: str, ranks: Iterable[int]) -> dict[int, Any]:
    """Returns the return value of each of these ranks.

    Raises:
        NoResultError: a rank ended without returning.
    """
    results = {}
    for rank in ranks:
        try:
            with open(_result_path(folder, rank), "rb") as file:
                results[rank] = pickle.load(file)
        except FileNotFoundError:
            raise NoResultError(
                f"the result of rank {rank} is not there: the rank ended without one"
            ) from None
    return results


def main(payload: str, folder: str) -> None:
    """Runs the function as rank RANK, and writes its return value into the folder.

    An exception, also one of unpickling, is recorded as ``rlaunch.errors.record`` does. The return value of
    a function that calls ``sys.exit(0)`` is None.
    """
    record(_run)(payload, _result_path(folder, int(os.environ["RANK"])))


def _run(payload: str, result: str) -> None:
    from .._spawn.sending.pickling import Pickler

    entrypoint, args = _load_call(payload)
    value = None
    try:
        value = entrypoint(*args)
    except SystemExit as error:
        if error.code != 0:
            raise
    content = io.BytesIO()
    with _without_picklers_frames():
        Pickler({"result": value}, "the parent", copies_tensors=True, is_stored=True).dump(value, content)
    write_atomically(result, content.getvalue())


def _load_call(payload: str) -> Any:
    from multiprocessing import process, spawn

    from .._spawn.sending.call import load_call

    with open(payload, "rb") as file:
        preparation, pickled = pickle.load(file)
    # Set while the main module is imported: starting a process meanwhile fails for lack of a main guard.
    process.current_process()._inheriting = True  # type: ignore[attr-defined]
    try:
        spawn.prepare(preparation)
        return load_call(io.BytesIO(pickled))
    finally:
        del process.current_process()._inheriting  # type: ignore[attr-defined]


def _result_path(folder: str, rank: int) -> str:
    return os.path.join(folder, f"{rank}.pickle")


@contextlib.contextmanager
def _without_picklers_frames() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        from .._spawn.sending.pickle_diagnosis import trim_traceback

        trim_traceback(error)
        raise error


if __name__ == "__main__":
    # Through the import system, so that pickles refer to this module by its name and not to __main__.
    import importlib

    importlib.import_module("rlaunch._elastic.function_worker").main(*sys.argv[1:])
