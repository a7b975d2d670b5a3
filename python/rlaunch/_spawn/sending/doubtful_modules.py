"""The modules that a rank may be unable to import, of the functions and classes that are pickled for it."""

from __future__ import annotations

import contextlib
import sys
import types
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from os import path

TYPE_CHECKING = False  # A rank needs `pickling`, which imports this module; importing typing takes longer.
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

_FINDERS: tuple[Any, ...] = (BuiltinImporter, FrozenImporter, PathFinder)
_MAIN = ("__main__", "__mp_main__")


class DoubtfulModules:
    """Collects the names of such modules."""

    def __init__(self) -> None:
        self._importable: dict[str, bool] = {}
        self._by_value: list[types.ModuleType] | None = None

    def __bool__(self) -> bool:
        return not all(self._importable.values())

    def note_definition(self, obj: Any) -> None:
        """Notes the module of a function or a class, or a module."""
        if not issubclass(type(obj), (type, types.FunctionType, types.ModuleType)):
            return
        name = obj.__name__ if issubclass(type(obj), types.ModuleType) else obj.__module__
        module = sys.modules.get(name) if isinstance(name, str) and name not in _MAIN else None
        if module is None:
            return
        if name not in self._importable:
            self._importable[name] = can_import(name)
        if self._by_value is not None and not self._importable[name]:
            _send_by_value(module, self._by_value)

    @contextlib.contextmanager
    def sent_by_value(self) -> Iterator[None]:
        """Makes cloudpickle pickle by value what these modules define."""
        import cloudpickle

        self._by_value = []
        try:
            yield
        finally:
            modules, self._by_value = self._by_value, None
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


def _send_by_value(module: types.ModuleType, registered: list[types.ModuleType]) -> None:
    import cloudpickle

    if module.__name__ in sys.modules and module.__name__ not in cloudpickle.list_registry_pickle_by_value():
        cloudpickle.register_pickle_by_value(module)
        registered.append(module)


def noting(base: Any, doubtful: DoubtfulModules) -> Any:
    """Returns a subclass of a pickler's class that notes the modules of what it pickles."""

    class Noting(base):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            doubtful.note_definition(obj)
            override = getattr(super(), "reducer_override", None)
            return NotImplemented if override is None else override(obj)

    return Noting


def can_import(name: str) -> bool:
    """Returns whether a new interpreter would find this module, as far as the standard finders can tell.

    A module may be in ``sys.modules`` and in no place of ``sys.path``: it was loaded from a file by its path,
    as ``pytest --import-mode=importlib`` does, or made by code.
    """
    places: Sequence[str] | None = None
    names = name.split(".")
    for depth in range(1, len(names) + 1):
        spec = _find(".".join(names[:depth]), places)
        if spec is None:
            # A module without a file may be made by the package that it is in, as six.moves is.
            return depth > 1 and _file_of(name) is None
        places = spec.submodule_search_locations
        if places is None and depth < len(names):
            return True
    return _is_same_source(_file_of(name), spec.origin)


def _find(name: str, places: Sequence[str] | None) -> Any:
    for finder in _FINDERS:
        with contextlib.suppress(ImportError, ValueError, OSError):
            spec = finder.find_spec(name, places)
            if spec is not None:
                return spec
    return None


def _file_of(name: str) -> str | None:
    file = getattr(sys.modules.get(name), "__file__", None)
    return file if isinstance(file, str) else None


def _is_same_source(loaded: str | None, found: str | None) -> bool:
    if loaded is None or found is None or not (loaded.endswith(".py") and found.endswith(".py")):
        return True
    try:
        return path.samefile(loaded, found)
    except OSError:
        return True
