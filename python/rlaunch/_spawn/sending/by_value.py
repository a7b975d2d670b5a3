"""Pickles by value what the other side cannot import: functions and classes, by cloudpickle's pickler."""

from __future__ import annotations

import types
from collections import ChainMap

TYPE_CHECKING = False  # A rank needs this module for its result; importing typing takes longer.
if TYPE_CHECKING:
    from typing import Any, ClassVar


def find_by_value_pickler() -> Any:
    """Returns the class of a pickler that pickles by value; None if cloudpickle is not installed."""
    try:
        import cloudpickle
    except ImportError:
        return None

    known = cloudpickle.Pickler.dispatch_table

    class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap({types.CodeType: _reduce_code}, known)

    return ByValuePickler


def _reduce_code(code: types.CodeType) -> Any:
    """Reduces a code object as cloudpickle does, but keeps its file name.

    cloudpickle 3.1.3 writes "<dynamic-code>" instead, by which a rank's traceback and ``inspect.getsource``
    find no source lines.
    """
    import cloudpickle

    build, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return _build_code, (build, arguments, code.co_filename)


def _build_code(build: Any, arguments: tuple[Any, ...], file_name: str) -> types.CodeType:
    code: types.CodeType = build(*arguments)
    return code.replace(co_filename=file_name)
