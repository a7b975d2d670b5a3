"""The program of a rank of a test: a pytest session of that one test, which reports to the pytest process.

The session is created like that of a pytest-xdist worker: from the parent's options instead of its command
line.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.config import ConftestImportFailure
from _pytest.runner import check_interactive_exception

from ..._process.guardian import KEY
from ..._spawn.worker import InheritedFd
from ..messages import SUBTEST, Link
from ..rank_coverage import RankCoverage
from ..resources.leaks import record_shared_memory
from ..task import is_conftest, list_node_names
from .debugger import Debugger, ignore_interrupts
from .fixture import Rank
from .import_clock import ImportClock
from .parameters import set_parameters
from .workerinput import configure_without_workers, unpickle_workerinput

if TYPE_CHECKING:
    import socket
    import types
    import warnings
    from collections.abc import Generator

    from ..task import Task

# A rank that receives it writes the stacks of its threads.
# A real-time signal that no library is known to use.
STACKS_SIGNAL = signal.SIGRTMIN + 7
# Bytes. A larger pickled exception is not sent: the parent needs only its type.
_MAX_EXCEPTION_SIZE = 1 << 20
# Plugins that the parent alone needs: it draws on the terminal.
_PARENT_PLUGINS = ("sugar", "pytest_sugar")
# Ranks import plugins before their session starts. The parent warns of its own.
_IGNORE_REWRITE_WARNING = (
    "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning"
)
# Only the parent evaluates these, over the outcome of all ranks. Plugins that run a test again read `flaky`.
_PARENT_MARKS = ("skip", "skipif", "xfail", "flaky")


def main(pickled_task: bytes, ends: list[socket.socket], files: list[list[InheritedFd]]) -> None:
    """Runs the test of a pickled ``Task``.

    Args:
        ends: the ranks' ends of their connections. Each rank receives all of them and uses its own.
        files: each rank's files for stdout, stderr and stacks.
    """
    number = int(os.environ[KEY].rpartition("/")[2])
    task: Task = pickle.loads(pickled_task)
    # As in any pytest process, until the suite sets it. multiprocessing has set it to the rank's own.
    multiprocessing.set_start_method(None, force=True)
    ignore_interrupts(task.debug_rank)
    output, errors, stacks = (file.fileno() for file in files[number])
    # Every rank keeps this file; its lock is the right to use the terminal.
    terminal_lock = files[0][2].fileno()
    for other, (end, inherited) in enumerate(zip(ends, files, strict=True)):
        if other != number:
            end.close()
            for fd in {file.fileno() for file in inherited} - {terminal_lock}:
                os.close(fd)
    link = Link(ends[number])
    if task.captures:
        _redirect(output, 1, "stdout")
        _redirect(errors, 2, "stderr")
    list_shared_memory = record_shared_memory()
    faulthandler.enable(stacks, all_threads=True)
    faulthandler.register(STACKS_SIGNAL, stacks, all_threads=True, chain=False)
    _write_stacks_on_interrupts(stacks)
    link.send("ready")
    clock = ImportClock()
    clock.install()
    try:
        with RankCoverage(task.coverage, number) as coverage:
            RankSession(task, Rank(number, len(ends), link), link, stacks, terminal_lock, coverage).run()
    except Exception as error:
        link.send("error", _format_error(error))
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
    link.send("imports", clock.seconds)
    link.send("shared_memory", list_shared_memory())
    link.send("done")


def _write_stacks_on_interrupts(file: int) -> None:
    """Has this rank write its stacks on SIGINT and SIGQUIT, which then have their usual effect.

    The terminal sends them to the ranks too. When the parent asks for stacks, it may be too late.
    """
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) == usual:
            faulthandler.register(number, file, all_threads=True, chain=True)
            # A child that the rank forks must not write into the rank's file.
            os.register_at_fork(after_in_child=functools.partial(_forget_stacks, number, usual))


def _forget_stacks(number: int, usual: Any) -> None:
    # A handler that the test has set meanwhile stays.
    if signal.getsignal(number) == usual:
        faulthandler.unregister(number)


def _format_error(error: Exception) -> str:
    if isinstance(error, pytest.UsageError):
        return "\n".join(map(str, error.args))
    if isinstance(error, ConftestImportFailure) and error.__cause__ is not None:
        # As pytest's main() prints it.
        text = _format_import(pytest.ExceptionInfo.from_exception(error.__cause__))
        return f"ImportError while loading conftest '{error.path}'.\n{text}"
    return "".join(traceback.format_exception(error))


def _format_import(info: pytest.ExceptionInfo[BaseException]) -> str:
    """Returns a short traceback of an exception that left an import."""
    info.traceback = info.traceback.filter(lambda entry: not _is_of_import(str(entry.path)))
    return str(info.getrepr(style="short", chain=False)) if info.traceback else info.exconly()


def _is_of_import(path: str) -> bool:
    """Returns whether a file belongs to pytest, this module or importlib, which import the user's file."""
    return (
        path.startswith("<")
        or path == __file__
        or not {"_pytest", "pluggy", "importlib"}.isdisjoint(Path(path).parts)
    )


def _redirect(file: int, number: int, name: str) -> None:
    """Points a standard stream at a file, line-buffered, so that the output outlives the rank."""
    os.dup2(file, number)
    stream = open(number, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


class RankSession:
    """The session, and the plugin that sends its reports.

    Attributes:
        rank: the value of the ``rank`` fixture.
    """

    def __init__(
        self,
        task: Task,
        rank: Rank,
        link: Link,
        stacks: int,
        terminal_lock: int,
        coverage: RankCoverage,
    ) -> None:
        self._task = task
        self.rank = rank
        self._link = link
        self._stacks = stacks
        self._terminal_lock = terminal_lock
        self._coverage = coverage
        self._config: Any = None
        self._debugger: Debugger | None = None
        self._is_collecting = False
        # The exception for the debugger, once its report is sent.
        self._to_debug: BaseException | None = None
        # What left the last phase that was not passed.
        self._raised: BaseException | None = None
        # Of the last phase that failed: its report until that is sent, and its exception.
        self._failure: tuple[pytest.TestReport | None, BaseException] | None = None
        # Of the last report of each phase: its outcome when it was made, and its exception, encoded.
        self._made: dict[str, tuple[str, dict[str, Any] | None]] = {}

    def run(self) -> None:
        """Runs the session."""
        from _pytest.config import Config

        task = self._task
        os.chdir(task.folder)
        options = {}
        for name, value in task.options.items():
            # Its class may be one of a conftest that is not imported yet: the option has its default.
            with contextlib.suppress(Exception):
                options[name] = pickle.loads(value)
        args = ["-W", _IGNORE_REWRITE_WARNING, *(arg for plugin in task.plugins for arg in ("-p", plugin))]
        config: Any = Config.fromdictargs(options, [*args, "::".join([task.path, *task.names])])
        config.workerinput = unpickle_workerinput(task.worker)
        config.workeroutput = {}
        configure_without_workers(config)
        os.chdir(task.cwd)
        unwanted = list(_PARENT_PLUGINS)
        if task.is_forked:
            # The timer of faulthandler_timeout is a thread, for whose end a fork would wait forever.
            unwanted.append("faulthandler")
        for name in unwanted:
            plugin = config.pluginmanager.get_plugin(name)
            if plugin is not None:
                config.pluginmanager.unregister(plugin)
        self._config = config
        config.pluginmanager.register(self, "rlaunch-rank")
        config.hook.pytest_cmdline_main(config=config)

    # Set-up.

    def pytest_plugin_registered(self, plugin: object) -> None:
        if type(plugin).__name__ == "TerminalReporter":
            # The parent reports. The plugin stays, because other plugins read colours and widths from it.
            from _pytest._io import TerminalWriter

            writer = TerminalWriter(io.StringIO())
            writer.hasmarkup, writer.fullwidth = self._task.has_colour, self._task.width
            plugin._tw = writer  # type: ignore[attr-defined]

    def pytest_sessionstart(self) -> None:
        # Again: pytest has enabled it for its own stderr.
        faulthandler.enable(self._stacks, all_threads=True)
        task, cls = self._task, self._config.getoption("usepdb_cls", None)
        place = (self.rank.rank, self._link, self._terminal_lock)
        self._debugger = Debugger(*place, task.debug_rank, cls, task.worker_id)
        if task.basetemp is not None:
            factory = self._config._tmp_path_factory
            factory._basetemp = factory._given_basetemp = Path(task.basetemp)

    # The test.

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        self._is_collecting = True
        try:
            result = yield
        except pytest.UsageError as error:
            if not str(error).startswith("not found: "):
                raise
            raise self._make_missing_test_error() from None
        self._is_collecting = False
        return result

    def _make_missing_test_error(self) -> pytest.UsageError:
        return pytest.UsageError(
            f"this rank has no {'::'.join(self._task.names)}: the test's name or parameters differ between "
            "processes (a set, a time, a random number). Use values that are the same in every process, "
            "such as sorted(...), or set ids=."
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            return True
        item = next((item for item in session.items if list_node_names(item) == self._task.names), None)
        if item is None:
            raise self._make_missing_test_error()
        for node in item.listchain():
            node.own_markers = [mark for mark in node.own_markers if mark.name not in _PARENT_MARKS]
        set_parameters(item, self._task.parameters)
        self._set_fixture_values(item)
        self._link.send("begun")
        self._get_protocol()(item=item, nextitem=None)
        manager = session.config.pluginmanager
        hypothesis_plugin = manager.get_plugin("hypothesispytest")
        if hypothesis_plugin is not None and "hypothesis" not in sys.modules:
            # When a session finishes, it imports hypothesis, which takes longer than the rest of the session.
            manager.unregister(hypothesis_plugin)
        return True

    def _get_protocol(self) -> Any:
        """Returns the hook that runs a test, without plugins that run it in ways of their own, as again."""
        manager = self._config.pluginmanager
        implementations = self._config.hook.pytest_runtest_protocol.get_hookimpls()
        theirs = [
            one.plugin
            for one in implementations
            if not (one.hookwrapper or one.wrapper or is_conftest(one.plugin))
            and one.function.__module__.partition(".")[0] != "_pytest"
        ]
        return manager.subset_hook_caller("pytest_runtest_protocol", theirs)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        return (yield from self._run_once())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        return (yield from self._run_once())

    def _run_once(self) -> Generator[None, object, object]:
        """Fails a test that a plugin runs again in this rank alone. The parent does that, with new ranks."""
        if self._failure is not None:
            report, error = self._failure
            if report is not None:  # The plugin has kept it back.
                self.pytest_runtest_logreport(report)
            raise error
        try:
            return (yield)
        except BaseException as error:
            self._raised = error
            raise

    def _set_fixture_values(self, item: Any) -> None:
        """Replaces fixtures by the parent's values. Fixtures that only they request are not set up."""
        for name, pickled in self._task.values.items():
            value = pickle.loads(pickled)
            known = item._fixtureinfo.name2fixturedefs.get(name)
            # The test may request it by other means than its arguments.
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
        raised = None if call.excinfo is None else _encode_exception(call.excinfo.value)
        if report.failed and call.excinfo is not None and call.excinfo.value is self._raised:
            self._failure = (report, call.excinfo.value)
        self._made[call.when] = (report.outcome, raised)
        debugger = self._debugger
        if debugger is not None and check_interactive_exception(call, report) and debugger.try_to_enter():
            self._to_debug = call.excinfo.value if call.excinfo is not None else None
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._config
        data = config.hook.pytest_report_to_serializable(config=config, report=report)
        data["user_properties"] = [(str(name), _make_plain(value)) for name, value in report.user_properties]
        if SUBTEST in data:  # pytest-subtests sends any object.
            arguments = data[SUBTEST]["kwargs"]
            data[SUBTEST]["kwargs"] = {name: _make_plain(value) for name, value in arguments.items()}
        made_outcome, raised = self._made.get(report.when or "", ("", None))
        if report.outcome == "failed" and made_outcome == "passed":
            # pytest 9 fails it when it is shown, for its failed subtests. The parent does, for all ranks.
            data.update(outcome="passed", longrepr=None, contains_failed_subtests=True)
        if report.outcome != "passed":
            self._coverage.save()
        self._link.send("report", (_remove_objects(data), raised))
        if self._failure is not None and self._failure[0] is report:
            self._failure = (None, self._failure[1])
        error, self._to_debug = self._to_debug, None
        if error is not None and self._debugger is not None:
            self._debugger.post_mortem(report.longreprtext, error)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        if when == "runtest":  # The parent has recorded the others itself.
            category = warning_message.category
            warning = {
                "message": str(warning_message.message),
                "category": (category.__module__, category.__qualname__),
                "filename": warning_message.filename,
                "lineno": warning_message.lineno,
            }
            self._link.send("warning", warning)

    def pytest_internalerror(self, excrepr: object, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        if self._is_collecting and isinstance(excinfo.value, SystemExit):
            what = "sys.exit() was called while this rank imported the test file or a conftest.py."
            text = f"{what}\n{_format_import(excinfo)}"
        else:
            text = str(excrepr)
        self._link.send("error", text)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        value: Any = excinfo.value
        is_exit = isinstance(value, pytest.exit.Exception)
        # At a signal, faulthandler has written the stacks.
        if not is_exit and os.fstat(self._stacks).st_size == 0:
            _write_stack_of_exception(self._stacks, excinfo.tb)
            self._link.send("raised_interrupt")
        self._link.send("interrupt", (value.msg, value.returncode) if is_exit else None)

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item) -> bool:
        return True  # Handled: the parent has the timer.


def _write_stack_of_exception(file: int, trace: types.TracebackType) -> None:
    """Writes the stack with which an exception was raised, in faulthandler's format."""
    frames = [*reversed(list(traceback.walk_tb(trace))), *traceback.walk_stack(trace.tb_frame.f_back)]
    lines = [f"Current thread 0x{threading.get_ident():016x} (most recent call first):"]
    for frame, line in frames:
        lines.append(f'  File "{frame.f_code.co_filename}", line {line} in {frame.f_code.co_name}')
    os.write(file, ("\n".join(lines) + "\n").encode("ascii", "backslashreplace"))


def _encode_exception(error: BaseException) -> dict[str, Any]:
    """Returns the exception for the parent: pickled if that works, the names of its classes, its text."""
    try:
        value: bytes | None = pickle.dumps(error)
    except Exception:
        value = None
    if value is not None and len(value) > _MAX_EXCEPTION_SIZE:
        value = None
    classes = [(kind.__module__, kind.__qualname__) for kind in type(error).__mro__]
    try:
        text = str(error)
    except Exception:
        text = ""
    return {"value": value, "classes": classes, "text": text}


def _make_plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _remove_objects(data: dict[str, Any]) -> dict[str, Any]:
    """Returns a report without the objects that other plugins have added to it."""
    return {name: value for name, value in data.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, (str, bytes, int, float, bool, type(None)))
