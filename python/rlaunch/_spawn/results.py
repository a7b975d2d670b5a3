"""What a rank returns to its parent: the function's return value, or a traceback; and the ids of its forks.

The rank writes it into memory that both processes share. Neither side waits for the other, whatever the size.
It stays readable after the rank has ended. A rank that dies while it writes has put nothing.
"""

from __future__ import annotations

import contextlib
import os
import struct

from .. import _lib
from ..errors import NoResultError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Any

# The kinds of content: a pickled return value, a traceback, or nothing because of sys.exit(0).
RESULT = b"R"
ERROR = b"E"
EXITED = b"X"

# The kind and the length of the content. Written last.
_HEADER = struct.Struct("=cxxxxxxxQ")
# Behind the header is a table of process ids. An id's entry is the id modulo the size of the table, so that
# processes write without a lock. The content follows the table.
_FORKS = struct.Struct("=1020i")
_FORK = struct.Struct("=i")
_START = _HEADER.size + _FORKS.size


class ResultSlot:
    """Shared memory for one rank's result. Can be an argument of a process under every start method."""

    def __init__(self) -> None:
        # None once the rank has ended. Descriptors close with their last reference: a reader keeps its own,
        # because a join in another thread may call `take_content` meanwhile.
        self._memory: _lib.Descriptor | None = _lib.Descriptor.memory("rlaunch-result")
        self._eventfd: _lib.Descriptor | None = _lib.Descriptor.eventfd()
        self._content: tuple[bytes, bytearray] | None = None
        self._get_end_fd: Callable[[], int] | None = None

    def __getstate__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd

        return tuple(DupFd(fd.fileno()) for fd in self._descriptors())

    def __setstate__(self, state: tuple[Any, Any]) -> None:
        self._memory, self._eventfd = (_lib.Descriptor.take(fd.detach()) for fd in state)
        self._content = None
        self._get_end_fd = None

    def _descriptors(self) -> tuple[_lib.Descriptor, _lib.Descriptor]:
        if self._memory is None or self._eventfd is None:
            raise ValueError("the rank of this result slot has ended")
        return self._memory, self._eventfd

    # In the rank.

    def put(self, kind: bytes, write: Callable[[IO[bytes]], object]) -> None:
        """Puts the bytes that ``write`` writes to the file it receives. If ``write`` raises, puts nothing."""
        memory, eventfd = self._descriptors()
        with open(memory.fileno(), "r+b", buffering=1 << 20, closefd=False) as file:
            file.truncate(_START)
            file.seek(_START)
            write(file)
            file.flush()
            size = file.tell() - _START
        os.pwrite(memory.fileno(), _HEADER.pack(kind, size), 0)
        os.eventfd_write(eventfd.fileno(), 1)

    def record_forks(self) -> None:
        """Makes each process that this one forks write its id here, and each that those fork."""
        fd = self._descriptors()[0].fileno()
        identity = os.fstat(fd)

        def record() -> None:
            # The number may be that of another file by now.
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(fd), identity):
                    entry = os.getpid() % (_FORKS.size // _FORK.size)
                    os.pwrite(fd, _FORK.pack(os.getpid()), _HEADER.size + entry * _FORK.size)

        os.register_at_fork(after_in_child=record)

    # In the parent.

    def forks(self) -> list[int]:
        """The ids of processes that the rank has forked: all, or the last of about a thousand."""
        if self._memory is None:
            return []
        table = os.pread(self._memory.fileno(), _FORKS.size, _HEADER.size)
        return [pid for (pid,) in _FORK.iter_unpack(table[: len(table) // _FORK.size * _FORK.size]) if pid]

    def set_rank(self, get_end_fd: Callable[[], int]) -> None:
        """Sets the rank: ``get_end_fd()`` returns a descriptor that is readable once the rank has ended."""
        self._get_end_fd = get_end_fd

    def wait(self) -> None:
        """Waits until the rank has put something, has ended or is given up."""
        eventfd = self._eventfd
        if self._content is not None or eventfd is None or self._get_end_fd is None:
            return
        # Unlike poll.poll(), it also notices a signal that comes just before it sleeps.
        _lib.await_readable([eventfd.fileno(), self._get_end_fd()])

    def take_content(self) -> None:
        """Reads the content of a rank that has ended, and closes the descriptors."""
        self.read()
        self._memory = self._eventfd = None

    def give_up(self) -> None:
        """As ``take_content``, of a rank that SIGKILL has not ended. Ends the waits in other threads."""
        eventfd = self._eventfd
        self.take_content()
        if eventfd is not None:
            os.eventfd_write(eventfd.fileno(), 1)

    def read(self) -> tuple[bytes, bytearray] | None:
        """Returns the kind and the bytes of the content; None if the rank has put nothing."""
        memory = self._memory
        if self._content is None and memory is not None:
            header = os.pread(memory.fileno(), _HEADER.size, 0)
            if len(header) == _HEADER.size:
                kind, size = _HEADER.unpack(header)
                if kind in (RESULT, ERROR, EXITED):
                    self._content = kind, self._read_bytes(memory, size)
        return self._content

    def _read_bytes(self, memory: _lib.Descriptor, size: int) -> bytearray:
        # Not by mmap, which would keep a descriptor of its own open.
        content = bytearray(size)
        view, done = memoryview(content), 0
        while done < size:
            count = os.preadv(memory.fileno(), [view[done:]], _START + done)
            if count == 0:
                raise EOFError(f"the result of a rank is truncated: {done} of {size} bytes")
            done += count
        return content


class RankQueue:
    """The parent's end of ``return_queues[i]`` or ``error_queues[i]``. It holds one item at most.

    It has ``get`` and ``empty`` of ``multiprocessing.SimpleQueue``. Unlike there, ``get`` raises instead of
    blocking forever if the rank has ended without putting anything.
    """

    def __init__(self, slot: ResultSlot, kind: bytes, rank: int) -> None:
        self._slot = slot
        self._kind = kind
        self._rank = rank
        self._taken = False

    def _content(self) -> bytearray | None:
        content = self._slot.read()
        if self._taken or content is None or content[0] != self._kind:
            return None
        return content[1]

    def empty(self) -> bool:
        """Returns whether ``get`` would have nothing to return now."""
        return self._content() is None

    def get(self) -> Any:
        """Takes the item. Waits until the rank puts it or ends.

        Raises:
            NoResultError: the rank ended without putting anything here, or the item was taken before.
        """
        if not self._taken:
            self._slot.wait()
        content = self._content()
        if content is None:
            what = "result" if self._kind == RESULT else "traceback"
            why = "was taken before" if self._taken else "is not there: the rank ended without one"
            raise NoResultError(f"the {what} of rank {self._rank} {why}")
        item = self._decode(self._kind, content)
        self._taken = True
        return item

    def peek(self) -> Any:
        """Returns the item without taking it; None if there is none."""
        content = self._content()
        return None if content is None else self._decode(self._kind, content)

    def result(self) -> Any:
        """Returns the return value of a rank that has ended, taken or not; None after ``sys.exit(0)``.

        Raises:
            NoResultError: the rank ended in another way, as by ``os._exit(0)``.
        """
        content = self._slot.read()
        if content is not None and content[0] == EXITED:
            return None
        if content is None or content[0] != RESULT:
            raise NoResultError(f"the result of rank {self._rank} is not there: the rank ended without one")
        return self._decode(*content)

    def close(self) -> None:
        """Does nothing; exists because ``SimpleQueue`` has it."""

    def _decode(self, kind: bytes, content: bytearray) -> Any:
        if kind == ERROR:
            return str(content, "utf-8", "replace")
        import pickle

        try:
            return pickle.loads(content)
        except Exception as error:
            if hasattr(error, "add_note"):  # Python 3.11.
                error.add_note(f"raised while the return value of rank {self._rank} was unpickled")
            raise
