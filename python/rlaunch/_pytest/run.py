"""One run of a marked test: starts its ranks, decides its outcome, and ends the ranks."""

from __future__ import annotations

import contextlib
import pickle
import signal
import socket
import tempfile
import time
import warnings
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from .. import _lib
from .._preload.registry import import_limit
from .._process.signal_mask import blocked_signals
from .._spawn.sending.pickling import main_left_out
from .._spawn.spawn import spawn
from .._spawn.worker import InheritedFd
from . import rank_coverage
from .messages import PHASES
from .rank import session
from .rank_server import RankPeer, RankServer, describe_exit, read_file
from .resources.devices import claim_gpus, expose
from .resources.leaks import Leaks
from .stacks.collect import collect_stacks
from .stacks.frames import cut_pytest_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO

    from .._spawn.context import MultiprocessContext
    from .marker import RanksMarker
    from .task import Task

# Seconds between SIGTERM and SIGKILL.
_GRACE_PERIOD = 2.0
# Seconds to wait for the failure of a rank if all failures so far are of ranks that lost their connection.
_LOST_PEER_WAIT = 1.0
# Seconds for ranks that have reached their teardown to complete it, once the test is decided.
_TEARDOWN_PATIENCE = 10.0
# Seconds for the others to reach theirs: they may fail in the same way a moment later.
_REACH_PATIENCE = 0.1
# The same if a teardown has failed, perhaps because of a rank whose test has failed, and reports later.
_TEST_PATIENCE = 2.0
# Bytes at the end of a dead rank's stderr that are searched for a lost connection.
_STDERR_TAIL = 1 << 16


@contextlib.contextmanager
def _unguarded_sockets() -> Iterator[None]:
    """Undoes a replaced ``socket.socket``: pytest-socket forbids tests to open any, and ranks need some."""
    replaced: Any = socket
    found = socket.socket
    replaced.socket = next(kind for kind in found.__mro__ if kind.__module__ == "socket")
    try:
        yield
    finally:
        replaced.socket = found


@dataclass
class Outcome:
    """Why a test ended before all ranks had passed it.

    Attributes:
        kind: ``failed``, ``skipped``, ``died``, ``error``, ``timeout``, ``late`` (a timeout before all ranks
            had imported the test's file) or ``interrupt``.
        when: the phase of the test.
        rank: the rank that caused it; None for ``timeout``, ``late`` and Ctrl-C in this process.
        content: by kind: the serialized report; the exit code; the text of the error; the timeout in
            seconds; that of the startup and the late ranks; the arguments of ``pytest.exit``, None for
            Ctrl-C.
        raised: the exception, as encoded by the rank.
    """

    kind: str
    when: str
    rank: int | None
    content: Any
    raised: dict[str, Any] | None = None


class Run:
    """The ranks of one test.

    Attributes:
        peers: the ranks.
        outcomes: what went wrong, in the order of arrival.
        outcome: the one that decides the test; None as long as nothing went wrong.
        fatal_error: what faulthandler wrote if that is the death of a rank by a signal.
        stacks: stacks of the ranks that were stopped, as text, by rank.
        stopped: the ranks that were stopped.
        failed_subtests: number of subtests that failed and are logged.
        has_quit: whether the user quit the debugger, and with it the session.
        leaks: what the ranks left behind, a line each; known after ``close``. Empty if ranks were stopped.
    """

    def __init__(
        self, on_warning: Callable[[dict[str, Any]], None], startup_timeout: float | None = None
    ) -> None:
        """
        Args:
            startup_timeout: seconds for the ranks to start and import the test's file; None or 0: no limit.
        """
        self.peers: list[RankPeer] = []
        self.outcomes: list[Outcome] = []
        self.outcome: Outcome | None = None
        self.fatal_error = ""
        self.stacks: dict[int, str] = {}
        self.stopped: set[int] = set()
        self.failed_subtests = 0
        self.has_quit = False
        self.leaks: list[str] = []
        # The handler of SIGINT while a debugger has the terminal.
        self._sigint_handler: Any = None
        self._startup_timeout = startup_timeout or None
        self._timeout: float | None = None
        self._leak_check = Leaks()
        # The claimed devices and the folder for coverage.
        self._resources = contextlib.ExitStack()
        self._coverage_folder: str | None = None
        self._deadline: float | None = None
        self._on_warning = on_warning
        self._context: MultiprocessContext | None = None
        self._server = RankServer([], self._handle_message)

    def set_timeout(self, seconds: float | None) -> None:
        """Sets the time for the test, counted from when all ranks have reached it; None or 0: no limit."""
        self._timeout = seconds or None
        if self._have_all_begun():
            self._restart_timer()

    def _have_all_begun(self) -> bool:
        return bool(self.peers) and all(peer.has_begun for peer in self.peers)

    def _restart_timer(self) -> None:
        """Restarts the timer of the startup, or that of the test once all ranks have reached it."""
        allowed = self._timeout if self._have_all_begun() else self._startup_timeout
        self._deadline = None if allowed is None else time.monotonic() + allowed

    @_unguarded_sockets()
    def start(self, marker: RanksMarker, task: Task) -> None:
        """Starts the ranks.

        Raises:
            ValueError, RuntimeError, OSError and others: as ``rlaunch.spawn`` does.
            TooFewDevices, TimeoutError: as ``claim_gpus`` does.
        """
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
            inherited = [[InheritedFd(file.fileno()) for file in three] for three in files]
            task.coverage = self._prepare_coverage()
            options = {"grace_period": _GRACE_PERIOD, **marker.options}
            task.is_forked = options["start_method"] == "fork"
            arguments = (pickle.dumps(task), ends, inherited)
            # A forked rank without a tracker would start its own, which removes what the rank leaves behind.
            # Starting it unblocks SIGINT (CPython 3.11), so it is done here.
            resource_tracker.ensure_running()
            devices = self._resources.enter_context(claim_gpus(marker))
            with (
                warnings.catch_warnings(),
                import_limit(self._startup_timeout, "ranks_startup_timeout"),
                expose(devices) as backend,
                main_left_out(),  # It may be a script that calls pytest.main without a guard.
            ):
                # A test without GPUs runs on the CPU on purpose.
                warnings.filterwarnings("ignore", "Your model will be trained under CPUONLY mode")
                # With a debugger, Ctrl-C must not end ranks that start. A fork server has its own mask.
                holds = task.debug_rank is not None and options["start_method"] in ("spawn", "fork")
                with blocked_signals([signal.SIGINT] if holds else []):
                    context = spawn(session.main, arguments, marker.n, join=False, **options, **backend)
                    # In the block: an interrupt that was held is raised at its end.
                    self._context = context
            # The test's report names the swept processes. Their ports are recorded before the sweep.
            context._report_swept = lambda: None  # type: ignore[method-assign]
            context._before_sweep = self._leak_check.record_ports  # type: ignore[method-assign]
            ours.pop_all()
        rows = zip(context.processes, own, files, strict=True)
        self.peers = [RankPeer(i, process, end, three) for i, (process, end, three) in enumerate(rows)]
        self._server = RankServer(self.peers, self._handle_message)
        self._restart_timer()

    def _prepare_coverage(self) -> dict[str, Any] | None:
        """Returns the settings for the ranks' coverage, if this process is measured."""
        if rank_coverage.read_settings("") is None:
            return None
        folder = tempfile.TemporaryDirectory(prefix="rlaunch-coverage-")
        self._coverage_folder = self._resources.enter_context(folder)
        return rank_coverage.read_settings(self._coverage_folder)

    def run_until(self, phase: str) -> None:
        """Serves until all ranks have passed a phase (the last one: have ended) or the test is decided."""
        if self.outcome is not None and phase == PHASES[-1]:
            self._find_failed_teardown()
        if self.outcome is not None or self._context is None:
            return
        number = PHASES.index(phase) + 1

        def is_reached() -> bool:
            if self._is_debugging():
                return False
            if self._is_skipped():
                # Till they have ended, others may fail. Those that wait for all ranks wait in vain.
                return all(peer.exitcode is not None or peer.waits is not None for peer in self.peers)
            if phase == PHASES[-1]:
                return bool(self.outcomes) or all(peer.exitcode is not None for peer in self.peers)
            return bool(self.outcomes) or all(peer.passed >= number for peer in self.peers)

        try:
            is_in_time = self._server.serve(is_reached, self._get_deadline)
        except KeyboardInterrupt:
            is_in_time = True
            self._add(Outcome("interrupt", phase, None, None))
        if not is_in_time:
            slowest = min((p for p in self.peers if p.exitcode is None), key=lambda peer: peer.passed)
            late = [peer.number for peer in self.peers if not peer.has_begun]
            kind, content = ("late", (self._startup_timeout, late)) if late else ("timeout", self._timeout)
            self._add(Outcome(kind, slowest.current_phase(), None, content))
        if self.outcomes:
            self._decide()
            self._stop()

    def _is_skipped(self) -> bool:
        """Returns whether a rank skipped the test, and nothing worse is known of the test's body."""
        are_worse = any(one.kind != "skipped" and one.when != "teardown" for one in self.outcomes)
        return not are_worse and any(one.kind == "skipped" for one in self.outcomes)

    def _is_debugging(self) -> bool:
        """Returns whether a rank is in the debugger: failures and timeouts then wait."""
        return any(peer.is_debugging and peer.exitcode is None for peer in self.peers)

    def _get_deadline(self) -> float | None:
        return None if self._is_debugging() else self._deadline

    def is_closed(self) -> bool:
        """Returns whether there are no ranks: not yet, or no longer."""
        return self._context is None

    def close(self) -> None:
        """Ends the remaining ranks and releases all resources, even if one of these steps fails."""
        context, self._context = self._context, None
        folder, self._coverage_folder = self._coverage_folder, None
        # Calls its functions in the reverse order, all of them.
        with contextlib.ExitStack() as steps:
            for peer in self.peers:
                steps.callback(peer.close)
            steps.callback(self._resources.close)
            if folder is not None:
                steps.callback(rank_coverage.add_to_parent, folder, len(self.peers))
            steps.callback(self._leave_interrupts_to_rank, False)
            if context is not None:
                context.stop()
                if not self.stopped:
                    created = [name for peer in self.peers for name in peer.shared_memory]
                    pids = [peer.process.pid or 0 for peer in self.peers]
                    removed = context._removed_memory
                    self.leaks = self._leak_check.collect(context._swept, pids, created, removed)

    # Messages of the ranks.

    def _handle_message(self, peer: RankPeer, kind: str, content: Any) -> None:
        if kind == "warning":
            self._on_warning(content)
        elif kind == "begun":
            peer.has_begun = True
            if self._have_all_begun():
                self._restart_timer()
        elif kind == "imports":
            peer.imports = content
        elif kind == "shared_memory":
            peer.shared_memory = content
        elif kind == "debugging":
            peer.is_debugging = content
            self._leave_interrupts_to_rank(content)
            if not content:  # The time in the debugger does not count.
                self._restart_timer()
        elif kind == "raised_interrupt":
            peer.has_raised_interrupt = True
        elif kind == "quit":
            self.has_quit = True
        elif kind == "report":
            self._handle_report(peer, *content)
        elif kind in ("error", "interrupt"):
            self._add(Outcome(kind, peer.current_phase(), peer.number, content))
        elif kind == "exit" and peer.number not in self.stopped:
            self._handle_exit(peer, content)

    def _handle_exit(self, peer: RankPeer, exitcode: int) -> None:
        """Adds the outcome of a rank that has ended without a report of its failure."""
        known = {outcome.kind for outcome in self.outcomes if outcome.rank == peer.number}
        phase = "teardown" if known else peer.current_phase()
        if (exitcode != 0 or not peer.is_done) and known <= {"skipped"}:
            self._add(Outcome("died", phase, peer.number, exitcode))
        elif not known and peer.passed < len(PHASES):
            self._add(Outcome("error", phase, peer.number, f"the rank has ended without a {phase}"))

    def _add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._server.is_decided = True

    def _leave_interrupts_to_rank(self, to_rank: bool) -> None:
        """Ignores Ctrl-C while a rank's debugger has the terminal."""
        if to_rank and self._sigint_handler is None:
            self._sigint_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        elif not to_rank and self._sigint_handler is not None:
            signal.signal(signal.SIGINT, self._sigint_handler)
            self._sigint_handler = None

    def _handle_report(self, peer: RankPeer, report: dict[str, Any], raised: dict[str, Any] | None) -> None:
        outcome = report["outcome"]
        if report.get("$report_type") != "TestReport":
            peer.subtests.setdefault(peer.current_phase(), []).append((report, raised))
            return
        peer.reports.append(report)
        if outcome not in ("passed", "failed", "skipped"):
            return  # A plugin's own, as of a test that it runs again.
        if outcome == "passed":
            # Not the teardown of a test whose failure a plugin keeps back.
            peer.passed += PHASES.index(report["when"]) == peer.passed
        else:
            self._add(Outcome(outcome, report["when"], peer.number, report, raised))

    # The decision.

    def _decide(self) -> None:
        is_skipped = self._is_skipped()
        first = next(one for one in self.outcomes if (one.kind == "skipped") == is_skipped)
        if self._is_lost_connection(first):
            # The failure that caused it usually follows at once.
            limit = time.monotonic() + _LOST_PEER_WAIT
            limit = limit if self._deadline is None else min(limit, self._deadline)
            self._server.serve(lambda: self._find_cause() is not None, lambda: limit)
            first = self._find_cause() or first
        if first.when == "teardown":
            # Another rank whose test has failed may not have reported it yet.
            limit = time.monotonic() + _TEST_PATIENCE
            self._server.serve(self._have_all_reached_teardown, lambda: limit)
            first = next((one for one in self.outcomes if one.when != "teardown"), first)
        first.when = self._adjust_phase(first)
        self._set_outcome(first)

    def _set_outcome(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if outcome.kind == "died" and outcome.rank is not None and outcome.content < 0:
            # The files are closed before the failure of a teardown is described.
            text = read_file(self.peers[outcome.rank].stacks).decode("utf-8", "replace")
            self.fatal_error = cut_pytest_frames(text)

    def _find_failed_teardown(self) -> None:
        """After a skip: a rank that then failed in its teardown, or died after it, decides that phase."""
        assert self.outcome is not None
        failed = [one for one in self.outcomes if one.when == "teardown" and one.kind != "skipped"]
        if self.outcome.kind == "skipped" and self.outcome.when != "teardown" and failed:
            self._set_outcome(failed[0])

    def _find_cause(self) -> Outcome | None:
        """Returns the first failure of a rank that has not just lost a peer."""
        failures = (one for one in self.outcomes if one.kind != "skipped")
        return next((one for one in failures if not self._is_lost_connection(one)), None)

    def _adjust_phase(self, outcome: Outcome) -> str:
        """Returns the phase; ``call`` for a failure in teardown while other ranks are still in that."""
        others = [peer for peer in self.peers if peer.number != outcome.rank]
        if outcome.when == "teardown" and any(peer.passed < 2 for peer in others):
            return "call"
        return outcome.when

    def _is_lost_connection(self, outcome: Outcome) -> bool:
        if outcome.kind == "failed":
            text = _join_messages(outcome.content.get("longrepr"))
        elif outcome.kind == "died" and outcome.rank is not None:
            tail = read_file(self.peers[outcome.rank].errors)[-_STDERR_TAIL:]
            text = tail.decode("utf-8", "replace")
        else:
            return False
        return _lib.lost_peer(text) is not None

    # Stopping.

    def _stop(self) -> None:
        """Collects the stacks of the ranks that run, and stops them."""
        running = [peer for peer in self.peers if peer.exitcode is None]
        if self.outcome is not None and self.outcome.kind == "interrupt":
            self.collect_interrupted_stacks()
        else:
            others = [peer for peer in running if self.outcome is None or self.outcome.rank != peer.number]
            self.stacks.update(collect_stacks(others))
        self._server.drain()
        self.stopped = {peer.number for peer in running}
        if self.outcome is None or self.outcome.kind not in ("interrupt", "timeout", "late"):
            self._complete_teardowns()
        if self._context is not None:
            self._context._have_failed = True
            self._context.stop()
        self._server.drain()

    def _complete_teardowns(self) -> None:
        """Lets ranks that have reached their teardown complete it, and stops the others."""
        limit = time.monotonic() + _REACH_PATIENCE
        self._server.serve(self._have_all_reached_teardown, lambda: limit)
        for peer in self.peers:
            if not self._tears_down(peer) and not peer.is_gone():
                peer.process.terminate()
        limit = time.monotonic() + _TEARDOWN_PATIENCE
        self._server.serve(lambda: not any(map(self._tears_down, self.peers)), lambda: limit)

    def _tears_down(self, peer: RankPeer) -> bool:
        has_reached = peer.passed > PHASES.index("call") or any(o.rank == peer.number for o in self.outcomes)
        # A rank that waits for the others would wait for ever.
        return has_reached and peer.waits is None and not peer.is_gone()

    def _have_all_reached_teardown(self) -> bool:
        """Returns whether all ranks have, but for those that never will."""
        return all(self._tears_down(p) or p.waits is not None or p.is_gone() for p in self.peers)

    def collect_interrupted_stacks(self) -> None:
        """Collects the stacks of all ranks, which may have received the signal too."""
        self.stacks.update(collect_stacks(self.peers, interrupted=True))


def describe_death(peer: RankPeer, exitcode: int) -> str:
    """Describes in one line how a rank died, and when."""
    end = f"was {describe_exit(exitcode)}" if exitcode < 0 else f"has ended with {describe_exit(exitcode)}"
    if peer.is_done:
        when = " after the test"
    elif peer.has_begun:
        when = "" if exitcode < 0 else " in the middle of the test"
    elif peer.is_ready:
        when = " before its test began: while it imported the test file, a conftest.py or a plugin"
    else:
        when = " before its test began"
    return f"rank {peer.number} {end}{when}"


def _join_messages(longrepr: Any) -> str:
    """Returns the messages of a failed phase's exceptions, without source code of the traceback."""
    if not isinstance(longrepr, dict):
        return str(longrepr)
    crashes = [crash for _, crash, _ in longrepr["chain"] or ()] or [longrepr["reprcrash"]]
    return "\n".join(crash["message"] for crash in crashes if crash)
