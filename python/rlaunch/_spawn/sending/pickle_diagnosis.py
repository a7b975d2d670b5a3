"""Names the object that cannot be pickled: ``args[1].lock: _thread.lock``. Pickles nothing itself.

The caller passes a trial, which pickles and reports the objects that it visited last. The search looks for
these objects by identity in the value, breadth first: the shortest path to one of them is its name.
"""

from __future__ import annotations

import functools
import sys
import time
import types
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    # Returns the objects visited before the failure, the last one last; None if pickling succeeded.
    Trial = Callable[[Any], Sequence[Any] | None]

# Limits of one search. Beyond them the answer is the part that contains the object.
MAX_OBJECTS = 200_000
MAX_SECONDS = 5.0
# Characters of a name up to which the search descends further.
MAX_NAME_LENGTH = 300

# The packages whose frames show how a value was pickled, and not where it is.
_PICKLERS = ("rlaunch", "cloudpickle", "copyreg", "multiprocessing", "pickle")

_ATOMS = {type(None), bool, int, float, complex, str, bytes, bytearray, range}


class OutOfTime(Exception):
    """Raised by a trial at its deadline."""


def trim_traceback(error: Exception) -> bool:
    """Removes the frames of rlaunch and of the picklers from an exception that pickling has raised.

    Frames of other code, such as the ``__reduce__`` of a class, stay.

    Returns:
        Whether pickling has raised it.
    """
    entries = []
    entry = error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    names = [str(each.tb_frame.f_globals.get("__name__")) for each in entries]
    if f"{__package__}.pickling" not in names:
        return False
    inside = list(zip(names, entries, strict=True))[names.index(f"{__package__}.pickling") :]
    trimmed = None
    for name, entry in reversed(inside):
        if name.partition(".")[0] not in _PICKLERS:
            trimmed = types.TracebackType(trimmed, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = trimmed
    return True


def find_culprit(parts: Mapping[str, Any], trial: Trial, deadline: float) -> tuple[str, Any] | None:
    """Finds the innermost object that has a name and cannot be pickled.

    Args:
        parts: the values, by the names that the user knows them by.
        trial: tries to pickle a value; may raise ``OutOfTime``.
        deadline: when to stop the search, in seconds of ``time.monotonic()``.

    Returns:
        The object's name and the culprit: the object, or an object without a name inside it. None if every
        part can be pickled.
    """
    for name, part in parts.items():
        try:
            visited = trial(part)
        except OutOfTime:
            return name, part
        if visited is not None:
            return _find_innermost(name, part, visited, trial, deadline)
    return None


def _find_innermost(
    name: str, part: Any, visited: Sequence[Any], trial: Trial, deadline: float
) -> tuple[str, Any]:
    names = _name_objects(name, part, visited, deadline)
    culprit = None
    try:
        for thing in reversed(visited):
            # An object on the way to the culprit fails too; the others can be pickled.
            if trial(thing) is not None:
                culprit = thing if culprit is None else culprit
                if id(thing) in names:
                    return names[id(thing)], culprit
        name, inner = _descend(name, part, trial, deadline)
    except OutOfTime:
        inner = part
    return name, inner if culprit is None else culprit


def _descend(name: str, thing: Any, trial: Trial, deadline: float) -> tuple[str, Any]:
    """Follows the first child that cannot be pickled, again and again, until the deadline."""
    path: set[int] = set()
    inner = [(name, thing)]
    while inner:
        name, thing = inner.pop()
        path.add(id(thing))
        for child_name, child in _children_safely(name, thing):
            if time.monotonic() > deadline:
                break
            if type(child) not in _ATOMS and id(child) not in path and trial(child) is not None:
                inner.append((child_name, child))
                break
    return name, thing


def _name_objects(name: str, part: Any, wanted: Sequence[Any], deadline: float) -> dict[int, str]:
    """Returns the names of those objects of ``wanted`` that can be reached, by ``id()``."""
    missing = {id(thing) for thing in wanted}
    # Keeps temporary objects alive: the id of one that is gone would be used again.
    seen: dict[int, Any] = {id(part): part}
    found: dict[int, str] = {}
    queue = deque([(name, part)])
    last = id(wanted[-1]) if wanted else None
    while queue and last not in found:
        name, thing = queue.popleft()
        if id(thing) in missing:
            found[id(thing)] = name
        for child_name, child in _children_safely(name, thing):
            if len(seen) > MAX_OBJECTS or time.monotonic() > deadline:
                return found
            if type(child) not in _ATOMS and id(child) not in seen:
                seen[id(child)] = child
                queue.append((child_name, child))
    return found


def _children_safely(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    if len(name) > MAX_NAME_LENGTH:
        return
    try:
        yield from _children(name, thing)
    except Exception:  # A class with odd attributes: its content stays without a name.
        return


def _children(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, dict):
        for key, value in dict.items(thing):
            yield f"{name}[{shorten(key)}]", value
            yield f"{name} key {shorten(key)}", key
    elif isinstance(thing, tuple) and hasattr(thing, "_fields"):
        yield from ((f"{name}.{field}", value) for field, value in zip(thing._fields, thing, strict=False))
    elif isinstance(thing, (list, tuple, deque)):
        yield from ((f"{name}[{index}]", value) for index, value in enumerate(thing))
    elif isinstance(thing, (set, frozenset)):
        yield from ((f"{name} item {shorten(value)}", value) for value in thing)
    elif isinstance(thing, types.FunctionType):
        yield from _function_parts(name, thing)
    elif isinstance(thing, types.MethodType):
        yield f"{name}.__self__", thing.__self__
        yield f"{name}.__func__", thing.__func__
    elif isinstance(thing, functools.partial):
        yield f"{name}.func", thing.func
        yield f"{name}.args", thing.args
        yield f"{name}.keywords", thing.keywords
    elif isinstance(thing, (staticmethod, classmethod)):
        yield name, thing.__func__
    elif isinstance(thing, type):
        if not _is_known_by_name(thing):
            yield from ((f"{name}.{key}", value) for key, value in list(vars(thing).items()))
            yield from ((f"{name} base {base.__name__}", base) for base in thing.__bases__)
        return
    if not isinstance(thing, (type, types.FunctionType, types.ModuleType)):
        yield from _attributes(name, thing)
        yield name, type(thing)


def _attributes(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    own = getattr(thing, "__dict__", None)
    if isinstance(own, dict):
        yield from ((f"{name}.{key}", value) for key, value in list(own.items()))
    for kind in type(thing).__mro__:
        # By the member: the attribute of a private slot has a mangled name.
        for key, member in vars(kind).items():
            if isinstance(member, types.MemberDescriptorType):
                try:
                    yield f"{name}.{key}", member.__get__(thing)
                except AttributeError:  # Not set.
                    continue
    if isinstance(thing, BaseException):
        yield f"{name}.args", thing.args


def _function_parts(name: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields what is pickled with a function by value."""
    if _is_known_by_name(function):
        return
    code = function.__code__
    for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"{name} closure {variable!r}", cell.cell_contents
        except ValueError:  # Still empty.
            continue
    for index, value in enumerate(function.__defaults__ or ()):
        yield f"{name} default {index}", value
    for key, value in (function.__kwdefaults__ or {}).items():
        yield f"{name} default {key!r}", value
    for key in sorted(_global_names(code) & function.__globals__.keys()):
        yield f"{name} global {key!r}", function.__globals__[key]
    yield from ((f"{name}.{key}", value) for key, value in vars(function).items())


def _global_names(code: types.CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(_global_names, inner))


def _is_known_by_name(thing: Any) -> bool:
    """Returns whether a function or class can be looked up by name outside the main module."""
    module = thing.__module__
    found: Any = sys.modules.get(module) if module != "__main__" else None
    for attribute in thing.__qualname__.split("."):
        found = getattr(found, attribute, None)
    return found is thing


def shorten(value: Any) -> str:
    """Returns a short representation of a key; for an object that is not a plain value, its kind."""
    if type(value) in (str, bytes) and len(value) > 40:
        return f"{value[:37]!r}..."
    plain = type(value) in _ATOMS or (type(value) is tuple and all(type(item) in _ATOMS for item in value))
    text = repr(value) if plain else ""
    return text if 0 < len(text) <= 80 else f"<{describe_kind(value)}>"


def describe_kind(thing: Any) -> str:
    """Returns the kind of an object: ``_thread.lock``, ``function <lambda>``, ``class shop.Cart``."""
    kind = type(thing)  # isinstance would call the object's __class__.
    if kind is types.ModuleType:
        return f"module {thing.__name__}"
    if kind is types.FunctionType:
        return f"function {thing.__qualname__}"
    return f"class {_full_name(thing)}" if issubclass(kind, type) else _full_name(kind)


def _full_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
