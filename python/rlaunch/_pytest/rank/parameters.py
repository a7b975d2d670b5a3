"""The parameters of a test: the same ones in all its ranks."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

_ADDRESS = re.compile(r"\b0x[0-9a-f]+")


def describe_parameters(item: pytest.Item) -> dict[str, bytes | str]:
    """Returns the parameters by name: pickled, or as text where one cannot be pickled."""
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else {name: _describe(value) for name, value in callspec.params.items()}


def _describe(value: Any) -> bytes | str:
    try:
        return pickle.dumps(value)
    except Exception:
        pass
    try:
        return _ADDRESS.sub("0x", repr(value))
    except Exception:
        return type(value).__qualname__


def set_parameters(item: pytest.Item, wanted: dict[str, bytes | str]) -> None:
    """Gives a rank's test the parent's values of parameters that differ. Equal ones stay the same objects.

    Raises:
        pytest.UsageError: one differs and cannot be sent.
    """
    own = describe_parameters(item)
    for name, value in wanted.items():
        if own.get(name) == value:
            continue
        try:
            if isinstance(value, str):
                raise TypeError("it cannot be pickled")
            item.callspec.params[name] = pickle.loads(value)  # type: ignore[attr-defined]
        except Exception as error:
            what = f"the parameter {name!r} differs between processes (a set, a time, a random number)"
            why = f"the pytest process cannot send its value: {error}"
            raise pytest.UsageError(
                f"{what}, and {why}. Use one that is the same in all processes."
            ) from None
