"""Collects the stacks of running ranks: sends the signal on which faulthandler writes them. Those of ranks
that do not answer are read from outside."""

from __future__ import annotations

import os
import select
import sys
import time
from typing import TYPE_CHECKING

from ..rank.session import STACKS_SIGNAL
from ..rank_server import read_file
from .grouping import cut_after_first

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..rank_server import RankPeer

# Seconds that ranks may take to write their stacks.
_TIMEOUT = 5.0


def collect_stacks(peers: Iterable[RankPeer], interrupted: bool = False) -> dict[int, str]:
    """Returns what faulthandler writes, by rank. Waits up to 5 s.

    A rank that runs but does not write is stopped, stuck in the kernel, or blocks the signal: its stacks are
    read from outside. The text is empty if they cannot be read. A rank that ends without writing is left out.

    Args:
        interrupted: whether the ranks may have received SIGINT or SIGQUIT, at which they write their stacks
            without being asked.
    """
    asked = [(peer, os.fstat(peer.stacks.fileno()).st_size) for peer in peers if peer.is_ready]
    for peer, size in asked:
        if peer.exitcode is None and not (interrupted and size > 0):
            peer.process.send_signal(STACKS_SIGNAL)
    if interrupted:
        asked = [(peer, 0) for peer, _ in asked]
    deadline = time.monotonic() + _TIMEOUT
    growing = {peer.number: _GrowingText() for peer, _ in asked}
    running = {peer.process.sentinel: peer.number for peer, _ in asked}
    poll = select.poll()
    for sentinel in running:
        poll.register(sentinel, select.POLLIN)
    while time.monotonic() < deadline and not all(growing[rank].is_complete() for rank in running.values()):
        # The timeout is short because the growth of a file cannot be polled.
        for sentinel, _ in poll.poll(5):
            poll.unregister(sentinel)
            del running[sentinel]
        for peer, offset in asked:
            growing[peer.number].update(read_file(peer.stacks, offset))
    texts = {
        rank: cut_after_first(growth.text.decode("utf-8", "replace"))
        for rank, growth in growing.items()
        if growth.text or rank in running.values()
    }
    silent = {peer.number: peer.process.pid for peer, _ in asked if texts.get(peer.number) == ""}
    return texts | _read_from_outside([(rank, pid) for rank, pid in silent.items() if pid is not None])


def _read_from_outside(ranks: list[tuple[int, int]]) -> dict[int, str]:
    if not ranks:
        return {}
    from ... import _lib

    try:
        return _lib.stacks_as_faulthandler(ranks, sys.executable)
    except OSError:
        return {}


class _GrowingText:
    """The stacks of one rank while faulthandler writes them."""

    def __init__(self) -> None:
        self.text = b""
        self._unchanged = 0

    def update(self, text: bytes) -> None:
        self._unchanged = self._unchanged + 1 if text == self.text else 0
        self.text = text

    def is_complete(self) -> bool:
        """Returns whether the text ends with the outermost frame that faulthandler writes, or has stopped
        growing for half a second. The main thread comes last.
        """
        ended = self.text.endswith((b" in <module>\n", b" in _run_module_as_main\n", b"\n  ...\n"))
        return bool(self.text) and self._unchanged > (3 if ended else 100)
