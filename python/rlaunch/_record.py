"""``rlaunch.errors.record``: a rank's error, in a file for its launcher."""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any

from . import _whole_file
from .errors import TORCH_ERRORS, counterpart

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

# Where a launcher has said that it will look; torchrun's name for it.
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


def record(fn: Callable[P, R], error_handler: Any = None) -> Callable[P, R | None]:
    """A decorator for a script's main function: what it raises is recorded for the launcher, and raised.

    Contract: torch 2.15's ``torch.distributed.elastic.multiprocessing.errors.record``; each reads what the
    other writes. The file that TORCHELASTIC_ERROR_FILE names gets one JSON object: type and text of the
    exception, its traceback and the time. It is put in place whole, mode 0600; without that variable
    nothing is written. If it cannot be written, that is a RuntimeWarning, and never raised.

    ``sys.exit(0)`` makes the function return None; any other ``SystemExit``, and ``KeyboardInterrupt``, pass
    and are not recorded. A ``ChildFailedError`` hands on its root cause's file. faulthandler is enabled.

    Args:
        fn: the function.
        error_handler: whoever is to record instead, with the methods of torch's ``ErrorHandler``. Default:
            as said above.
    """
    handler = _Handler() if error_handler is None else error_handler

    @functools.wraps(fn)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> R | None:
        _tell(handler, "set_entrypoint_fn_name", getattr(fn, "__qualname__", None))
        handler.initialize()
        try:
            result = fn(*args, **kwargs)
        except SystemExit as ending:
            if ending.code == 0:
                return None
            raise
        except Exception as error:
            if _is_child_failed(error):
                failure = error.get_first_failure()[1]  # type: ignore[attr-defined]
                if os.path.isfile(failure.error_file):
                    handler.dump_error_file(failure.error_file, failure.exitcode)
            else:
                handler.record_exception(error)
            raise
        _tell(handler, "record_success")
        return result

    return recorded


def _tell(handler: Any, method: str, *args: Any) -> None:
    """Calls a method that handlers of older versions of torch do not have."""
    told = getattr(handler, method, None)
    if told is not None:
        told(*args)


def _is_child_failed(error: Exception) -> bool:
    from ._failures import ChildFailedError

    theirs = counterpart(ChildFailedError, TORCH_ERRORS)
    return isinstance(error, ChildFailedError) or (theirs is not None and isinstance(error, theirs))


class _Handler:
    """Records in the file that the launcher has named."""

    def initialize(self) -> None:
        try:
            faulthandler.enable(all_threads=True)
        except Exception as error:  # stderr is closed, or no file.
            _warn(f"faulthandler cannot be enabled: {error}", 4)

    def record_exception(self, error: BaseException) -> None:
        now = str(int(time.time()))
        about = {"py_callstack": traceback.format_exc(), "timestamp": now}
        _put({"message": {"message": f"{type(error).__name__}: {_text(error)}", "extraInfo": about}})

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Hands on the file of a process below, with the exit code that it could not know itself."""
        try:
            with open(rootcause_error_file, encoding="utf-8") as file:
                content = json.load(file)
        except (OSError, ValueError) as error:
            _warn(f"{rootcause_error_file} cannot be read: {error}", 4)
            return
        message = content.get("message") if isinstance(content, dict) else None
        if error_code and isinstance(message, dict):
            message["errorCode"] = error_code
        _put(content)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<its text cannot be had>"


def _put(content: Any) -> None:
    path = os.environ.get(ERROR_FILE)
    if not path:
        return
    try:
        _whole_file.put(path, json.dumps(content).encode())
    except OSError as error:
        _warn(f"{ERROR_FILE}={path} cannot be written: {error}", 5)


def _warn(text: str, stacklevel: int) -> None:
    try:
        warnings.warn(text, RuntimeWarning, stacklevel)
    except RuntimeWarning:
        # Warnings are errors here; this one would take the place of what is being recorded.
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(text, RuntimeWarning, stacklevel)
