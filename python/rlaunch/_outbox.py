"""What a rank hands to its parent: its result, or its traceback.

It is written into memory that both share, so that neither side ever waits for the other, whatever
its size; it stays readable when the rank is gone, and a rank that dies half-way has put nothing.
"""

from __future__ import annotations

import os
import select
import struct

from . import _lib
from .errors import NoResultError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Any

RESULT = b"R"
ERROR = b"E"
# By sys.exit(0): neither.
LEFT = b"L"

# What was put, and how long it is; written last.
_HEADER = struct.Struct("=cxxxxxxxQ")


class Outbox:
    """One rank's outbox. Passed to the rank by any start method of multiprocessing."""

    def __init__(self) -> None:
        # None once the rank has ended. Closed with the last reference, so that whoever reads has its own:
        # another thread's join may settle meanwhile.
        self._memory: _lib.Descriptor | None = _lib.Descriptor.memory("rlaunch-outbox")
        self._bell: _lib.Descriptor | None = _lib.Descriptor.bell()
        self._content: tuple[bytes, bytearray] | None = None
        self._ended_fd: Callable[[], int] | None = None

    def __getstate__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd

        return tuple(DupFd(fd.fileno()) for fd in self._ends())

    def __setstate__(self, state: tuple[Any, Any]) -> None:
        self._memory, self._bell = (_lib.Descriptor.take(fd.detach()) for fd in state)
        self._content = None
        self._ended_fd = None

    def _ends(self) -> tuple[_lib.Descriptor, _lib.Descriptor]:
        if self._memory is None or self._bell is None:
            raise ValueError("the rank of this outbox has ended")
        return self._memory, self._bell

    # In the rank.

    def put(self, kind: bytes, write: Callable[[IO[bytes]], object]) -> None:
        """Puts what ``write`` writes to the file it is given. Nothing is put if it raises."""
        memory, bell = self._ends()
        with open(memory.fileno(), "r+b", buffering=1 << 20, closefd=False) as file:
            file.truncate(0)
            file.seek(_HEADER.size)
            write(file)
            file.flush()
            size = file.tell() - _HEADER.size
        os.pwrite(memory.fileno(), _HEADER.pack(kind, size), 0)
        os.eventfd_write(bell.fileno(), 1)

    # In the parent.

    def belongs_to(self, ended_fd: Callable[[], int]) -> None:
        """Names the rank: ``ended_fd()`` is a descriptor that is readable once it has ended."""
        self._ended_fd = ended_fd

    def wait(self) -> None:
        """Waits until something has been put or the rank has ended."""
        bell = self._bell
        if self._content is not None or bell is None or self._ended_fd is None:
            return
        poll = select.poll()
        poll.register(bell.fileno(), select.POLLIN)
        poll.register(self._ended_fd(), select.POLLIN)
        poll.poll()

    def settle(self) -> None:
        """Once the rank has ended: keeps what it has put, without holding a descriptor."""
        self.read()
        self._memory = self._bell = None

    def read(self) -> tuple[bytes, bytearray] | None:
        """What has been put: its kind, and its bytes; else None."""
        memory = self._memory
        if self._content is None and memory is not None:
            header = os.pread(memory.fileno(), _HEADER.size, 0)
            if len(header) == _HEADER.size:
                kind, size = _HEADER.unpack(header)
                if kind in (RESULT, ERROR, LEFT):
                    self._content = kind, self._bytes(memory, size)
        return self._content

    def _bytes(self, memory: _lib.Descriptor, size: int) -> bytearray:
        # Not a mapping of the memory: Python's keeps a descriptor of its own open.
        content = bytearray(size)
        view, done = memoryview(content), 0
        while done < size:
            read = os.preadv(memory.fileno(), [view[done:]], _HEADER.size + done)
            if read == 0:
                raise EOFError(f"a rank's outbox was cut short: {done} of {size} bytes")
            done += read
        return content


class RankQueue:
    """The parent's end of a rank's ``return_queues[i]`` or ``error_queues[i]``: holds one item at most.

    Beside ``multiprocessing.SimpleQueue``, whose ``get`` and ``empty`` it has: ``get`` of a rank that
    put nothing raises instead of blocking for ever.
    """

    def __init__(self, outbox: Outbox, kind: bytes, rank: int) -> None:
        self._outbox = outbox
        self._kind = kind
        self._rank = rank
        self._taken = False

    def _content(self) -> bytearray | None:
        content = self._outbox.read()
        if self._taken or content is None or content[0] != self._kind:
            return None
        return content[1]

    def empty(self) -> bool:
        """Whether ``get`` would have nothing to return now."""
        return self._content() is None

    def get(self) -> Any:
        """Takes the item, waiting for the rank to put it or to end.

        Raises:
            NoResultError: the rank ended without putting anything here, or the item was taken before.
        """
        if not self._taken:
            self._outbox.wait()
        content = self._content()
        if content is None:
            what = "result" if self._kind == RESULT else "traceback"
            why = "was taken before" if self._taken else "is not there: the rank ended without one"
            raise NoResultError(f"the {what} of rank {self._rank} {why}")
        item = _decode(self._kind, content)
        self._taken = True
        return item

    def peek(self) -> Any:
        """The item, left in place; None if there is none."""
        content = self._content()
        return None if content is None else _decode(self._kind, content)

    def result(self) -> Any:
        """What the rank, which has ended, returned, whether or not it was taken; None after ``sys.exit(0)``.

        Raises:
            NoResultError: it ended in another way, as by ``os._exit(0)``.
        """
        content = self._outbox.read()
        if content is not None and content[0] == LEFT:
            return None
        if content is None or content[0] != RESULT:
            raise NoResultError(f"the result of rank {self._rank} is not there: the rank ended without one")
        return _decode(*content)

    def close(self) -> None:
        """Does nothing; here because ``SimpleQueue`` has it."""


def _decode(kind: bytes, content: bytearray) -> Any:
    if kind == ERROR:
        return str(content, "utf-8", "replace")
    import pickle

    return pickle.loads(content)
