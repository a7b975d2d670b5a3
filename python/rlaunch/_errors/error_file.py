"""``rlaunch.errors.record``: writes a rank's exception to its error file, which the launcher reads."""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any

from .atomic_file import write_atomically
from .torch_classes import TORCH_ERRORS, counterpart

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

# The variable with the path of the error file; the launcher sets it. torchrun's name.
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


def record(fn: Callable[P, R], error_handler: Any = None) -> Callable[P, R | None]:
    """Decorates the main function of a script: writes its exception to the error file, and raises it.

    Contract: torch 2.15's ``torch.distributed.elastic.multiprocessing.errors.record``. Each of the two reads
    the other's files. TORCHELASTIC_ERROR_FILE names the file; without that variable none is written. The file
    holds one JSON object: type and text of the exception, its traceback, and the time. It is written
    atomically, with mode 0600. If it cannot be written, ``record`` warns (RuntimeWarning) and does not raise.

    ``sys.exit(0)`` makes the function return None. Any other ``SystemExit``, and ``KeyboardInterrupt``, pass
    through without a record. For a ``ChildFailedError`` the file is a copy of its root cause's error file.
    faulthandler is enabled.

    Args:
        fn: the function.
        error_handler: records instead; an object with the methods of torch's ``ErrorHandler``.
    """
    handler = _ErrorHandler() if error_handler is None else error_handler

    @functools.wraps(fn)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> R | None:
        _call_if_present(handler, "set_entrypoint_fn_name", getattr(fn, "__qualname__", None))
        handler.initialize()
        try:
            result = fn(*args, **kwargs)
        except SystemExit as error:
            if error.code == 0:
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
        _call_if_present(handler, "record_success")
        return result

    return recorded


def _call_if_present(handler: Any, name: str, *args: Any) -> None:
    """Calls a method that handlers of older versions of torch do not have."""
    method = getattr(handler, name, None)
    if method is not None:
        method(*args)


def _is_child_failed(error: Exception) -> bool:
    from .failures import ChildFailedError

    theirs = counterpart(ChildFailedError, TORCH_ERRORS)
    return isinstance(error, ChildFailedError) or (theirs is not None and isinstance(error, theirs))


class _ErrorHandler:
    """Records in the error file."""

    def initialize(self) -> None:
        try:
            faulthandler.enable(all_threads=True)
        except Exception as error:  # stderr is closed or has no descriptor.
            _warn(f"faulthandler cannot be enabled: {error}", 4)

    def record_exception(self, error: BaseException) -> None:
        now = str(int(time.time()))
        extra = {"py_callstack": traceback.format_exc(), "timestamp": now}
        text = f"{type(error).__name__}: {_get_text(error)}"
        _write_error_file({"message": {"message": text, "extraInfo": extra}})

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Copies the error file of a child process, and adds the child's exit code."""
        try:
            with open(rootcause_error_file, encoding="utf-8") as file:
                content = json.load(file)
        except (OSError, ValueError) as error:
            _warn(f"{rootcause_error_file} cannot be read: {error}", 4)
            return
        message = content.get("message") if isinstance(content, dict) else None
        if error_code and isinstance(message, dict):
            message["errorCode"] = error_code
        _write_error_file(content)


def _get_text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<its __str__ failed>"


def _write_error_file(content: Any) -> None:
    path = os.environ.get(ERROR_FILE)
    if not path:
        return
    try:
        write_atomically(path, json.dumps(content).encode())
    except OSError as error:
        _warn(f"{ERROR_FILE}={path} cannot be written: {error}", 5)


def _warn(text: str, stacklevel: int) -> None:
    try:
        warnings.warn(text, RuntimeWarning, stacklevel)
    except RuntimeWarning:
        # The program turns warnings into errors, and this one would replace the exception being recorded.
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(text, RuntimeWarning, stacklevel)
