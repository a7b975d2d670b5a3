"""How the ranks of a test and the pytest process speak: frames on a socket each, and who waits for whom.

What a test sends to its ranks passes through as bytes: the hub unpickles none of it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

    from ._process import RankProcess

_LENGTH = struct.Struct("!Q")
_CHUNK = 1 << 20

PHASES = ("setup", "call", "teardown")


def _frame(kind: str, content: Any) -> bytes:
    body = pickle.dumps((kind, content), protocol=5)
    return _LENGTH.pack(len(body)) + body


class Link:
    """A rank's end."""

    def __init__(self, end: socket.socket) -> None:
        import threading

        self._socket = end
        self._sending = threading.Lock()
        self._asking = threading.Lock()

    def send(self, kind: str, content: Any = None) -> None:
        with self._sending:
            self._socket.sendall(_frame(kind, content))

    def ask(self, kind: str, content: Any) -> tuple[str, Any]:
        """Sends, and waits for the answer."""
        with self._asking:
            self.send(kind, content)
            (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
            answer: tuple[str, Any] = pickle.loads(self._exactly(size))
            return answer

    def _exactly(self, size: int) -> bytearray:
        got = bytearray(size)
        view, done = memoryview(got), 0
        while done < size:
            read = self._socket.recv_into(view[done:])
            if read == 0:
                raise EOFError("the pytest process is gone")
            done += read
        return got


class Peer:
    """What the pytest process knows of one rank.

    Attributes:
        number: which.
        ready: whether it can be asked for its stacks.
        begun: whether it has come to its test.
        debugs: whether somebody looks at it in a debugger.
        made: the names of shared memory that it has made and not removed.
        passed: how many of its phases it has gone through without failing.
        reports: of its phases, as they came.
        waits: the operation that it waits in, as people call it; None if in none.
        over: whether it has said that it has nothing more to say.
        exitcode: how it ended; None while it lives.
    """

    def __init__(self, number: int, process: RankProcess, end: socket.socket, files: list[IO[bytes]]) -> None:
        self.number = number
        self.process = process
        self.output, self.errors, self.stacks = files
        # How much of what is in a report already, by name.
        self.shown: dict[str, int] = {}
        self.ready = False
        self.begun = False
        self.debugs = False
        self.made: list[str] = []
        self.passed = 0
        self.reports: list[dict[str, Any]] = []
        self.waits: str | None = None
        self.payload = b""
        self.over = False
        self.exitcode: int | None = None
        self._socket = end
        self._open = True
        self._incoming = bytearray()
        self._outgoing = bytearray()

    def phase(self) -> str:
        """The one that it is in."""
        return PHASES[min(self.passed, 2)]

    def is_gone(self) -> bool:
        return self.over or self.exitcode is not None

    def fileno(self) -> int:
        return self._socket.fileno()

    def wants(self) -> int:
        if not self._open:
            return 0
        return select.POLLIN | (select.POLLOUT if self._outgoing else 0)

    def frames(self) -> list[tuple[str, Any]]:
        """What has come, whole frames of it; does not wait."""
        while self._open:
            try:
                got = self._socket.recv(_CHUNK)
            except BlockingIOError:
                break
            except OSError:
                got = b""
            self._open = bool(got)
            self._incoming += got
        found = []
        while len(self._incoming) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._incoming)
            if len(self._incoming) < _LENGTH.size + size:
                break
            with memoryview(self._incoming) as view, view[_LENGTH.size : _LENGTH.size + size] as body:
                found.append(pickle.loads(body))
            del self._incoming[: _LENGTH.size + size]
        return found

    def answer(self, kind: str, content: Any) -> None:
        self.waits, self.payload = None, b""
        self._outgoing += _frame(kind, content)
        self.flush()

    def flush(self) -> None:
        """Sends what the socket takes now."""
        while self._outgoing and self._open:
            try:
                sent = self._socket.send(self._outgoing[:_CHUNK])
                del self._outgoing[:sent]
            except BlockingIOError:
                return
            except OSError:
                self._outgoing.clear()

    def close(self) -> None:
        for closable in (self._socket, self.output, self.errors, self.stacks, self.process):
            with contextlib.suppress(OSError, ValueError):
                closable.close()


class Hub:
    """Serves the ranks of one test. ``heard`` is called with what concerns the test's outcome.

    Attributes:
        decided: whether that is known: who waits then is not told anything any more, but stopped.
    """

    def __init__(self, peers: list[Peer], heard: Callable[[Peer, str, Any], None]) -> None:
        self.peers = peers
        self.decided = False
        self._heard = heard

    def serve(self, until: Callable[[], bool], deadline: Callable[[], float | None]) -> bool:
        """Serves until something holds; returns whether it does, or the deadline (monotonic) has come."""
        while not until():
            at = deadline()
            left = None if at is None else at - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._turn(left)
        return True

    def drain(self) -> None:
        """Takes in what has come by now."""
        for peer in self.peers:
            self._take(peer)

    def _turn(self, timeout: float | None) -> None:
        poll = select.poll()
        for peer in self.peers:
            if peer.wants():
                poll.register(peer, peer.wants())
            if peer.exitcode is None:
                poll.register(peer.process.sentinel, select.POLLIN)
        # One millisecond more: never before the deadline.
        ready = dict(poll.poll(None if timeout is None else timeout * 1000 + 1))
        for peer in self.peers:
            # Asked before it is read: what it had to say is there by then.
            ended = peer.exitcode is None and peer.process.sentinel in ready
            if peer.wants() and peer.fileno() in ready:
                peer.flush()
            if ended or (peer.wants() and peer.fileno() in ready):
                self._take(peer)
            if ended:
                self._end(peer)

    def _take(self, peer: Peer) -> None:
        for kind, content in peer.frames():
            if kind == "ready":
                peer.ready = True
            elif kind == "call":
                peer.waits, peer.payload = content
                self._settle()
            elif kind == "end":
                peer.over = True
                self._settle()
            else:
                self._heard(peer, kind, content)

    def _end(self, peer: Peer) -> None:
        peer.process.join(5)
        peer.exitcode = peer.process.exitcode
        if peer.exitcode is not None:
            self._heard(peer, "exit", peer.exitcode)
            self._settle()

    def _settle(self) -> None:
        """Answers those who wait, if all have come; or if somebody never will."""
        if self.decided:
            return
        waiting = [peer for peer in self.peers if peer.waits is not None]
        gone = [
            peer for peer in self.peers if peer.waits is None and (peer.over or peer.exitcode is not None)
        ]
        calls = {peer.waits for peer in waiting}
        if gone or len(calls) > 1:
            for peer, why in [(peer, self._why_never(peer, gone)) for peer in waiting]:
                if why:
                    peer.answer("never", why)
        elif len(waiting) == len(self.peers):
            payloads = [peer.payload for peer in self.peers]
            for peer in waiting:
                peer.answer("all", payloads)

    def _why_never(self, peer: Peer, gone: list[Peer]) -> str:
        others = [f"rank {other.number} {_how_gone(other)}" for other in gone]
        others += [
            f"rank {other.number} is in {other.waits}"
            for other in self.peers
            if other.waits not in (None, peer.waits)
        ]
        return f"{peer.waits} can never be complete: {', '.join(others)}"


def _how_gone(peer: Peer) -> str:
    if peer.over and peer.exitcode in (None, 0):
        return "has ended without it"
    return f"has ended ({ending(peer.exitcode)})"


def ending(exitcode: int | None) -> str:
    """How a process ended, for people."""
    import signal

    if exitcode is None:
        return "still there"
    if exitcode >= 0:
        return f"exit code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    said = signal.strsignal(-exitcode)
    return f"killed by {name}" + (f" ({said})" if said else "")


def whole(file: IO[bytes], offset: int = 0) -> bytes:
    """What a file holds from an offset on; where its writer is, is left alone."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), max(0, size - offset), offset)
