"""What passes between a program and its ranks: pickled by name, or by value where the other side cannot
look the name up (a lambda, a closure, what a notebook defines), for which cloudpickle has to be there."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import sys
import time
import types
from collections import ChainMap, deque
from multiprocessing import spawn
from multiprocessing.reduction import ForkingPickler

TYPE_CHECKING = False  # typing takes longer to import than what a rank needs for its result.
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import IO, Any, ClassVar

# What picklers raise of something that has no name.
_NOT_BY_NAME = (pickle.PicklingError, AttributeError, TypeError)
# What they raise of their own, rather than somebody's __reduce__: these texts may be added to.
_THEIRS = (*_NOT_BY_NAME, RuntimeError, ValueError)


def preparation(name: str) -> tuple[dict[str, Any], bool]:
    """What ``multiprocessing.spawn.prepare`` is to be told, and whether it imports the main module.

    It does not where that came from stdin, a prompt or a notebook, nor, by its own rule, a ``__main__.py``.
    """
    told = spawn.get_preparation_data(name)
    path = told.get("init_main_from_path", "")
    if path and not os.path.isfile(path):
        del told["init_main_from_path"]  # <stdin>
        path = ""
    # What prepare leaves alone: _fixup_main_from_name and _fixup_main_from_path.
    by_path = path != "" and os.path.splitext(os.path.basename(path))[0] != "ipython"
    by_name = told.get("init_main_from_name", "__main__").rpartition(".")[2] != "__main__"
    return told, by_name or by_path


class Sender:
    """Pickles one thing after another: by name, and from the first that this fails for on, by value.

    Args:
        parts: what is sent, by what people call it.
        whither: to whom, for people.
    """

    def __init__(self, parts: Mapping[str, Any], whither: str) -> None:
        self._parts = parts
        self._whither = whither
        self._pickler: Any = None

    def dump(
        self, value: Any, file: IO[bytes], main: bool = True, start_over: Callable[[], None] = lambda: None
    ) -> None:
        """Pickles to a file that can be rewound; ``start_over()`` is called when it is.

        ``main``: whether the other side knows by name what the main module defines.

        Raises:
            PicklingError, AttributeError, TypeError and others: as multiprocessing does; the first line
                names what cannot be sent.
        """
        if self._pickler is None:
            self._pickler = _first_pickler(main)
        start = file.tell()
        try:
            try:
                self._pickler(file, -1).dump(value)
                return
            except _NOT_BY_NAME:
                by_value = _by_value()
                if by_value is None or self._pickler is by_value:
                    raise
            self._pickler = by_value
            file.seek(start)
            file.truncate()
            start_over()
            self._pickler(file, -1).dump(value)
        except (OSError, MemoryError):
            raise
        except Exception as error:
            # To search is a courtesy.
            with contextlib.suppress(Exception):
                self._explain(error)
            raise

    def _explain(self, error: Exception) -> None:
        """Has the error say what cannot be sent."""
        from . import _unsendable

        until = time.monotonic() + _unsendable.SECONDS
        found = _unsendable.find(self._parts, functools.partial(_visited, self._pickler, until), until)
        if found is None:
            return
        name, culprit = found
        line = f"cannot be sent to {self._whither}: {name}: {_unsendable.kind_of(culprit)}"
        text = str(error)
        if isinstance(error, _THEIRS) and error.args == (text,):
            error.args = (f"{line}\n{text}\n{self._way_out(culprit)}",)
        elif hasattr(error, "add_note"):  # Python 3.11.
            error.add_note(line)

    def _way_out(self, culprit: Any) -> str:
        if _is_definition(culprit) and _by_value() is None:
            return "Define it at the top level of a module, or install cloudpickle, which sends it by value."
        return "Send what it is made from, and make it again on the other side."


def _is_definition(thing: Any) -> bool:
    """Whether it is a function or a class, which may be known by name. Does not ask the thing itself."""
    return issubclass(type(thing), (type, types.FunctionType))


class _ByNameButMain(ForkingPickler):
    """Refuses what the main module defines: the other side has another one."""

    def reducer_override(self, obj: Any) -> Any:
        if _is_definition(obj) and obj.__module__ == "__main__":
            raise pickle.PicklingError(f"Can't pickle {obj!r}: ranks cannot import the main module")
        return NotImplemented


def _first_pickler(main: bool) -> Any:
    # What is defined at a prompt is in no file, even where the main module came from one.
    known = main and not (hasattr(sys, "ps1") and _by_value() is not None)
    return ForkingPickler if known else _ByNameButMain


@functools.cache
def _made_of(cloudpickle: Any) -> Any:
    extra = ForkingPickler._extra_reducers  # type: ignore[attr-defined]

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
        """cloudpickle's, which knows multiprocessing's objects, and those of who has registered there."""

        # The class's: pickle looks it up when a pickler is made, and cloudpickle's would hide the instance's.
        dispatch_table: ClassVar[Any] = ChainMap(extra, cloudpickle.Pickler.dispatch_table)

        def __init__(self, file: Any, protocol: int, fix_imports: bool = True, callback: Any = None) -> None:
            super().__init__(file, protocol, callback)

    return ByValue


def _by_value() -> Any:
    """The pickler that sends by value; None without cloudpickle."""
    try:
        import cloudpickle
    except ImportError:
        return None
    return _made_of(cloudpickle)


class _Nowhere:
    """A file that keeps nothing, and takes nothing after a while."""

    def __init__(self, until: float) -> None:
        self._until = until

    def write(self, data: Any) -> int:
        from ._unsendable import OutOfTime

        if time.monotonic() > self._until:
            raise OutOfTime
        return len(data)


def _visited(pickler: Any, until: float, value: Any) -> Sequence[Any] | None:
    """Tries to pickle: the last objects it came to before it failed; None if it did not fail."""
    from ._unsendable import OutOfTime

    visited: deque[Any] = deque(maxlen=64)

    class Trial(pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            visited.append(obj)
            override = getattr(super(), "reducer_override", None)
            return NotImplemented if override is None else override(obj)

    try:
        # Buffers, as of arrays, are passed by.
        Trial(_Nowhere(until), 5, True, lambda buffer: None).dump(value)
    except OutOfTime:
        raise
    except Exception:
        return list(visited)
    return None
