"""How many cases the tests run: few in `make test`, more in CI (RLAUNCH_TEST_ALL=1), and the most in
`make test-full` (RLAUNCH_TEST_FULL=1)."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

FULL = os.environ.get("RLAUNCH_TEST_FULL", "0") not in ("", "0")
ALL = FULL or os.environ.get("RLAUNCH_TEST_ALL", "0") not in ("", "0")

Test = TypeVar("Test", bound=Callable[..., Any])


def cases(few: int, many: int, in_ci: int | None = None) -> int:
    """How many random cases: `few` by default, `in_ci` with RLAUNCH_TEST_ALL=1 (`few` if it is None), and
    `many` with RLAUNCH_TEST_FULL=1."""
    if FULL:
        return many
    return in_ci if ALL and in_ci is not None else few


def each(
    names: str, values: Iterable[Any], few: int = 1, first: int | None = None, **options: Any
) -> Callable[[Test], Test]:
    """As ``pytest.mark.parametrize`` with RLAUNCH_TEST_ALL=1; else with ``few`` of the values from the index
    ``first`` on.

    Without ``first``, a hash of the test's name chooses it: different tests use different values, and all
    workers collect the same tests.
    """
    values = list(values)

    def mark(test: Test) -> Test:
        start = zlib.crc32(f"{test.__module__}.{test.__qualname__}".encode()) if first is None else first
        some = values if ALL else [values[(start + i) % len(values)] for i in range(min(few, len(values)))]
        marked: Test = pytest.mark.parametrize(names, some, **options)(test)
        return marked

    return mark


def left_to_ci(test: Test) -> Test | None:
    """A test that takes long and looks at what few changes touch: collected with RLAUNCH_TEST_ALL=1 only. A
    skip would fail in CI."""
    return test if ALL else None
