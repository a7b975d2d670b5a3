"""Pickles what passes between a program and its ranks.

By name where possible. What the other side cannot look up by name (a lambda, a closure, a function of a
notebook) is pickled by value, which needs cloudpickle.
"""

from __future__ import annotations

import contextlib
import contextvars
import copyreg
import functools
import os
import pickle
import sys
import time
import types
from collections import ChainMap, deque
from multiprocessing import spawn
from multiprocessing.reduction import ForkingPickler

from .by_value import find_by_value_pickler
from .doubtful_modules import DoubtfulModules, noting
from .tensors import paddle_reducers, torch_reducers

TYPE_CHECKING = False  # A rank needs this module for its result; importing typing takes longer.
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from typing import IO, Any, ClassVar

# What picklers raise for an object that cannot be looked up by name.
_NOT_BY_NAME = (pickle.PicklingError, AttributeError, TypeError)
# The types that picklers raise themselves, unlike a __reduce__ of the user. Only their texts are extended.
_FROM_PICKLERS = (*_NOT_BY_NAME, RuntimeError, ValueError)
# Whether ranks that this thread starts now import the main module.
_imports_main = contextvars.ContextVar("_imports_main", default=True)


def build_preparation_data(name: str) -> tuple[dict[str, Any], bool]:
    """Returns the argument of ``multiprocessing.spawn.prepare``, and whether that imports the main module.

    It does not in a block of ``main_left_out``, if the main module came from stdin, a prompt or a notebook,
    nor, by multiprocessing's own rule, for a ``__main__.py``.
    """
    data = spawn.get_preparation_data(name)
    if not _imports_main.get():
        data.pop("init_main_from_path", None)
        data.pop("init_main_from_name", None)
    path = data.get("init_main_from_path", "")
    if path and not os.path.isfile(path):
        del data["init_main_from_path"]  # <stdin>
        path = ""
    # multiprocessing's _fixup_main_from_name and _fixup_main_from_path skip these two.
    by_path = path != "" and os.path.splitext(os.path.basename(path))[0] != "ipython"
    by_name = data.get("init_main_from_name", "__main__").rpartition(".")[2] != "__main__"
    return data, by_name or by_path


@contextlib.contextmanager
def main_left_out() -> Generator[None]:
    """Keeps ranks that start in this block from importing the main module."""
    token = _imports_main.set(False)
    try:
        yield
    finally:
        _imports_main.reset(token)


class Pickler:
    """Pickles objects one after another: by name, and by value from the first object on that needs it.

    Args:
        parts: the user's objects, by the names that the user knows them by. An error names the part.
        recipient: the receiving side, for the text of an error.
        copies_tensors: whether torch's tensors are sent by value, as Paddle's always are. Else as torch
            shares them between processes: the sender has to live until they are received.
        is_stored: whether the sender may end before the data are read, or several processes read them. Then
            a descriptor, as of a socket, cannot be sent.
        doubtful: receives the modules that the other side may be unable to import; None: it can import all.
    """

    def __init__(
        self,
        parts: Mapping[str, Any],
        recipient: str,
        copies_tensors: bool = False,
        is_stored: bool = False,
        doubtful: DoubtfulModules | None = None,
    ) -> None:
        self._parts = parts
        self._doubtful = doubtful
        self._recipient = recipient
        self._copies_tensors = copies_tensors
        self._unused = ("torch", "paddle", *(["multiprocessing"] if is_stored else []))
        self._pickler: Any = None
        self._is_by_value = False

    def dump(
        self, value: Any, file: IO[bytes], main: bool = True, on_restart: Callable[[], None] = lambda: None
    ) -> None:
        """Pickles ``value`` to a seekable file. Calls ``on_restart()`` when it starts over by value.

        ``main``: whether the other side can look up by name what the main module defines.

        Raises:
            PicklingError, AttributeError, TypeError and others: as multiprocessing does. The first line
                names what cannot be pickled.
        """
        if self._pickler is None:
            # What is defined at a prompt is in no file, even if the main module was imported from one.
            can_import_main = main and not (hasattr(sys, "ps1") and find_by_value_pickler() is not None)
            by_name = pickle.Pickler if can_import_main else _ByNameExceptMain
            self._pickler = self._make_pickler(by_name, copyreg.dispatch_table)
        start = file.tell()
        try:
            try:
                self._pickler(file, -1).dump(value)
                return
            except _NOT_BY_NAME:
                by_value = find_by_value_pickler()
                if by_value is None or self._is_by_value:
                    raise
            self._pickler = self._make_pickler(by_value, by_value.dispatch_table)
            self._is_by_value = True
            file.seek(start)
            file.truncate()
            on_restart()
            self._pickler(file, -1).dump(value)
        except (OSError, MemoryError):
            raise
        except Exception as error:
            # If the search for the culprit fails, the error stays as it is.
            with contextlib.suppress(Exception):
                self._name_culprit(error)
            raise

    def dump_again_by_value(self, value: Any, file: IO[bytes]) -> bool:
        """After ``dump``: pickles ``value`` once more, and by value what doubtful modules define.

        Returns:
            Whether it did. It does not without such modules, without cloudpickle, or if something of them
            cannot be pickled by value.
        """
        by_value = find_by_value_pickler() if self._doubtful else None
        if by_value is None or self._doubtful is None:
            return False
        start = file.tell()
        pickler = self._make_pickler(by_value, by_value.dispatch_table)
        try:
            with self._doubtful.sent_by_value():
                pickler(file, -1).dump(value)
        except (OSError, MemoryError):
            raise
        except Exception:
            file.seek(start)
            file.truncate()
            return False
        return True

    def _make_pickler(self, base: Any, known: Mapping[Any, Any]) -> Any:
        if self._doubtful is not None:
            base = noting(base, self._doubtful)
        return _make_pickler(base, known, self._copies_tensors, self._unused)

    def _name_culprit(self, error: Exception) -> None:
        """Adds to the error's text what cannot be pickled."""
        from . import pickle_diagnosis

        deadline = time.monotonic() + pickle_diagnosis.MAX_SECONDS
        trial = functools.partial(_try_pickling, self._pickler, deadline)
        found = pickle_diagnosis.find_culprit(self._parts, trial, deadline)
        if found is None:
            return
        name, culprit = found
        line = f"cannot be sent to {self._recipient}: {name}: {pickle_diagnosis.describe_kind(culprit)}"
        text = str(error)
        if isinstance(error, _FROM_PICKLERS) and error.args == (text,):
            error.args = (f"{line}\n{text}\n{_advise(name, culprit)}",)
        elif hasattr(error, "add_note"):  # Python 3.11.
            error.add_note(line)


def _advise(name: str, culprit: Any) -> str:
    """Returns what to do about a thing that cannot be pickled; it is the last line of the traceback."""
    if _is_definition(culprit) and find_by_value_pickler() is None:
        by_value = "install cloudpickle, which pickles it by value"
        return f"Define {name} at the top level of a module, or {by_value}."
    return f"Send the values that {name} is created from, and create it on the other side."


def _is_definition(thing: Any) -> bool:
    """Returns whether ``thing`` is a function or a class, without calling any of its methods."""
    return issubclass(type(thing), (type, types.FunctionType))


class _ByNameExceptMain(pickle.Pickler):
    """Refuses what the main module defines: the other side has a different main module."""

    def reducer_override(self, obj: Any) -> Any:
        if _is_definition(obj) and obj.__module__ == "__main__":
            raise pickle.PicklingError(f"Can't pickle {obj!r}: ranks cannot import the main module")
        return NotImplemented


def _make_pickler(base: Any, known: Mapping[Any, Any], copies_tensors: bool, unused: Sequence[str]) -> Any:
    """Returns a subclass that uses the reducers registered with multiprocessing beside the known ones.

    ``unused``: packages whose own reducers it leaves out, if ``copies_tensors`` is true.
    """
    registered: dict[Any, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    # The frameworks' own reducers put tensors into shared memory.
    users = {
        kind: reduce
        for kind, reduce in registered.items()
        if (getattr(reduce, "__module__", None) or "").partition(".")[0] not in unused
    }
    of_torch = torch_reducers() if copies_tensors else registered
    reducers = {**of_torch, **paddle_reducers(), **users, types.MethodType: _reduce_method}

    class Extended(base):  # type: ignore[misc]
        # On the class: pickle reads it when a pickler is made, and cloudpickle's would hide the instance's.
        dispatch_table: ClassVar[Any] = ChainMap(reducers, known)  # type: ignore[arg-type]

        def __init__(self, file: Any, protocol: int, callback: Any = None) -> None:
            super().__init__(file, protocol, buffer_callback=callback)

    return Extended


def _reduce_method(method: types.MethodType) -> Any:
    """As multiprocessing does; a private method (``self.__run``) by the name that the attribute has."""
    owner, name = method.__self__, method.__func__.__name__
    if name.startswith("__") and not name.endswith("__"):
        for kind in owner.__mro__ if isinstance(owner, type) else type(owner).__mro__:
            mangled = f"_{kind.__name__.lstrip('_')}{name}"
            if getattr(vars(kind).get(mangled), "__func__", vars(kind).get(mangled)) is method.__func__:
                return getattr, (owner, mangled)
    return getattr, (owner, name)


class _NullFile:
    """A file that keeps nothing, and raises ``OutOfTime`` after the deadline."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline

    def write(self, data: Any) -> int:
        from .pickle_diagnosis import OutOfTime

        if time.monotonic() > self._deadline:
            raise OutOfTime
        return len(data)


def _try_pickling(pickler: Any, deadline: float, value: Any) -> Sequence[Any] | None:
    """Pickles ``value`` into nowhere; returns the last objects visited before a failure, None for success."""
    from .pickle_diagnosis import OutOfTime

    visited: deque[Any] = deque(maxlen=64)

    class Trial(pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            visited.append(obj)
            override = getattr(super(), "reducer_override", None)
            return NotImplemented if override is None else override(obj)

    try:
        # The callback takes buffers, such as arrays, out of band.
        Trial(_NullFile(deadline), 5, lambda buffer: None).dump(value)
    except OutOfTime:
        raise
    except Exception:
        return list(visited)
    return None
