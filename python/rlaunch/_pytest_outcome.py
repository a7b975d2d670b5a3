"""What a marked test has come to, as pytest wants it: an exception, and the text of its failure."""

from __future__ import annotations

import io
import pickle
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ._pytest_hub import Peer, ending
from ._pytest_run import End, Run, death
from ._pytest_states import place
from ._stacks import grouped
from .errors import RankError

if TYPE_CHECKING:
    from _pytest._code.code import ExceptionChainRepr


class RankFailed(Exception):
    """A rank failed with an exception whose class this process does not know."""


# --- The exception --------------------------------------------------------------------------------------


def exception(run: Run) -> BaseException:
    """What to raise: of the type that the rank has raised, so that ``xfail(raises=...)`` can tell."""
    end = run.end
    assert end is not None
    if end.kind == "interrupt":
        return _interrupt(end.content)
    if end.kind == "timeout":
        return TimeoutError(_timed_out(end))
    if end.kind == "died":
        assert end.rank is not None
        return RankError(death(run.peers[end.rank], end.content), end.rank, end.content)
    if end.kind == "error":
        return pytest.fail.Exception(str(end.content), pytrace=False)
    xfailed = end.content.get("wasxfail")
    if xfailed is not None:
        return pytest.xfail.Exception(str(xfailed))
    if end.kind == "skipped":
        return pytest.skip.Exception(_reason(end.content.get("longrepr")))
    return _again(end.raised)


def _interrupt(by_hand: tuple[str, int | None] | None) -> BaseException:
    return KeyboardInterrupt() if by_hand is None else pytest.exit.Exception(*by_hand)


def _reason(longrepr: Any) -> str:
    text = longrepr[2] if isinstance(longrepr, (list, tuple)) else str(longrepr)
    return str(text).removeprefix("Skipped: ")


def _again(raised: dict[str, Any] | None) -> BaseException:
    """A rank's exception, by value; else one of its class, or of the nearest above it that is known here."""
    if raised is None:
        return RankFailed("a rank failed")
    try:
        value = _Known(io.BytesIO(raised["value"] or b"")).load()
    except Exception:
        value = None
    if isinstance(value, BaseException):
        return value
    for module, name in raised["classes"]:
        if module.startswith("_pytest"):  # pytest asks its own for what only their __init__ gives them.
            continue
        try:
            made = _known(module, name)
            value = made.__new__(made)
            value.args = (raised["text"],)
        except Exception:
            continue
        if isinstance(value, BaseException):
            return value
    return RankFailed(raised["text"])


def _known(module: str, name: str) -> Any:
    """A class of a module that has been imported here: a failed test imports no framework."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


class _Known(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _known(module, name)
        except AttributeError as error:
            raise pickle.UnpicklingError(f"{module}.{name} is not known here") from error


# --- The text -------------------------------------------------------------------------------------------


def longrepr(item: pytest.Item, run: Run) -> Any:
    """The culprit's own failure, then where the others were."""
    end = run.end
    assert end is not None
    if end.kind == "skipped":
        return _report_of(item, end).longrepr
    if end.kind == "failed":
        text = _report_of(item, end).longrepr
        if not hasattr(text, "addsection"):
            text = _plain(item, str(text), str(text).partition("\n")[0])
    else:
        text = _plain(item, *_said(run, end))
    crash = getattr(text, "reprcrash", None)
    if crash is not None and end.rank is not None and not crash.message.startswith("rank "):
        crash.message = f"rank {end.rank}: {crash.message}"
    if len(run.peers) > 1 or end.rank is None:
        states = [f"rank {peer.number}: {state(item, run, peer)}" for peer in run.peers]
        text.addsection("ranks", "\n".join(states), "-")
    return text


def _report_of(item: pytest.Item, end: End) -> Any:
    data = {**end.content}
    return item.config.hook.pytest_report_from_serializable(config=item.config, data=data)


def _said(run: Run, end: End) -> tuple[str, str]:
    """The text, and its line for the summary, of what was no failed phase of a rank."""
    if end.kind == "timeout":
        runner = ("/_pytest/", "/pluggy/", "/rlaunch/_pytest_rank.py")
        stacks = grouped(run.stacks, outer=runner, inner="/rlaunch/_pytest_")
        return f"{_timed_out(end)}\n\n{stacks}", _timed_out(end)
    assert end.rank is not None
    if end.kind == "died":
        line = death(run.peers[end.rank], end.content)
        fault = run.fault(end.rank) if end.content < 0 else ""
        return f"{line}\n\n{fault}".rstrip(), line
    text = str(end.content)
    line = f"rank {end.rank} could not run the test"
    return f"{line}:\n\n{text}", line + ": " + text.strip().rpartition("\n")[2]


def _timed_out(end: End) -> str:
    return f"timeout: the ranks had not all ended after {end.content:g} s"


def _plain(item: pytest.Item, text: str, message: str) -> ExceptionChainRepr:
    from _pytest._code.code import ExceptionChainRepr, ReprFileLocation, ReprTracebackNative

    path, line, _ = item.location
    crash = ReprFileLocation(path, (line or 0) + 1, message)
    lines = (text.rstrip("\n") + "\n").splitlines(keepends=True)
    return ExceptionChainRepr([(ReprTracebackNative(lines), crash, None)])


def state(item: pytest.Item, run: Run, peer: Peer) -> str:
    """How a rank stood when the test was decided."""
    own = next((end for end in run.ends if end.rank == peer.number), None)
    culprit = run.end is not None and run.end is own
    if own is not None:
        return f"{_in_short(own)} (above)" if culprit else _in_short(own).replace("failed:", "failed too:", 1)
    if peer.number in run.stopped:
        where = place(run.stacks.get(peer.number, ""), item.config.rootpath)
        said = "passed, then stopped" if peer.passed > 1 else "stopped"
        said = f"{said} in {where}" if where is not None else said
        if not peer.begun:
            said = "stopped before its test began"
        return f"{said} ({peer.waits})" if peer.waits else said
    return "passed" if peer.exitcode == 0 else ending(peer.exitcode)


def _in_short(end: End) -> str:
    if end.kind == "died":
        return ending(end.content)
    if end.kind == "failed":
        return f"failed: {_message(end.content.get('longrepr'))}"
    return {"skipped": "skipped", "interrupt": "interrupted"}.get(end.kind, "could not run the test")


def _message(longrepr: Any) -> str:
    """The first line of what a failed phase says."""
    crash = longrepr.get("reprcrash") if isinstance(longrepr, dict) else None
    text = crash["message"] if crash else str(longrepr)
    return str(text).strip().partition("\n")[0]
