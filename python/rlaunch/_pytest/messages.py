"""Messages between the ranks of a test and the pytest process: pickled pairs, framed by their length."""

from __future__ import annotations

import pickle
import struct
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

LENGTH = struct.Struct("!Q")

# The phases of a test, in their order.
PHASES = ("setup", "call", "teardown")

# What describes a subtest in its serialized report, of pytest and of pytest-subtests.
SUBTEST = "_subtest.context"


def encode(kind: str, content: Any) -> bytes:
    """Returns the frame of a message."""
    body = pickle.dumps((kind, content), protocol=5)
    return LENGTH.pack(len(body)) + body


class Link:
    """A rank's end of the connection."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._send_lock = threading.Lock()
        self._request_lock = threading.Lock()

    def send(self, kind: str, content: Any = None) -> None:
        """Sends a message."""
        with self._send_lock:
            self._socket.sendall(encode(kind, content))

    def request(self, kind: str, content: Any) -> tuple[str, Any]:
        """Sends a message and waits for the reply.

        Raises:
            EOFError: the pytest process has ended.
        """
        with self._request_lock:
            self.send(kind, content)
            (size,) = LENGTH.unpack(self._receive(LENGTH.size))
            reply: tuple[str, Any] = pickle.loads(self._receive(size))
            return reply

    def _receive(self, size: int) -> bytearray:
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            count = self._socket.recv_into(view[done:])
            if count == 0:
                raise EOFError("the pytest process has ended")
            done += count
        return data
