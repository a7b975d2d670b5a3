"""``config.workerinput`` of a rank: plugins find in it what they have put there in the pytest process."""

from __future__ import annotations

import contextlib
import functools
import pickle
from typing import TYPE_CHECKING, Any

from ..task import is_conftest

if TYPE_CHECKING:
    from collections.abc import Callable


class _MissingValueError(KeyError):
    pass


class _Workerinput(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        raise _MissingValueError(name)


def unpickle_workerinput(pickled: dict[str, bytes]) -> dict[str, Any]:
    """Returns the values that this rank can unpickle."""
    values = _Workerinput()
    for name, value in pickled.items():
        with contextlib.suppress(Exception):
            values[name] = pickle.loads(value)
    return values


def configure_without_workers(config: Any) -> None:
    """Has plugins that miss a value in ``workerinput`` configure themselves as in a session without workers.

    In the pytest process they have not put it there, because that has no workers of pytest-xdist.
    """
    for implementation in config.hook.pytest_configure.get_hookimpls():
        is_wrapper = implementation.hookwrapper or implementation.wrapper
        if not is_wrapper and not is_conftest(implementation.plugin):
            implementation.function = functools.partial(_configure, config, implementation.function)


def _configure(config: Any, function: Callable[..., Any], *args: Any) -> None:
    try:
        function(*args)
    except _MissingValueError:
        values = config.workerinput
        del config.workerinput
        try:
            # Not every plugin can be configured twice: it keeps what it had done.
            with contextlib.suppress(Exception):
                function(*args)
        finally:
            config.workerinput = values
