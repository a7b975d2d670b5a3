"""Serves the ranks of one test: their messages, and operations that wait for all ranks.

The values that a test passes between its ranks are forwarded as bytes, without unpickling.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from .messages import LENGTH, PHASES, encode

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

    from .._spawn.start.rank_process import RankProcess

_CHUNK = 1 << 20
# Milliseconds. Python handles a signal that comes just before poll(2) sleeps only when it has returned.
_LOOK_AROUND = 1000


class RankPeer:
    """One rank, as the pytest process sees it.

    Attributes:
        number: the rank's number.
        process: its process.
        output, errors, stacks: files with its stdout, its stderr and what faulthandler writes.
        shown: bytes or characters of each output that are in a report already.
        is_ready: whether it can write its stacks.
        has_begun: whether it has reached its test.
        is_debugging: whether it has the terminal, for a debugger.
        imports: seconds that it took to import installed modules, by module.
        has_raised_interrupt: whether it has raised KeyboardInterrupt without a signal.
        shared_memory: names of the shared memory that it created and did not remove.
        passed: number of phases that it has passed.
        reports: serialized reports of its phases, in the order of arrival.
        subtests: by phase, serialized reports of subtests that are not logged yet, and their exceptions.
        waits: the operation that it waits in, as users call it; None if there is none.
        payload: the value that it gave to this operation, pickled.
        is_done: whether it has sent its last message.
        exitcode: its exit code, or minus the signal's number; None while it runs.
    """

    def __init__(self, number: int, process: RankProcess, end: socket.socket, files: list[IO[bytes]]) -> None:
        self.number = number
        self.process = process
        self.output, self.errors, self.stacks = files
        self.shown: dict[str, int] = {}
        self.is_ready = False
        self.has_begun = False
        self.is_debugging = False
        self.imports: dict[str, float] = {}
        self.has_raised_interrupt = False
        self.shared_memory: list[str] = []
        self.passed = 0
        self.reports: list[dict[str, Any]] = []
        self.subtests: dict[str, list[tuple[dict[str, Any], dict[str, Any] | None]]] = {}
        self.waits: str | None = None
        self.payload = b""
        self.is_done = False
        self.exitcode: int | None = None
        self._socket = end
        self._is_open = True
        self._incoming = bytearray()
        self._outgoing = bytearray()

    def current_phase(self) -> str:
        """Returns the phase that it is in."""
        return PHASES[min(self.passed, 2)]

    def is_gone(self) -> bool:
        """Returns whether it takes part in no more operations."""
        return self.is_done or self.exitcode is not None

    def fileno(self) -> int:
        return self._socket.fileno()

    def poll_events(self) -> int:
        """Returns the events to poll its socket for; 0 once that is closed."""
        if not self._is_open:
            return 0
        return select.POLLIN | (select.POLLOUT if self._outgoing else 0)

    def receive(self) -> list[tuple[str, Any]]:
        """Returns the complete messages that have arrived. Does not wait."""
        while self._is_open:
            try:
                data = self._socket.recv(_CHUNK)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._is_open = bool(data)
            self._incoming += data
        messages = []
        while len(self._incoming) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._incoming)
            if len(self._incoming) < LENGTH.size + size:
                break
            with memoryview(self._incoming) as view, view[LENGTH.size : LENGTH.size + size] as body:
                messages.append(pickle.loads(body))
            del self._incoming[: LENGTH.size + size]
        return messages

    def reply(self, kind: str, content: Any) -> None:
        """Replies to the operation that it waits in."""
        self.waits, self.payload = None, b""
        self._outgoing += encode(kind, content)
        self.flush()

    def flush(self) -> None:
        """Sends as much as the socket accepts. Does not wait."""
        while self._outgoing and self._is_open:
            try:
                count = self._socket.send(self._outgoing[:_CHUNK])
                del self._outgoing[:count]
            except BlockingIOError:
                return
            except OSError:
                self._outgoing.clear()

    def close(self) -> None:
        for closable in (self._socket, self.output, self.errors, self.stacks, self.process):
            with contextlib.suppress(OSError, ValueError):
                closable.close()


class RankServer:
    """Serves the ranks of one test.

    Attributes:
        is_decided: whether the test's outcome is known. Ranks that wait then get no reply; they are stopped.
    """

    def __init__(self, peers: list[RankPeer], on_message: Callable[[RankPeer, str, Any], None]) -> None:
        """
        Args:
            on_message: called with each message that is not about an operation, and with ``"exit"`` and the
                exit code when a rank has ended.
        """
        self.peers = peers
        self.is_decided = False
        self._on_message = on_message

    def serve(self, until: Callable[[], bool], deadline: Callable[[], float | None]) -> bool:
        """Serves until ``until()`` is true; returns False if the deadline (monotonic time) comes first."""
        while not until():
            limit = deadline()
            left = None if limit is None else limit - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._poll_once(left)
        return True

    def drain(self) -> None:
        """Handles all messages that have arrived."""
        for peer in self.peers:
            self._handle_messages(peer)

    def _poll_once(self, timeout: float | None) -> None:
        poll = select.poll()
        for peer in self.peers:
            if peer.poll_events():
                poll.register(peer, peer.poll_events())
            if peer.exitcode is None:
                poll.register(peer.process.sentinel, select.POLLIN)
        # One millisecond more, so as not to return just before the deadline.
        limit = _LOOK_AROUND if timeout is None else min(timeout * 1000 + 1, _LOOK_AROUND)
        ready = dict(poll.poll(limit))
        for peer in self.peers:
            # Checked before the socket is read: the last messages of a rank that has ended are in it.
            has_ended = peer.exitcode is None and peer.process.sentinel in ready
            if peer.poll_events() and peer.fileno() in ready:
                peer.flush()
            if has_ended or (peer.poll_events() and peer.fileno() in ready):
                self._handle_messages(peer)
            if has_ended:
                self._handle_exit(peer)

    def _handle_messages(self, peer: RankPeer) -> None:
        for kind, content in peer.receive():
            if kind == "ready":
                peer.is_ready = True
            elif kind == "operation":
                peer.waits, peer.payload = content
                self._complete_operations()
            elif kind == "done":
                peer.is_done = True
                self._complete_operations()
            else:
                self._on_message(peer, kind, content)

    def _handle_exit(self, peer: RankPeer) -> None:
        peer.process.join(5)
        peer.exitcode = peer.process.exitcode
        if peer.exitcode is not None:
            self._on_message(peer, "exit", peer.exitcode)
            self._complete_operations()

    def _complete_operations(self) -> None:
        """Replies to the waiting ranks if all wait in the same operation, or if it can never be complete."""
        if self.is_decided:
            return
        waiting = [peer for peer in self.peers if peer.waits is not None]
        gone = [peer for peer in self.peers if peer.waits is None and peer.is_gone()]
        operations = {peer.waits for peer in waiting}
        if gone or len(operations) > 1:
            # All texts first: a reply changes what the next text would say.
            for peer, why in [(peer, self._explain_impossible(peer, gone)) for peer in waiting]:
                peer.reply("impossible", why)
        elif len(waiting) == len(self.peers):
            payloads = [peer.payload for peer in self.peers]
            for peer in waiting:
                peer.reply("complete", payloads)

    def _explain_impossible(self, peer: RankPeer, gone: list[RankPeer]) -> str:
        others = [f"rank {other.number} {_describe_gone(other)}" for other in gone]
        others += [
            f"rank {other.number} is in {other.waits}"
            for other in self.peers
            if other.waits not in (None, peer.waits)
        ]
        return f"{peer.waits} can never be complete: {', '.join(others)}"


def _describe_gone(peer: RankPeer) -> str:
    if peer.is_done and peer.exitcode in (None, 0):
        return "has ended without it"
    return f"has ended ({describe_exit(peer.exitcode)})"


def describe_exit(exitcode: int | None) -> str:
    """Describes how a process ended: ``exit code 3``, ``killed by SIGSEGV (Segmentation fault)``."""
    if exitcode is None:
        return "still running"
    if exitcode >= 0:
        return f"exit code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    description = signal.strsignal(-exitcode)
    return f"killed by {name}" + (f" ({description})" if description else "")


def read_file(file: IO[bytes], offset: int = 0) -> bytes:
    """Returns the content of a file from an offset on, without moving the position of its writer."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), max(0, size - offset), offset)
