"""What runs in a rank of a test: a pytest session of its own, of that one test, that reports to the parent.

The session is made as pytest-xdist makes those of its workers: from the parent's options, rather than from
its command line.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import pickle
import signal
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import check_interactive_exception

from . import _meet_in_time
from ._guardian import KEY
from ._leaks import note_shared_memory
from ._pytest_debugger import Debugger, leave_interrupts
from ._pytest_hub import Link
from ._rank_coverage import Measured
from ._worker import Handed
from .errors import MissingRank

if TYPE_CHECKING:
    import socket
    import warnings
    from collections.abc import Generator

# Asks a rank for the stacks of its threads. A real-time signal that no library is known to use.
STACKS = signal.SIGRTMIN + 7
# A pickled exception that is larger is not sent: what is of interest is its type.
_LARGEST = 1 << 20
# Plugins that would run the test again: the parent's do, with new ranks.
_RERUNNERS = ("rerunfailures", "pytest_rerunfailures", "flaky", "flaky.flaky_pytest_plugin")
_NO_NEWS = "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning"
# Evaluated by the parent alone, over what all ranks have done.
_PARENTS_MARKS = ("skip", "skipif", "xfail")


@dataclass
class Task:
    """What a rank is told. Plain, so that it can be unpickled before anything of the test's is imported.

    Attributes:
        path, names: the test: its file, and the names from there on.
        options: the parent's options that can be sent, each pickled.
        plugins: what ``-p`` named.
        folder, cwd: where pytest was started, and where it is now.
        basetemp: the parent's base of temporary folders; None without pytest's tmpdir plugin.
        worker: what pytest-xdist has told the parent, if that is a worker.
        captured: whether output goes to the files rather than to the terminal.
        colour, width: of the terminal.
        debugs: which rank stops when its test fails, ``_pytest_debugger.ANY``, or None.
        coverage: how the parent is measured, as ``_rank_coverage`` has it.
        values: of fixtures that the parent has set up, pickled, by name.
    """

    path: str
    names: list[str]
    options: dict[str, bytes]
    plugins: list[str]
    folder: str
    cwd: str
    basetemp: str | None
    worker: dict[str, Any]
    captured: bool
    colour: bool
    width: int
    debugs: int | None = None
    coverage: dict[str, Any] | None = None
    values: dict[str, bytes] = field(default_factory=dict)


class Rank:
    """The ``rank`` fixture: who this process is among the ranks of the test.

    Attributes:
        rank: its number.
        world_size: how many there are.
        local_rank: its number on this machine.
    """

    def __init__(self, rank: int, world_size: int, link: Link) -> None:
        self.rank = self.local_rank = rank
        self.world_size = world_size
        self._link = link

    def __index__(self) -> int:
        return self.rank

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.world_size}>"

    def barrier(self) -> None:
        """Waits until all ranks are here.

        Raises:
            rlaunch.errors.MissingRank: one never will be.
        """
        __tracebackhide__ = True
        self._together("barrier", b"")

    def gather(self, obj: Any) -> list[Any]:
        """What each rank gives, by rank; on every rank. It is pickled.

        Raises:
            rlaunch.errors.MissingRank: a rank never comes.
        """
        __tracebackhide__ = True
        return [pickle.loads(payload) for payload in self._together("gather", pickle.dumps(obj))]

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """What rank ``src`` gives; what the others give is not looked at.

        Raises:
            rlaunch.errors.MissingRank: a rank never comes.
            ValueError: there is no such rank.
        """
        __tracebackhide__ = True
        if not 0 <= src < self.world_size:
            raise ValueError(f"src must be a rank, 0 to {self.world_size - 1}, but got {src!r}")
        own = pickle.dumps(obj) if src == self.rank else b""
        return pickle.loads(self._together(f"broadcast from rank {src}", own)[src])

    def _together(self, what: str, payload: bytes) -> list[bytes]:
        __tracebackhide__ = True
        kind, content = self._link.ask("call", (what, payload))
        if kind == "never":
            raise MissingRank(content)
        payloads: list[bytes] = content
        return payloads


def main(sent: bytes, ends: list[socket.socket], files: list[list[Handed]]) -> None:
    """Runs the test that ``sent``, a pickled ``Task``, names. A rank gets all ends, and uses its own."""
    number = int(os.environ[KEY].rpartition("/")[2])
    task: Task = pickle.loads(sent)
    leave_interrupts(task.debugs)
    output, errors, stacks = (file.fileno() for file in files[number])
    # All ranks have this one: who has locked it has the terminal.
    turn = files[0][2].fileno()
    for other, (end, handed) in enumerate(zip(ends, files, strict=True)):
        if other != number:
            end.close()
            for fd in {file.fileno() for file in handed} - {turn}:
                os.close(fd)
    link = Link(ends[number])
    if task.captured:
        _write_to(output, 1, "stdout")
        _write_to(errors, 2, "stderr")
    made = note_shared_memory()
    _meet_in_time.look_in_time()
    faulthandler.enable(stacks, all_threads=True)
    faulthandler.register(STACKS, stacks, all_threads=True, chain=False)
    link.send("ready")
    try:
        with Measured(task.coverage, number):
            RankSession(task, Rank(number, len(ends), link), link, stacks, turn).run()
    except Exception as error:
        link.send("error", _said(error))
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
    link.send("made", made())
    link.send("end")


def _said(error: Exception) -> str:
    if isinstance(error, pytest.UsageError):
        return "\n".join(map(str, error.args))
    return "".join(traceback.format_exception(error))


def _write_to(file: int, number: int, name: str) -> None:
    """Points a standard stream at a file, a line at a time: what a rank has said outlives it."""
    os.dup2(file, number)
    stream = open(number, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


class RankSession:
    """The session, and the plugin by which it reports.

    Attributes:
        rank: the fixture's value.
    """

    def __init__(self, task: Task, rank: Rank, link: Link, stacks: int, turn: int) -> None:
        self._task = task
        self.rank = rank
        self._link = link
        self._stacks = stacks
        self._turn = turn
        self._config: Any = None
        self._debugger: Debugger | None = None
        self._to_look_at: BaseException | None = None
        self._raised: tuple[object, dict[str, Any] | None] = (None, None)

    def run(self) -> None:
        from _pytest.config import Config

        task = self._task
        os.chdir(task.folder)
        options = {}
        for option, value in task.options.items():
            # A class of a conftest that is not imported yet: the option has its default.
            with contextlib.suppress(Exception):
                options[option] = pickle.loads(value)
        # Of the plugins that a rank has imported before its session: the parent warns of its own.
        args = ["-W", _NO_NEWS, *(arg for plugin in task.plugins for arg in ("-p", plugin))]
        config: Any = Config.fromdictargs(options, [*args, "::".join([task.path, *task.names])])
        config.workerinput = task.worker
        config.workeroutput = {}
        os.chdir(task.cwd)
        for name in _RERUNNERS:
            plugin = config.pluginmanager.get_plugin(name)
            if plugin is not None:
                config.pluginmanager.unregister(plugin)
        self._config = config
        config.pluginmanager.register(self, "rlaunch-rank")
        config.hook.pytest_cmdline_main(config=config)

    # Set-up.

    def pytest_plugin_registered(self, plugin: object) -> None:
        if type(plugin).__name__ == "TerminalReporter":
            # The parent reports. It stays, because plugins ask it for colours and widths.
            from _pytest._io import TerminalWriter

            mute = TerminalWriter(io.StringIO())
            mute.hasmarkup, mute.fullwidth = self._task.colour, self._task.width
            plugin._tw = mute  # type: ignore[attr-defined]

    def pytest_sessionstart(self) -> None:
        # pytest has enabled it for its stderr.
        faulthandler.enable(self._stacks, all_threads=True)
        task, cls = self._task, self._config.getoption("usepdb_cls", None)
        self._debugger = Debugger(self.rank.rank, self._link, self._turn, task.debugs, cls)
        if task.basetemp is not None:
            factory = self._config._tmp_path_factory
            factory._basetemp = factory._given_basetemp = Path(task.basetemp)

    # The test.

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            return True
        item = next((item for item in session.items if names_of(item) == self._task.names), None)
        if item is None:
            self._link.send("error", "this rank does not find the test: it is not the same in every process")
            return True
        for node in item.listchain():
            node.own_markers = [mark for mark in node.own_markers if mark.name not in _PARENTS_MARKS]
        self._give(item)
        self._link.send("begun")
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        manager = session.config.pluginmanager
        slow = manager.get_plugin("hypothesispytest")
        if slow is not None and "hypothesis" not in sys.modules:
            # It imports all of hypothesis when a session finishes, which takes longer than all else here.
            manager.unregister(slow)
        return True

    def _give(self, item: Any) -> None:
        """Has fixtures give what they gave to the parent; what they alone need is not set up."""
        for name, sent in self._task.values.items():
            value = pickle.loads(sent)
            known = item._fixtureinfo.name2fixturedefs.get(name)
            # Not among those that the test asks for by its arguments.
            for definition in known or item.session._fixturemanager.getfixturedefs(name, item) or ():
                definition.__dict__.update(func=lambda value=value: value, argnames=())
        if self._task.values:
            item._fixtureinfo.prune_dependency_tree()

    # Reports.

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._link.send("error", report.longreprtext)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self._raised = (report, None if call.excinfo is None else _sendable(call.excinfo.value))
        debugger = self._debugger
        if debugger is not None and check_interactive_exception(call, report) and debugger.takes():
            self._to_look_at = call.excinfo.value if call.excinfo is not None else None
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._config
        data = config.hook.pytest_report_to_serializable(config=config, report=report)
        data["user_properties"] = [(str(name), _plain(value)) for name, value in report.user_properties]
        made, raised = self._raised
        self._link.send("report", (_without_objects(data), raised if made is report else None))
        error, self._to_look_at = self._to_look_at, None
        if error is not None and self._debugger is not None:
            self._debugger.look(report.longreprtext, error)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        if when == "runtest":  # The others are the parent's too.
            category = warning_message.category
            said = {
                "message": str(warning_message.message),
                "category": (category.__module__, category.__qualname__),
                "filename": warning_message.filename,
                "lineno": warning_message.lineno,
            }
            self._link.send("warning", said)

    def pytest_internalerror(self, excrepr: object) -> None:
        self._link.send("error", str(excrepr))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        value: Any = excinfo.value
        by_hand = isinstance(value, pytest.exit.Exception)
        self._link.send("interrupt", (value.msg, value.returncode) if by_hand else None)

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item) -> bool:
        return True  # The parent has the clock.


def names_of(item: pytest.Item) -> list[str]:
    """What a test is called within its file."""
    chain = item.listchain()
    files = [i for i, node in enumerate(chain) if isinstance(node, pytest.File)]
    return [node.name for node in chain[files[-1] + 1 :]]


def _sendable(error: BaseException) -> dict[str, Any]:
    """An exception as the parent can take it: by value if that works, and by the names of its classes."""
    try:
        value: bytes | None = pickle.dumps(error)
    except Exception:
        value = None
    if value is not None and len(value) > _LARGEST:
        value = None
    classes = [(kind.__module__, kind.__qualname__) for kind in type(error).__mro__]
    try:
        text = str(error)
    except Exception:
        text = ""
    return {"value": value, "classes": classes, "text": text}


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _without_objects(data: dict[str, Any]) -> dict[str, Any]:
    """A report without the objects that other plugins have put into it."""
    return {name: value for name, value in data.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, (str, bytes, int, float, bool, type(None)))
