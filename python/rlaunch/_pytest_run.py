"""One run of a marked test: its ranks from their start to their end, and who failed first."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import tempfile
import time
import warnings
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from . import _lib, _pytest_devices, _pytest_rank, _rank_coverage
from ._leaks import Leaks
from ._pytest_hub import PHASES, Hub, Peer, ending, whole
from ._pytest_states import without_pytest
from ._worker import Handed

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

    from ._pytest_marker import Ranks
    from .context import MultiprocessContext

# Seconds between asking ranks to stop and killing them.
GRACE = 2.0
# How long the rank that made another lose its peer may take to be known, in seconds.
_LOST_PEER = 1.0
# How long ranks may take to write their stacks, in seconds.
_STACKS = 5.0
# How long ranks may take to come to their test, in seconds: they import what it needs.
_BEGINNING = 300.0
# As much of what a dead rank has said as is looked at for a lost peer, in bytes.
_LAST_WORDS = 1 << 16


@dataclass
class End:
    """What ended a test before all ranks had passed it.

    Attributes:
        kind: ``failed``, ``skipped``, ``died``, ``error``, ``timeout`` or ``interrupt``.
        when: the phase of the test.
        rank: whose doing it is; None for a timeout.
        content: the report; the exit code; the text of the error; what interrupted.
        raised: the exception, as a rank has sent it.
    """

    kind: str
    when: str
    rank: int | None
    content: Any
    raised: dict[str, Any] | None = None


class Run:
    """The ranks of one test.

    Attributes:
        peers: what is known of each.
        ends: what went wrong, in the order in which it came.
        end: what decided; None as long as nothing has gone wrong.
        stacks: of the ranks that were stopped, as text, by rank.
        stopped: the ranks that were stopped.
        quit: whether somebody has left the debugger by quitting, and with it the session.
        left: what ranks that have ended of themselves had left behind, a line each; known after ``close``.
    """

    def __init__(self, warned: Callable[[dict[str, Any]], None]) -> None:
        self.peers: list[Peer] = []
        self.ends: list[End] = []
        self.end: End | None = None
        self.stacks: dict[int, str] = {}
        self.stopped: set[int] = set()
        self.quit = False
        self.left: list[str] = []
        self._interrupts: Any = None
        self.timeout: float | None = None
        self._leaks = Leaks()
        # Devices, and the folder of what coverage the ranks have.
        self._held = contextlib.ExitStack()
        self._measured: str | None = None
        self._deadline: float | None = None
        self._warned = warned
        self._context: MultiprocessContext | None = None
        self._hub = Hub([], self._heard)

    def limit(self, seconds: float | None) -> None:
        """How long the test may take, from when all ranks have come to it; None or 0: any time."""
        self.timeout = seconds or None
        begun = bool(self.peers) and all(peer.begun for peer in self.peers)
        allowed = None if self.timeout is None else self.timeout if begun else max(_BEGINNING, self.timeout)
        self._deadline = None if allowed is None else time.monotonic() + allowed

    def start(self, marker: Ranks, task: _pytest_rank.Task) -> None:
        """Starts the ranks.

        Raises:
            ValueError, RuntimeError, OSError and others: as ``rlaunch.spawn`` does.
            NotEnough: there are not so many devices. TimeoutError: others have them.
        """
        from ._popen import signals_held
        from .spawn import spawn

        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            ends: list[socket.socket] = []
            own: list[socket.socket] = []
            files: list[list[IO[bytes]]] = []
            for _ in range(marker.n):
                here, there = socket.socketpair()
                own.append(ours.enter_context(here))
                ends.append(theirs.enter_context(there))
                here.setblocking(False)
                files.append([ours.enter_context(tempfile.TemporaryFile()) for _ in range(3)])
            handed = [[Handed(file.fileno()) for file in three] for three in files]
            task.coverage = self._measure()
            arguments = (pickle.dumps(task), ends, handed)
            options = {"grace": GRACE, **marker.options}
            # Forked ranks that find none have one of their own, which removes what they left; and to start it
            # unblocks SIGINT (CPython 3.11).
            resource_tracker.ensure_running()
            devices = self._held.enter_context(_pytest_devices.claimed(marker))
            with warnings.catch_warnings(), _pytest_devices.seen(devices) as backend:
                # That it is on the CPU is no news for who has marked a test without GPUs.
                warnings.filterwarnings("ignore", "Your model will be trained under CPUONLY mode")
                # Ctrl-C at a prompt spares ranks that start. A server of forks hands on its own mask.
                holds = task.debugs is not None and options["start_method"] in ("spawn", "fork")
                with signals_held([signal.SIGINT] if holds else []):
                    context = spawn(_pytest_rank.main, arguments, marker.n, join=False, **options, **backend)
                    # Before an interrupt that has waited is raised.
                    self._context = context
            # What was swept is told by the test's report; looked at when nobody is left but that.
            context._tell_swept = lambda: None  # type: ignore[method-assign]
            context._before_sweep = self._leaks.look  # type: ignore[method-assign]
            ours.pop_all()
        rows = zip(context.processes, own, files, strict=True)
        self.peers = [Peer(i, process, end, three) for i, (process, end, three) in enumerate(rows)]
        self._hub = Hub(self.peers, self._heard)

    def _measure(self) -> dict[str, Any] | None:
        """Has the ranks measured, if this process is."""
        if _rank_coverage.asked("") is None:
            return None
        self._measured = self._held.enter_context(tempfile.TemporaryDirectory(prefix="rlaunch-coverage-"))
        return _rank_coverage.asked(self._measured)

    def reach(self, phase: str) -> None:
        """Serves the ranks until all have passed a phase (the last: have ended), or the test is decided."""
        if self.end is not None or self._context is None:
            return
        number = PHASES.index(phase) + 1

        def reached() -> bool:
            if self._debugs():
                return False
            if phase == PHASES[-1]:
                return bool(self.ends) or all(peer.exitcode is not None for peer in self.peers)
            return bool(self.ends) or all(peer.passed >= number for peer in self.peers)

        if not self._hub.serve(reached, self._due):
            slowest = min((p for p in self.peers if p.exitcode is None), key=lambda peer: peer.passed)
            self._note(End("timeout", slowest.phase(), None, self.timeout))
        if self.ends:
            self._decide()
            self._stop()

    def _debugs(self) -> bool:
        """Whether somebody looks at a rank in a debugger: nothing else is of interest then."""
        return any(peer.debugs and peer.exitcode is None for peer in self.peers)

    def _due(self) -> float | None:
        return None if self._debugs() else self._deadline

    def close(self) -> None:
        """Ends what is left of the ranks, and gives back all that they needed."""
        context, self._context = self._context, None
        try:
            if context is not None:
                context.stop()
                if not self.stopped:
                    made = [name for peer in self.peers for name in peer.made]
                    pids = [peer.process.pid or 0 for peer in self.peers]
                    self.left = self._leaks.found(context._swept, pids, made)
        finally:
            self._leave_interrupts(False)
            if self._measured is not None:
                _rank_coverage.add(self._measured, len(self.peers))
                self._measured = None
            self._held.close()
            for peer in self.peers:
                peer.close()

    # What the ranks say.

    def _heard(self, peer: Peer, kind: str, content: Any) -> None:
        if kind == "warning":
            self._warned(content)
        elif kind == "begun":
            peer.begun = True
            self.limit(self.timeout)
        elif kind == "made":
            peer.made = content
        elif kind == "debugging":
            peer.debugs = content
            self._leave_interrupts(content)
            if not content:  # Nobody has watched the clock.
                self.limit(self.timeout)
        elif kind == "quit":
            self.quit = True
        elif kind == "report":
            self._take_report(peer, *content)
        elif kind == "error":
            self._note(End("error", peer.phase(), peer.number, content))
        elif kind == "interrupt":
            self._note(End("interrupt", peer.phase(), peer.number, content))
        elif kind == "exit" and peer.number not in self.stopped and (content != 0 or not peer.over):
            known = any(end.rank == peer.number for end in self.ends)
            if not known:
                self._note(End("died", peer.phase(), peer.number, content))

    def _note(self, end: End) -> None:
        self.ends.append(end)
        self._hub.decided = True

    def _leave_interrupts(self, to_rank: bool) -> None:
        """Ctrl-C at a debugger's prompt is the debugger's."""
        if to_rank and self._interrupts is None:
            self._interrupts = signal.signal(signal.SIGINT, signal.SIG_IGN)
        elif not to_rank and self._interrupts is not None:
            signal.signal(signal.SIGINT, self._interrupts)
            self._interrupts = None

    def _take_report(self, peer: Peer, report: dict[str, Any], raised: dict[str, Any] | None) -> None:
        peer.reports.append(report)
        outcome = report["outcome"]
        of_phase = report.get("$report_type") == "TestReport"  # Others are of subtests.
        if outcome == "passed" and of_phase:
            peer.passed = PHASES.index(report["when"]) + 1
        elif outcome == "failed" or (outcome == "skipped" and of_phase):
            self._note(End(outcome, report["when"], peer.number, report, raised))

    # The decision.

    def _decide(self) -> None:
        first = self.ends[0]
        if self._lost_a_peer(first):
            # Whoever made it so is known in a moment.
            limit = time.monotonic() + _LOST_PEER
            limit = limit if self._deadline is None else min(limit, self._deadline)
            self._hub.serve(lambda: not self._lost_a_peer(self.ends[-1]), lambda: limit)
            first = next((end for end in self.ends if not self._lost_a_peer(end)), first)
        if first.kind == "skipped":
            # A failure that is there as well is not to be hidden by it.
            self._hub.drain()
            first = next((end for end in self.ends if end.kind != "skipped"), first)
        first.when = self._phase_of(first)
        self.end = first

    def _phase_of(self, end: End) -> str:
        """A failure of teardown is one of the test itself as long as others are still at that."""
        others = [peer for peer in self.peers if peer.number != end.rank]
        if end.when == "teardown" and any(peer.passed < 2 for peer in others):
            return "call"
        return end.when

    def _lost_a_peer(self, end: End) -> bool:
        if end.kind == "failed":
            text = _messages(end.content.get("longrepr"))
        elif end.kind == "died" and end.rank is not None:
            text = whole(self.peers[end.rank].errors)[-_LAST_WORDS:].decode("utf-8", "replace")
        else:
            return False
        return _lib.lost_peer(text) is not None

    # Stopping.

    def _stop(self) -> None:
        """Stops those who have not ended, once they have said where they are."""
        living = [peer for peer in self.peers if peer.exitcode is None]
        wanted = [peer for peer in living if self.end is not None and self.end.rank != peer.number]
        self._ask_stacks(wanted)
        self._hub.drain()
        self.stopped = {peer.number for peer in living}
        if self._context is not None:
            self._context.stop()
        self._hub.drain()

    def _ask_stacks(self, peers: list[Peer]) -> None:
        asked = [(peer, os.fstat(peer.stacks.fileno()).st_size) for peer in peers if peer.ready]
        for peer, _ in asked:
            peer.process._popen._send_signal(_pytest_rank.STACKS)
        deadline = time.monotonic() + _STACKS
        seen = {peer.number: _Growth() for peer, _ in asked}
        # Who ends meanwhile is not waited for.
        living = {peer.process.sentinel: peer.number for peer, _ in asked}
        poll = select.poll()
        for sentinel in living:
            poll.register(sentinel, select.POLLIN)
        while time.monotonic() < deadline and not all(seen[i].is_over() for i in living.values()):
            # Nothing tells of the file's growth.
            for sentinel, _ in poll.poll(5):
                poll.unregister(sentinel)
                del living[sentinel]
            for peer, before in asked:
                seen[peer.number].look(whole(peer.stacks, before))
        for number, growth in seen.items():
            # One that lives and wrote nothing is told of too: it is stopped, or stuck in the kernel.
            if growth.text or number in living.values():
                self.stacks[number] = growth.text.decode("utf-8", "replace")

    # What people read.

    def fault(self, rank: int) -> str:
        """What faulthandler has written of a rank's death."""
        return without_pytest(whole(self.peers[rank].stacks).decode("utf-8", "replace"))


class _Growth:
    """Stacks that are being written, looked at again and again."""

    def __init__(self) -> None:
        self.text = b""
        self._unchanged = 0

    def look(self, text: bytes) -> None:
        self._unchanged = self._unchanged + 1 if text == self.text else 0
        self.text = text

    def is_over(self) -> bool:
        """Whether they are whole: the main thread's comes last, to its outermost frame or as far as
        faulthandler goes; or nothing has come for half a second.
        """
        ended = self.text.endswith((b" in <module>\n", b" in _run_module_as_main\n", b"\n  ...\n"))
        return bool(self.text) and self._unchanged > (3 if ended else 100)


def death(peer: Peer, exitcode: int) -> str:
    """How a rank died, in a line."""
    if exitcode < 0:
        when = " when its test was over" if peer.over else "" if peer.ready else " before its test began"
        return f"rank {peer.number} was {ending(exitcode)}{when}"
    when = "after" if peer.over else "in the middle of" if peer.ready else "before"
    return f"rank {peer.number} has ended with {ending(exitcode)} {when} the test"


def _messages(longrepr: Any) -> str:
    """What the exceptions of a failed phase say, without the source that a traceback shows."""
    if not isinstance(longrepr, dict):
        return str(longrepr)
    crashes = [crash for _, crash, _ in longrepr["chain"] or ()] or [longrepr["reprcrash"]]
    return "\n".join(crash["message"] for crash in crashes if crash)
