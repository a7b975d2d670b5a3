"""Marked tests in the pytest process: pytest's own protocol runs, each phase of it on all ranks."""

from __future__ import annotations

import functools
import os
import pickle
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from . import _pytest_outcome, _pytest_preload
from ._devices import NotEnough
from ._pytest_debugger import ANY
from ._pytest_hub import whole
from ._pytest_marker import BadMarker, Ranks, read
from ._pytest_rank import Task, names_of
from ._pytest_run import Run

if TYPE_CHECKING:
    from collections.abc import Generator

DEFAULT_TIMEOUT = 300.0

# The marker as it was read, or what is wrong with it.
_marker = pytest.StashKey["Ranks | BadMarker"]()
_run = pytest.StashKey[Run]()
_raised = pytest.StashKey[BaseException]()
# Seconds, as pytest-timeout has it.
_timeout = pytest.StashKey[float]()
# What is preloaded for what the tests name.
_preloads = pytest.StashKey["dict[str, str]"]()


def take(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Has marked tests run on ranks."""
    for item in items:
        try:
            ranks = _read(item)
        except BadMarker as error:
            item.stash[_marker] = error
            item.fixturenames = []  # type: ignore[attr-defined]
            continue
        item.stash[_marker] = ranks
        # What the pytest process itself sets up. Where the test's own list is, is left alone: plugins ask it.
        closure = item.fixturenames  # type: ignore[attr-defined]
        wanted = [name for name in ("tmp_path",) if name in closure and name not in ranks.shared]
        item.fixturenames = [*wanted, *ranks.shared]  # type: ignore[attr-defined]
        item.__dict__["runtest"] = functools.partial(_reach, item, "call")
    if not config.pluginmanager.has_plugin("rlaunch-ranks"):
        config.pluginmanager.register(_Phases(), "rlaunch-ranks")


def _read(item: pytest.Item) -> Ranks:
    mark = item.get_closest_marker("ranks")
    if not isinstance(item, pytest.Function) or mark is None:
        raise BadMarker(
            f"@pytest.mark.ranks is for test functions and methods, not for {type(item).__name__}"
        )
    try:
        return read(mark, item.config.getini("ranks_preload") or None)
    except BadMarker as error:
        raise BadMarker(f"{item.nodeid}: {error}") from None


class _Phases:
    """Pytest's hooks around each test."""

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        ranks = item.stash.get(_marker, None)
        if isinstance(ranks, BadMarker):
            raise pytest.fail.Exception(str(ranks), pytrace=False)
        if (
            ranks is None
            or item.config.getoption("setuponly", False)
            or item.config.getoption("setupplan", False)
        ):
            return
        run = item.stash[_run] = Run(lambda said: _warn(item, said))
        run.limit(_limit(item, ranks))
        if "preload" in ranks.options:
            ranks.options["preload"] = _preload(item.config, ranks.options["preload"])
        try:
            run.start(ranks, _task(item))
        except NotEnough as error:
            raise pytest.skip.Exception(f"ranks on GPUs: {error}", _use_item_location=True) from error
        except (ValueError, RuntimeError, OSError) as error:
            said = f"the ranks cannot be started: {str(error).strip()}"
            raise pytest.fail.Exception(said, pytrace=False) from None
        except BaseException:
            # Interrupted, and with --pdb there may be no teardown.
            run.close()
            raise
        _reach(item, "setup")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        raised: BaseException | None = None
        if item.stash.get(_run, None) is not None:
            try:
                _reach(item, "teardown")
            except BaseException as error:
                raised = error
            item.stash[_run].close()
        # What the ranks have shared goes after them.
        result = yield
        if raised is not None:
            raise raised
        _tell_leaks(item)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        run, raised = item.stash.get(_run, None), item.stash.get(_raised, None)
        if run is not None and call.excinfo is not None and call.excinfo.value is raised:
            report.longrepr = _pytest_outcome.longrepr(item, run)
            # Where it happened is in a rank, which --pdb has shown: here is nothing to look at.
            call.excinfo = None
            if run.quit:
                item.session.shouldstop = "Quitting debugger"
        if call.when == "teardown" and run is not None:
            del item.stash[_run]
        return report

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        if not isinstance(item.stash.get(_marker, None), Ranks):
            return None
        item.stash[_timeout] = settings.timeout
        run = item.stash.get(_run, None)
        if run is not None:  # It counts from the test's own beginning.
            run.limit(_limit(item, item.stash[_marker]))  # type: ignore[arg-type]
        return True

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool | None:
        return True if item.stash.get(_timeout, None) is not None else None


def _reach(item: pytest.Item, phase: str) -> None:
    """Goes on until all ranks have passed a phase.

    Raises:
        BaseException: what the test failed by, or was skipped by, in this phase.
    """
    __tracebackhide__ = True
    run = item.stash[_run]
    try:
        run.reach(phase)
    except BaseException:
        run.close()
        raise
    ending = run.end is not None and run.end.when == phase
    if ending or phase != "setup":
        _show_output(item, run)
    if ending:
        raised = item.stash[_raised] = _pytest_outcome.exception(run)
        raise raised


def _preload(config: pytest.Config, named: str) -> str:
    """What is preloaded where the tests name this: the same for all of a session, who have one zygote."""
    known = config.stash.setdefault(_preloads, {})
    if named not in known:
        known[named] = _pytest_preload.modules(named, config)
    return known[named]


def _tell_leaks(item: pytest.Item) -> None:
    run = item.stash.get(_run, None)
    mode = item.config.getini("ranks_leaks") or "error"
    if run is None or not run.left or mode == "ignore":
        return
    said = "\n  ".join(["the ranks have left behind, and it was removed:", *run.left])
    if mode == "warn":
        item.warn(pytest.PytestWarning(said))
    else:
        raise pytest.fail.Exception(said, pytrace=False)


def _limit(item: pytest.Item, ranks: Ranks) -> float:
    if ranks.timeout is not None:
        return ranks.timeout
    own = item.stash.get(_timeout, None)
    if own is not None:
        return own
    said = item.config.getoption("ranks_timeout", None)
    if said is None:
        said = item.config.getini("ranks_timeout") or DEFAULT_TIMEOUT
    return float(said)


def _show_output(item: pytest.Item, run: Run) -> None:
    """Hands what the ranks have said to the report that is made next."""
    for peer in run.peers:
        when = f"of rank {peer.number}"
        for name, file in (("stdout", peer.output), ("stderr", peer.errors)):
            said = whole(file, peer.shown.get(name, 0))
            peer.shown[name] = peer.shown.get(name, 0) + len(said)
            if said:
                item.add_report_section(when, name, said.decode("utf-8", "replace"))
        for title, text in _sections(peer.reports).items():
            if peer.shown.setdefault(title, 0) < len(text):
                peer.shown[title] = len(text)
                item.add_report_section(f"{title.removeprefix('Captured log ')} {when}", "log", text)
        for report in peer.reports:
            for entry in map(tuple, report.get("user_properties", ())):
                if entry not in item.user_properties:
                    item.user_properties.append(entry)


def _sections(reports: list[dict[str, Any]]) -> dict[str, str]:
    """What pytest's logging has captured."""
    return {
        title: text
        for report in reports
        for title, text in report.get("sections", ())
        if title.startswith("Captured log ") and text
    }


def _warn(item: pytest.Item, said: dict[str, Any]) -> None:
    """A rank's warning becomes one of this session."""
    module, name = said["category"]
    category = getattr(sys.modules.get(module), name, None)
    if not (isinstance(category, type) and issubclass(category, Warning)):
        category = type(name, (Warning,), {"__module__": module})
    message = warnings.WarningMessage(category(said["message"]), category, said["filename"], said["lineno"])
    item.ihook.pytest_warning_recorded.call_historic(
        kwargs={"warning_message": message, "nodeid": item.nodeid, "when": "runtest", "location": None}
    )


# --- What a rank is told --------------------------------------------------------------------------------

# Of the parent's options, those that are the parent's business alone, and what a rank has instead.
_RANKS_OPTIONS: dict[str, Any] = {
    **dict.fromkeys(("maxfail", "reruns", "timeout", "verbose_reruns"), 0),
    **dict.fromkeys(("keyword", "markexpr"), ""),
    **dict.fromkeys(("usepdb", "trace", "lf", "failedfirst", "newfirst", "stepwise", "stepwise_skip"), False),
    **dict.fromkeys(("stepwise_reset", "cacheclear", "setupshow", "pyargs", "doctestmodules"), False),
    **dict.fromkeys(("looponfail", "distload", "loadgroup", "collectonly", "version", "help"), False),
    **dict.fromkeys(("deselect", "ignore", "ignore_glob", "xmlpath", "durations", "pastebin"), None),
    **dict.fromkeys(("debug", "numprocesses", "maxprocesses", "basetemp", "session_timeout"), None),
    **dict.fromkeys(("log_cli_level", "report_log", "htmlpath", "json_report_file", "cov_source"), None),
    "capture": "no",
    "dist": "no",
    "tx": [],
    "no_cov": True,
    "log_file": "/dev/null",
}
# Those come as arguments.
_ARGUMENTS = ("plugins", "file_or_dir")
_options = pytest.StashKey["dict[str, bytes]"]()


def _debugs(config: pytest.Config) -> int | None:
    chosen: int | None = config.getoption("ranks_pdb", None)
    return chosen if chosen is not None else ANY if config.getoption("usepdb", False) else None


def _task(item: pytest.Item) -> Task:
    config = item.config
    writer = config.get_terminal_writer() if config.pluginmanager.has_plugin("terminalreporter") else None
    return Task(
        path=str(item.path),
        names=names_of(item),
        options=_sent_options(config),
        plugins=[plugin for plugin in config.option.plugins if isinstance(plugin, str)],
        folder=str(config.invocation_params.dir),
        cwd=_cwd(config),
        basetemp=_basetemp(config),
        worker=getattr(config, "workerinput", None) or _as_worker(),
        captured=config.getoption("capture", "fd") != "no",
        colour=bool(writer is not None and writer.hasmarkup),
        debugs=_debugs(config),
        width=writer.fullwidth if writer is not None else 80,
        values=_sent_values(item),
    )


def _basetemp(config: Any) -> str | None:
    factory = getattr(config, "_tmp_path_factory", None)  # -p no:tmpdir
    return None if factory is None else str(factory.getbasetemp())


def _cwd(config: pytest.Config) -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return str(config.invocation_params.dir)


def _as_worker() -> dict[str, Any]:
    """What plugins ask for to know that another process reports."""
    return {"workerid": "master", "workercount": 1, "testrunuid": "", "mainargv": sys.argv}


def _sent_options(config: pytest.Config) -> dict[str, bytes]:
    sent = config.stash.get(_options, None)
    if sent is None:
        options = {name: value for name, value in vars(config.option).items() if name not in _ARGUMENTS}
        options |= {name: value for name, value in _RANKS_OPTIONS.items() if name in options}
        options |= {
            "rootdir": str(config.rootpath),
            # Without a file of its own, a rank would look for one from the test's folder upwards.
            "inifilename": str(config.inipath or "/dev/null"),
            "confcutdir": str(config.pluginmanager._confcutdir or config.rootpath),
        }
        sent = config.stash[_options] = {}
        for name, value in options.items():
            try:
                sent[name] = pickle.dumps(value)
            except Exception:  # An object of a plugin's: a rank has its default.
                continue
    return sent


def _sent_values(item: Any) -> dict[str, bytes]:
    values = {}
    for name in item.fixturenames:
        try:
            values[name] = pickle.dumps(item.funcargs[name])
        except Exception as error:
            said = f"what the fixture {name!r} gives cannot be sent to the ranks: {error}"
            raise pytest.fail.Exception(said, pytrace=False) from None
    return values
