"""pytest's hooks around marked tests, in the pytest process.

pytest's own protocol runs. Each phase of it lasts until all ranks have passed theirs.
"""

from __future__ import annotations

import functools
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from _pytest import tmpdir

from . import import_times, outcome, preload_modules, subtests
from .marker import MarkerError, RanksMarker, read_marker
from .rank_server import read_file
from .resources.device_locks import TooFewDevices
from .run import Outcome, Run
from .stacks.at_quit import stacks_at_quit
from .stacks.grouping import format_ranks
from .task_builder import build_task

if TYPE_CHECKING:
    from collections.abc import Generator

_DEFAULT_TIMEOUT = 300.0
_DEFAULT_STARTUP_TIMEOUT = 120.0

# The checked marker, or its error.
_marker = pytest.StashKey["RanksMarker | MarkerError"]()
_run = pytest.StashKey[Run]()
_raised = pytest.StashKey[BaseException]()
# The test that is running on ranks.
_current = pytest.StashKey[pytest.Item]()
# The timeout of pytest-timeout, in seconds.
_timeout = pytest.StashKey[float]()
# The modules that the zygote imports, by the value of `preload`.
_preloads = pytest.StashKey["dict[str, str]"]()


def run_on_ranks(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Has these marked tests run on ranks."""
    for item in items:
        try:
            marker = _read_marker(item)
        except MarkerError as error:
            item.stash[_marker] = error
            item.fixturenames = []  # type: ignore[attr-defined]
            continue
        item.stash[_marker] = marker
        # The fixtures that this process sets up. The test's own list stays as it is: plugins read it.
        closure = item.fixturenames  # type: ignore[attr-defined]
        needs_folder = "tmp_path" in closure or ("request" in closure and _has_tmp_path(item))
        own = ["tmp_path"] if needs_folder and "tmp_path" not in marker.shared else []
        item.fixturenames = [*own, *marker.shared]  # type: ignore[attr-defined]
        item.__dict__["setup"] = functools.partial(_set_up, item, tuple(item.fixturenames))  # type: ignore[attr-defined]
        item.__dict__["runtest"] = functools.partial(_run_phase, item, "call")
        # Plugins that run a test again make the report of the last run themselves.
        for name in ("repr_failure", "_repr_failure_py"):
            item.__dict__[name] = functools.partial(_describe_failure, item, getattr(item, name))
    if not hasattr(config, "workerinput"):  # Workers of pytest-xdist have no debugger.
        _check_debug_rank(config, items)
    if not config.pluginmanager.has_plugin("rlaunch-ranks"):
        config.pluginmanager.register(_Hooks(config), "rlaunch-ranks")
        _keep_debugger_for_this_process(config.pluginmanager)


def _describe_failure(
    item: pytest.Item, usual: Any, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kwargs: Any
) -> Any:
    run = item.stash.get(_run, None)
    if run is not None and excinfo.value is item.stash.get(_raised, None):
        try:
            return outcome.format_failure(item, run)
        except Exception:
            # Under pytest-xdist, an internal error leaves the test out, with exit status 0.
            return f"{excinfo.exconly()}\n\n{traceback.format_exc()}"
    return usual(excinfo, *args, **kwargs)


def _keep_debugger_for_this_process(manager: pytest.PytestPluginManager) -> None:
    """Keeps --pdb from exceptions that were raised in a rank, where it has shown them.

    This process has no frames to debug.
    """
    debugger: Any = manager.get_plugin("pdbinvoke")
    if debugger is None:
        return

    class OfThisProcess:
        pytest_internalerror = staticmethod(debugger.pytest_internalerror)

        @staticmethod
        def pytest_exception_interact(
            node: pytest.Item, call: pytest.CallInfo[Any], report: pytest.TestReport
        ) -> None:
            if call.excinfo is None or call.excinfo.value is not node.stash.get(_raised, None):
                debugger.pytest_exception_interact(node=node, call=call, report=report)

    manager.unregister(debugger)
    manager.register(OfThisProcess(), "pdbinvoke")


def _has_tmp_path(item: Any) -> bool:
    """Whether ``request.getfixturevalue("tmp_path")`` gives something."""
    return bool(item.session._fixturemanager.getfixturedefs("tmp_path", item))


def _check_debug_rank(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuses ``--ranks-pdb`` for a rank that no test has."""
    chosen: int | None = config.getoption("ranks_pdb", None)
    markers = [item.stash[_marker] for item in items]
    largest = max((marker.n for marker in markers if isinstance(marker, RanksMarker)), default=None)
    if chosen is not None and largest is not None and not 0 <= chosen < largest:
        ranks = format_ranks(list(range(largest)))
        raise pytest.UsageError(
            f"--ranks-pdb {chosen}: no selected test has this rank; the largest has {ranks}"
        )


def _set_up(item: Any, names: tuple[str, ...]) -> None:
    """Sets up these fixtures alone. The ranks set up others that a plugin has added (pytest-asyncio)."""
    fill = item._request._fillfixtures

    def fill_own() -> None:
        item.fixturenames = list(names)
        fill()

    item._request._fillfixtures = fill_own
    type(item).setup(item)


def _read_marker(item: pytest.Item) -> RanksMarker:
    mark = _find_mark(item)
    if not isinstance(item, pytest.Function) or mark is None:
        raise MarkerError(
            f"@pytest.mark.ranks is for test functions and methods, not for {type(item).__name__}"
        )
    try:
        return read_marker(mark, item.config.getini("ranks_preload") or None)
    except MarkerError as error:
        # pytest's summary has room for the reason alone.
        raise MarkerError(f"{error} (@pytest.mark.ranks of {item.nodeid})") from None


def _find_mark(item: pytest.Item) -> pytest.Mark | None:
    """Returns the marker of ``pytest.param(..., marks=)``, else the closest one."""
    callspec = getattr(item, "callspec", None)
    of_parameters = [mark for mark in callspec.marks if mark.name == "ranks"] if callspec is not None else []
    return of_parameters[-1] if of_parameters else item.get_closest_marker("ranks")


class _Hooks:
    """The plugin with the hooks."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if not isinstance(item.stash.get(_marker, None), RanksMarker):
            return (yield)
        # Between pytest's phases too: the ranks may be in the test already.
        with stacks_at_quit(functools.partial(_describe_at_quit, item)):
            return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        marker = item.stash.get(_marker, None)
        if isinstance(marker, MarkerError):
            raise pytest.fail.Exception(str(marker), pytrace=False)
        if (
            marker is None
            or item.config.getoption("setuponly", False)
            or item.config.getoption("setupplan", False)
        ):
            return
        _leave_fixtures_to_ranks(item)
        run = item.stash[_run] = Run(
            lambda warning: _record_warning(item, warning), _get_startup_timeout(item, marker)
        )
        run.set_timeout(_get_timeout(item, marker))
        item.config.stash[_current] = item
        _allow_interrupt_in_setup(item)
        if "preload" in marker.options:
            marker.options["preload"] = _list_preload_modules(item.config, marker.options["preload"])
        try:
            run.start(marker, build_task(item))
        except TooFewDevices as error:
            raise pytest.skip.Exception(f"ranks on GPUs: {error}", _use_item_location=True) from error
        except (ValueError, RuntimeError, OSError) as error:
            text = f"the ranks cannot be started: {str(error).strip()}"
            raise pytest.fail.Exception(text, pytrace=False) from None
        except BaseException as error:
            # An interrupt. With --pdb there may be no teardown.
            run.close()
            _record_interrupt(item, "setup", error)
            raise
        _run_phase(item, "setup")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        raised: BaseException | None = None
        run = item.stash.get(_run, None)
        if run is not None:
            for step in (functools.partial(_run_phase, item, "teardown"), run.close):
                try:
                    step()
                except BaseException as error:
                    # An interrupt ends the session, whatever else failed.
                    if raised is None or not isinstance(error, Exception):
                        raised = error
        # Shared fixtures are torn down after the ranks have ended, whatever failed above. Otherwise pytest
        # fails the next test.
        result = yield
        if raised is not None:
            raise raised
        _report_leaks(item)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        run, raised = item.stash.get(_run, None), item.stash.get(_raised, None)
        if run is not None:
            subtests.log_subtests(item, run, call.when, self)
        report = yield
        if run is not None and report.skipped and call.excinfo is not None and call.excinfo.value is raised:
            report.longrepr = outcome.format_failure(item, run)  # Where the rank has skipped it.
        if run is not None:
            subtests.fail_if_subtests_failed(run, report)
            if run.has_quit:
                item.session.shouldstop = "Quitting debugger"
            elif isinstance(raised, KeyboardInterrupt):  # With --pdb, where pytest goes on after it.
                item.session.shouldstop = "KeyboardInterrupt"
        if call.when == "teardown" and run is not None:
            import_times.add_to_report(report, run)
            del item.config.stash[_current]
            del item.stash[_run]
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        item = self._config.stash.get(_current, None)
        if item is None:
            return
        run = item.stash[_run]
        is_ours = excinfo.value is item.stash.get(_raised, None)
        if not is_ours and (run.is_closed() or not isinstance(excinfo.value, KeyboardInterrupt)):
            return
        try:
            if not is_ours:
                # It came while pytest itself or another plugin ran.
                run.collect_interrupted_stacks()
            reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
            shown = getattr(reporter, "_keyboardinterrupt_memo", None)
            if shown is not None and isinstance(excinfo.value, KeyboardInterrupt):
                # Instead of the line of this plugin that waited for the ranks.
                text = outcome.format_interrupt(item, run)
                shown.reprcrash = outcome.InterruptedRanks(text)
                shown.addsection("ranks", text)  # With --full-trace.
        finally:
            run.close()

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        if not isinstance(item.stash.get(_marker, None), RanksMarker):
            return None
        item.stash[_timeout] = settings.timeout
        run = item.stash.get(_run, None)
        if run is not None:  # The time counts from the start of the test itself.
            run.set_timeout(_get_timeout(item, item.stash[_marker]))  # type: ignore[arg-type]
        return True

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool | None:
        return True if item.stash.get(_timeout, None) is not None else None


def _allow_interrupt_in_setup(item: pytest.Item) -> None:
    """Keeps Ctrl-C in the setup from failing the teardown of ``tmp_path``, which reads the setup's result.

    There is none after an interrupt (``tmp_path`` in ``_pytest/tmpdir.py``, pytest 7.3 and later).
    """
    key = getattr(tmpdir, "tmppath_result_key", None)
    if key is not None:
        item.stash.setdefault(key, {})


def _leave_fixtures_to_ranks(item: pytest.Item) -> None:
    """Keeps plugins from setting up fixtures here that the ranks set up.

    Hypothesis's plugin asks the test's request for each fixture, whose scope it checks
    (``pytest_runtest_call`` in ``_hypothesis_pytestplugin.py``). It gets the definition instead.
    """
    request: Any = item._request  # type: ignore[attr-defined]
    set_up = request._get_active_fixturedef

    def get(name: str) -> Any:
        definitions = request._arg2fixturedefs.get(name)
        is_ours = name in item.fixturenames  # type: ignore[attr-defined]
        return set_up(name) if is_ours or not definitions else definitions[-1]

    request._get_active_fixturedef = get


def _run_phase(item: pytest.Item, phase: str) -> None:
    """Waits until all ranks have passed a phase.

    Raises:
        BaseException: the failure or skip that decided the test in this phase.
    """
    __tracebackhide__ = True
    run = item.stash[_run]
    try:
        run.run_until(phase)
    except BaseException as error:
        run.close()
        _record_interrupt(item, phase, error)
        raise
    is_decided = run.outcome is not None and run.outcome.when == phase
    if is_decided or phase != "setup":
        _add_output(item, run)
    if is_decided:
        raised = item.stash[_raised] = outcome.make_exception(item, run)
        _record_interrupt(item, phase, raised)
        raise raised


def _record_interrupt(item: pytest.Item, phase: str, error: BaseException) -> None:
    if isinstance(error, (KeyboardInterrupt, pytest.exit.Exception)):
        run = item.stash[_run]
        run.outcome = run.outcome or Outcome("interrupt", phase, None, None)
        item.stash[_raised] = error


def _describe_at_quit(item: pytest.Item) -> str:
    """Has this process print to its own stderr, and returns the stacks of the ranks for it."""
    capture: Any = item.config.pluginmanager.get_plugin("capturemanager")
    if capture is not None:
        capture.suspend_global_capture()
    run = item.stash.get(_run, None)
    if run is None or run.is_closed():
        return f"{item.nodeid} was interrupted; it has no ranks"
    run.collect_interrupted_stacks()
    return outcome.format_interrupt(item, run)


def _list_preload_modules(config: pytest.Config, preload: str) -> str:
    """Returns the modules to preload: the same ones for the whole session, which then has one zygote."""
    known = config.stash.setdefault(_preloads, {})
    if preload not in known:
        known[preload] = preload_modules.list_modules(preload, config)
    return known[preload]


def _report_leaks(item: pytest.Item) -> None:
    run = item.stash.get(_run, None)
    mode = item.config.getini("ranks_leaks") or "error"
    if run is None or not run.leaks or mode == "ignore":
        return
    text = "\n  ".join(["the ranks have left behind, and it was removed:", *run.leaks])
    if mode == "warn":
        item.warn(pytest.PytestWarning(text))
    else:
        raise pytest.fail.Exception(text, pytrace=False)


def _get_timeout(item: pytest.Item, marker: RanksMarker) -> float:
    """Returns the timeout: the marker's, else pytest-timeout's, else the option's, else the ini file's."""
    if marker.timeout is not None:
        return marker.timeout
    own = item.stash.get(_timeout, None)
    if own is not None:
        return own
    return _read_option(item.config, "ranks_timeout", _DEFAULT_TIMEOUT)


def _get_startup_timeout(item: pytest.Item, marker: RanksMarker) -> float:
    """Returns the startup timeout: the marker's, else the option's, else the ini file's."""
    if marker.startup_timeout is not None:
        return marker.startup_timeout
    return _read_option(item.config, "ranks_startup_timeout", _DEFAULT_STARTUP_TIMEOUT)


def _read_option(config: pytest.Config, name: str, default: float) -> float:
    option = config.getoption(name, None)
    return float(option if option is not None else config.getini(name) or default)


def _add_output(item: pytest.Item, run: Run) -> None:
    """Adds the new output of the ranks to the next report."""
    for peer in run.peers:
        if peer.output.closed:  # The run was closed at an interrupt.
            continue
        when = f"of rank {peer.number}"
        for name, file in (("stdout", peer.output), ("stderr", peer.errors)):
            output = read_file(file, peer.shown.get(name, 0))
            peer.shown[name] = peer.shown.get(name, 0) + len(output)
            if output:
                item.add_report_section(when, name, output.decode("utf-8", "replace"))
        for title, text in _collect_logs(peer.reports).items():
            if peer.shown.setdefault(title, 0) < len(text):
                peer.shown[title] = len(text)
                item.add_report_section(f"{title.removeprefix('Captured log ')} {when}", "log", text)
        for report in peer.reports:
            for entry in map(tuple, report.get("user_properties", ())):
                if entry not in item.user_properties:
                    item.user_properties.append(entry)


def _collect_logs(reports: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the logs that pytest has captured in a rank, by title of the section."""
    return {
        title: text
        for report in reports
        for title, text in report.get("sections", ())
        if title.startswith("Captured log ") and text
    }


def _record_warning(item: pytest.Item, warning: dict[str, Any]) -> None:
    """Records a rank's warning in this session."""
    module, name = warning["category"]
    category = getattr(sys.modules.get(module), name, None)
    if not (isinstance(category, type) and issubclass(category, Warning)):
        category = type(name, (Warning,), {"__module__": module})
    instance = category(warning["message"])
    message = warnings.WarningMessage(instance, category, warning["filename"], warning["lineno"])
    item.ihook.pytest_warning_recorded.call_historic(
        kwargs={"warning_message": message, "nodeid": item.nodeid, "when": "runtest", "location": None}
    )
