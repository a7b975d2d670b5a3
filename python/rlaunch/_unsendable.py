"""Names what keeps a value from being sent: ``args[1].lock``, a ``_thread.lock``. Pickles nothing itself.

Whoever pickles says by a trial which objects it came to last. Those are sought by identity in what was to
be sent, breadth first, so that the shortest way to them is the name.
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

    # The objects a trial came to before it failed, the last ones last; None if it did not fail.
    Trial = Callable[[Any], Sequence[Any] | None]

# What one search may cost at most: a structure beyond this is named by the part it is in.
OBJECTS = 200_000
SECONDS = 5.0
# How long a name, in characters, is made longer.
LENGTH = 300

_ATOMS = {type(None), bool, int, float, complex, str, bytes, bytearray, range}


class OutOfTime(Exception):
    """Raised by a trial that has taken too long."""


def find(parts: Mapping[str, Any], trial: Trial, until: float) -> tuple[str, Any] | None:
    """The name of the innermost thing that can be named and cannot be sent, and the culprit in it.

    Args:
        parts: what was to be sent, by what people call it.
        trial: tries to pickle; may raise ``OutOfTime``.
        until: when to stop looking for a name, in seconds of ``time.monotonic()``.

    Returns:
        None if every part can be sent. The culprit is the thing itself or what it hides inside.
    """
    for name, part in parts.items():
        try:
            visited = trial(part)
        except OutOfTime:
            return name, part
        if visited is not None:
            return _innermost(name, part, visited, trial, until)
    return None


def _innermost(name: str, part: Any, visited: Sequence[Any], trial: Trial, until: float) -> tuple[str, Any]:
    names = _names(name, part, visited, until)
    culprit = None
    try:
        for thing in reversed(visited):
            # What was passed by on the way can be sent; what holds the culprit cannot.
            if trial(thing) is not None:
                culprit = thing if culprit is None else culprit
                if id(thing) in names:
                    return names[id(thing)], culprit
        name, inner = _descend(name, part, trial, until)
    except OutOfTime:
        inner = part
    return name, inner if culprit is None else culprit


def _descend(name: str, thing: Any, trial: Trial, until: float) -> tuple[str, Any]:
    """From what cannot be sent to the first thing in it that cannot, as far as there is time."""
    path: set[int] = set()
    inner = [(name, thing)]
    while inner:
        name, thing = inner.pop()
        path.add(id(thing))
        for child_name, child in _children_safely(name, thing):
            if time.monotonic() > until:
                break
            if type(child) not in _ATOMS and id(child) not in path and trial(child) is not None:
                inner.append((child_name, child))
                break
    return name, thing


def _names(name: str, part: Any, wanted: Sequence[Any], until: float) -> dict[int, str]:
    """How those of ``wanted`` that can be reached are called, by identity."""
    missing = {id(thing) for thing in wanted}
    # Kept alive by `seen`: an object made in passing must not lend its identity to the next one.
    seen: dict[int, Any] = {id(part): part}
    found: dict[int, str] = {}
    queue = deque([(name, part)])
    last = id(wanted[-1]) if wanted else None
    while queue and last not in found:
        name, thing = queue.popleft()
        if id(thing) in missing:
            found[id(thing)] = name
        for child_name, child in _children_safely(name, thing):
            if len(seen) > OBJECTS or time.monotonic() > until:
                return found
            if type(child) not in _ATOMS and id(child) not in seen:
                seen[id(child)] = child
                queue.append((child_name, child))
    return found


def _children_safely(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    if len(name) > LENGTH:
        return
    try:
        yield from _children(name, thing)
    except Exception:  # An odd class: what it holds stays without a name.
        return


def _children(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, dict):
        for key, value in dict.items(thing):
            yield f"{name}[{brief(key)}]", value
            yield f"{name} key {brief(key)}", key
    elif isinstance(thing, tuple) and hasattr(thing, "_fields"):
        yield from ((f"{name}.{field}", value) for field, value in zip(thing._fields, thing, strict=False))
    elif isinstance(thing, (list, tuple, deque)):
        yield from ((f"{name}[{index}]", value) for index, value in enumerate(thing))
    elif isinstance(thing, (set, frozenset)):
        yield from ((f"{name} item {brief(value)}", value) for value in thing)
    elif isinstance(thing, types.FunctionType):
        yield from _of_function(name, thing)
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
        if not _known_by_name(thing):
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
        # The member, not the name: that of a private slot is spelt in another way.
        for key, member in vars(kind).items():
            if isinstance(member, types.MemberDescriptorType):
                try:
                    yield f"{name}.{key}", member.__get__(thing)
                except AttributeError:  # Not set.
                    continue
    if isinstance(thing, BaseException):
        yield f"{name}.args", thing.args


def _of_function(name: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What goes with a function that is sent by value."""
    if _known_by_name(function):
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


def _known_by_name(thing: Any) -> bool:
    """Whether a function or class can be looked up where it says it is, in a module that is no program."""
    module = thing.__module__
    found: Any = sys.modules.get(module) if module != "__main__" else None
    for attribute in thing.__qualname__.split("."):
        found = getattr(found, attribute, None)
    return found is thing


def brief(value: Any) -> str:
    """A short representation of a key; of what is not plain, its kind."""
    if type(value) in (str, bytes) and len(value) > 40:
        return f"{value[:37]!r}..."
    plain = type(value) in _ATOMS or (type(value) is tuple and all(type(item) in _ATOMS for item in value))
    text = repr(value) if plain else ""
    return text if 0 < len(text) <= 80 else f"<{kind_of(value)}>"


def kind_of(thing: Any) -> str:
    """What it is, for people: ``_thread.lock``, ``function <lambda>``, ``class shop.Cart``."""
    kind = type(thing)  # Not isinstance, which asks the thing itself.
    if kind is types.ModuleType:
        return f"module {thing.__name__}"
    if kind is types.FunctionType:
        return f"function {thing.__qualname__}"
    return f"class {_full(thing)}" if issubclass(kind, type) else _full(kind)


def _full(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
