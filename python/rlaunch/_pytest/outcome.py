"""Turns the outcome of a run into what pytest needs: an exception, and the text of the failure."""

from __future__ import annotations

import copy
import io
import pickle
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ..errors import RankError
from .rank_server import RankPeer, describe_exit
from .run import Outcome, Run, describe_death
from .stacks.frames import find_test_frame
from .stacks.grouping import format_ranks, group_stacks

if TYPE_CHECKING:
    from _pytest._code.code import ExceptionChainRepr
    from _pytest._io import TerminalWriter


# In the stack of a rank that waits in an operation of all ranks.
_WAITING = "/rlaunch/_pytest/rank/fixture.py"


class RankFailed(Exception):
    """A rank failed with an exception whose class this process has not imported."""


# --- The exception --------------------------------------------------------------------------------------


def make_exception(item: pytest.Item, run: Run) -> BaseException:
    """Returns the exception to raise, of the rank's own type: ``xfail(raises=...)`` checks it."""
    outcome = run.outcome
    assert outcome is not None
    if outcome.kind == "interrupt":
        return _make_interrupt(outcome.content)
    if outcome.kind in ("timeout", "late"):
        return TimeoutError(_describe_timeout(item, outcome))
    if outcome.kind == "died":
        assert outcome.rank is not None
        text = describe_death(run.peers[outcome.rank], outcome.content)
        return RankError(text, outcome.rank, outcome.content)
    if outcome.kind == "error":
        return pytest.fail.Exception(str(outcome.content), pytrace=False)
    return repeat_exception(outcome.content, outcome.raised)


def repeat_exception(report: dict[str, Any], raised: dict[str, Any] | None) -> BaseException:
    """Returns the exception that a rank has reported: of a phase or a subtest that has not passed."""
    xfailed = report.get("wasxfail")
    if xfailed is not None:
        return pytest.xfail.Exception(str(xfailed))
    if report["outcome"] == "skipped":
        return pytest.skip.Exception(_get_skip_reason(report.get("longrepr")))
    return _decode_exception(raised)


def _make_interrupt(exit_arguments: tuple[str, int | None] | None) -> BaseException:
    return KeyboardInterrupt() if exit_arguments is None else pytest.exit.Exception(*exit_arguments)


def _get_skip_reason(longrepr: Any) -> str:
    text = longrepr[2] if isinstance(longrepr, (list, tuple)) else str(longrepr)
    return str(text).removeprefix("Skipped: ")


def _decode_exception(raised: dict[str, Any] | None) -> BaseException:
    """Returns a rank's exception: unpickled, else of its class or its nearest base class known here."""
    if raised is None:
        return RankFailed("a rank failed")
    try:
        value = _ImportedOnlyUnpickler(io.BytesIO(raised["value"] or b"")).load()
    except Exception:
        value = None
    if isinstance(value, BaseException):
        return value
    for module, name in raised["classes"]:
        if module.startswith("_pytest"):  # Without a call of __init__, pytest's own lack attributes.
            continue
        try:
            cls = _find_imported(module, name)
            value = cls.__new__(cls)
            value.args = (raised["text"],)
        except Exception:
            continue
        if isinstance(value, BaseException):
            return value
    return RankFailed(raised["text"])


def _find_imported(module: str, name: str) -> Any:
    """Returns a class of an imported module: a failed test must not import a framework here."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


class _ImportedOnlyUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _find_imported(module, name)
        except AttributeError as error:
            raise pickle.UnpicklingError(f"{module}.{name} is not imported in this process") from error


# --- The text -------------------------------------------------------------------------------------------


def format_failure(item: pytest.Item, run: Run) -> Any:
    """Returns the ``longrepr`` of the failed test: the culprit's own failure, and a section on all ranks."""
    outcome = run.outcome
    assert outcome is not None
    if outcome.kind == "skipped":
        return load_report(item, outcome.content).longrepr
    if outcome.kind == "failed":
        text = load_report(item, outcome.content).longrepr
    else:
        text = _make_text(item, *_describe(item, run, outcome))
    states = [f"rank {peer.number}: {describe_state(item, run, peer)}" for peer in run.peers]
    return add_ranks(item, text, None if outcome.rank is None else f"rank {outcome.rank}", states)


def format_interrupt(item: pytest.Item, run: Run) -> str:
    """Describes a test whose session the user ends, with the stacks of its ranks."""
    if not run.peers:
        return f"{item.nodeid} was interrupted while its ranks were started"
    is_users = any(outcome.kind == "interrupt" and outcome.rank is None for outcome in run.outcomes)
    raising = [] if is_users else [peer.number for peer in run.peers if peer.has_raised_interrupt]
    why = f": {format_ranks(raising)} raised KeyboardInterrupt" if raising else ""
    return f"{item.nodeid} was interrupted{why}\n\n{_group_stacks(run)}".rstrip()


class InterruptedRanks:
    """Takes the place of the location that pytest prints below ``KeyboardInterrupt``."""

    message = "KeyboardInterrupt"

    def __init__(self, text: str) -> None:
        self._text = text

    def toterminal(self, writer: TerminalWriter) -> None:
        writer.line(self._text)


def _group_stacks(run: Run) -> str:
    return group_stacks(run.stacks, outer=("/_pytest/", "/pluggy/"), inner="/rlaunch/_pytest/")


def add_ranks(item: pytest.Item, longrepr: Any, culprits: str | None, states: list[str]) -> Any:
    """Returns the ``longrepr`` with the culprits in its summary, and with a section on all ranks."""
    if not hasattr(longrepr, "addsection"):
        longrepr = _make_text(item, str(longrepr), get_first_line(str(longrepr)))
    crash = getattr(longrepr, "reprcrash", None)
    if crash is not None and culprits is not None and not crash.message.startswith("rank "):
        crash.message = f"{culprits}: {_tidy(crash.message)}"
    if len(states) > 1 or culprits is None:
        longrepr.addsection("ranks", "\n".join(states), "-")
    return longrepr


def load_report(item: pytest.Item, content: dict[str, Any]) -> Any:
    """Returns the report that a rank has serialized."""
    data = copy.deepcopy(content)  # pytest changes it.
    return item.config.hook.pytest_report_from_serializable(config=item.config, data=data)


def _describe(item: pytest.Item, run: Run, outcome: Outcome) -> tuple[str, str]:
    """Returns the text of an outcome that is no failed phase, and its line for pytest's summary."""
    if outcome.kind in ("timeout", "late"):
        line = _describe_timeout(item, outcome)
        return f"{line}\n\n{_group_stacks(run)}".rstrip(), line
    if outcome.kind == "interrupt":
        return format_interrupt(item, run), "KeyboardInterrupt"
    assert outcome.rank is not None
    if outcome.kind == "died":
        line = describe_death(run.peers[outcome.rank], outcome.content)
        return f"{line}\n\n{run.fatal_error}".rstrip(), line
    text = str(outcome.content)
    line = f"rank {outcome.rank} could not run the test"
    last_line = text.strip().rpartition("\n")[2]
    return f"{line}:\n\n{text}", f"{line}: {last_line.removeprefix('E ').lstrip()}"


def _describe_timeout(item: pytest.Item, outcome: Outcome) -> str:
    if outcome.kind == "late":
        seconds, late = outcome.content
        have = f"{format_ranks(late)} {'has' if len(late) == 1 else 'have'}"
        file = item.nodeid.partition("::")[0]
        return f"{have} not imported {file} after {seconds:g} s (ranks_startup_timeout)"
    return f"timeout: the ranks had not all ended after {outcome.content:g} s"


def _make_text(item: pytest.Item, text: str, message: str) -> ExceptionChainRepr:
    from _pytest._code.code import ExceptionChainRepr, ReprFileLocation, ReprTracebackNative

    path, line, _ = item.location
    crash = ReprFileLocation(path, (line or 0) + 1, message)
    lines = (text.rstrip("\n") + "\n").splitlines(keepends=True)
    return ExceptionChainRepr([(ReprTracebackNative(lines), crash, None)])


def describe_state(item: pytest.Item, run: Run, peer: RankPeer) -> str:
    """Describes the state of a rank when the test was decided."""
    theirs = [outcome for outcome in run.outcomes if outcome.rank == peer.number]
    own = run.outcome if run.outcome in theirs else next(iter(theirs), None)
    if own is not None:
        text = _abbreviate(own)
        return f"{text} (above)" if own is run.outcome else text.replace("failed:", "failed too:", 1)
    if peer.number in run.stopped and peer.is_done:
        return "passed, then stopped while its process exited"
    if peer.number in run.stopped:
        text = "passed, then stopped" if peer.passed > 1 else "stopped"
        place = _find_place(item, run, peer)
        text = f"{text} in {place}" if place is not None else text
        if not peer.has_begun:
            text = f"{text}, before its test began" if place is not None else f"{text} before its test began"
        # It may have begun to wait after its stack was written.
        stack = run.stacks.get(peer.number, "")
        return f"{text} ({peer.waits})" if peer.waits and (not stack or _WAITING in stack) else text
    return "passed" if peer.exitcode == 0 else describe_exit(peer.exitcode)


def _find_place(item: pytest.Item, run: Run, peer: RankPeer) -> str | None:
    """Returns where a rank was when it was stopped; None if it has not answered or its session was over."""
    stack = run.stacks.get(peer.number, "")
    frame = find_test_frame(stack, item.config.rootpath)
    if frame is not None or not stack or peer.is_done:
        return frame
    phase = peer.current_phase()
    return f"pytest's {'set-up' if phase == 'setup' else phase} of the test"


def _abbreviate(outcome: Outcome) -> str:
    if outcome.kind == "died":
        return describe_exit(outcome.content)
    if outcome.kind == "failed":
        return f"failed: {get_first_line(outcome.content.get('longrepr'))}"
    return {"skipped": "skipped", "interrupt": "interrupted"}.get(outcome.kind, "could not run the test")


def get_first_line(longrepr: Any) -> str:
    """Returns the first line of a failed phase's message."""
    crash = longrepr.get("reprcrash") if isinstance(longrepr, dict) else None
    if crash:
        return _tidy(str(crash["message"])).partition("\n")[0]
    # An unknown fixture: `file t.py, line 3`, and the reason behind an E.
    lines = str(longrepr).strip().splitlines()
    return next((line[1:].strip() for line in lines if line.startswith("E ")), lines[0] if lines else "")


def _tidy(message: str) -> str:
    """Returns a message without the module of an error of rlaunch, with text in its first line."""
    return re.sub(r"\A([^\n]*:) *\n\s*", r"\1 ", message.strip().removeprefix("rlaunch.errors."))
