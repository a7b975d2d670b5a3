"""The function that a rank calls, and its arguments, on the way to the rank.

They travel in a file of their own, beside what ``multiprocessing`` reads: if they cannot be unpickled, the
rank reports the exception like one of the function.
"""

from __future__ import annotations

import io
import os
import struct

from ... import _lib

TYPE_CHECKING = False  # A rank needs this module; importing typing takes longer.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Any

    from .pickling import Pickler

# Where the same value follows, pickled by value; 0 if it does not.
_HEADER = struct.Struct("=Q")


class Call:
    """A function and its arguments. Can be an argument of a process under every start method.

    Attributes:
        main_error: in a rank, the exception by which its import of the main module failed.
    """

    main_error: BaseException | None = None

    def __init__(self, func: Any, args: Any) -> None:
        self._content = func, args
        self._memory: _lib.Descriptor | None = None
        self._error: BaseException | None = None

    def write(self, pickler: Pickler, main: bool, on_restart: Callable[[], None]) -> None:
        """Pickles it into its file. See ``Pickler.dump``."""
        self._memory = _lib.Descriptor.memory("rlaunch-call")
        with open(self._memory.fileno(), "w+b", buffering=1 << 20, closefd=False) as file:
            dump_call(pickler, self._content, file, main, on_restart)

    def __getstate__(self) -> Any:
        from multiprocessing.reduction import DupFd

        if self._memory is None:
            raise TypeError("a call is pickled only while its rank is started")
        return DupFd(self._memory.fileno())

    def __setstate__(self, state: Any) -> None:
        self._memory, self._error = None, self.main_error
        if self._error is not None:
            os.close(state.detach())
            return
        try:
            with open(state.detach(), "rb", buffering=1 << 20) as file:
                self._content = load_call(file)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._error = error

    def take(self) -> tuple[Any, Any]:
        """Returns the function and its arguments.

        Raises:
            BaseException: what unpickling or the import of the main module has raised.
        """
        if self._error is not None:
            raise self._error
        content = self._content
        del self._content
        return content


def dump_call(
    pickler: Pickler,
    content: tuple[Any, Any],
    file: IO[bytes],
    main: bool,
    on_restart: Callable[[], None] = lambda: None,
) -> None:
    """Pickles a function and its arguments for a rank.

    If a rank may be unable to import what the pickle names, the same value follows, pickled by value.
    """
    file.write(_HEADER.pack(0))
    pickler.dump(content, file, main, on_restart)
    end = file.tell()
    if pickler.dump_again_by_value(content, file):
        file.seek(0)
        file.write(_HEADER.pack(end))
        file.seek(0, io.SEEK_END)


def load_call(file: IO[bytes]) -> Any:
    """Reads what ``dump_call`` has written, by name if this process can import everything, else by value."""
    import pickle

    file.seek(0)
    (by_value,) = _HEADER.unpack(file.read(_HEADER.size))
    try:
        return pickle.load(file)
    except (ImportError, AttributeError) as error:
        if not by_value and "on <module '__mp_main__'" in str(error):
            hint = "define it outside the block of `if __name__ == '__main__':`, which ranks do not run"
            raise AttributeError(f"{error}; {hint}") from None
        if not by_value:
            raise
    file.seek(by_value, os.SEEK_SET)
    return pickle.load(file)
