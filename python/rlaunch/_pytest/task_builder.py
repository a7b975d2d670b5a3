"""Builds the task of a marked test from the parent's session."""

from __future__ import annotations

import os
import pickle
import sys
import types
from typing import Any

import pytest

from .rank.parameters import describe_parameters
from .task import ANY_RANK, NO_WORKER, Task, is_conftest, list_node_names

# Options that concern only the parent, and the value that a rank's session gets instead.
_RANK_OPTIONS: dict[str, Any] = {
    "timeout": 0,
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
# A rank's session receives these as arguments.
_ARGUMENTS = ("plugins", "file_or_dir")
_workerinput = pytest.StashKey["dict[str, bytes]"]()
_options = pytest.StashKey["dict[str, bytes]"]()


def build_task(item: pytest.Item) -> Task:
    """Returns the task of a marked test.

    Raises:
        pytest.fail.Exception: the value of a shared fixture cannot be pickled.
    """
    config = item.config
    writer = config.get_terminal_writer() if config.pluginmanager.has_plugin("terminalreporter") else None
    return Task(
        path=str(item.path),
        names=list_node_names(item),
        options={**_pickle_options(config), "maxfail": pickle.dumps(_get_maxfail(item))},
        plugins=_list_plugins(config),
        folder=str(config.invocation_params.dir),
        cwd=_get_cwd(config),
        basetemp=_get_basetemp(config),
        worker=_pickle_workerinput(config),
        worker_id=getattr(config, "workerinput", {}).get("workerid"),
        captures=config.getoption("capture", "fd") != "no",
        has_colour=bool(writer is not None and writer.hasmarkup),
        debug_rank=_get_debug_rank(config),
        width=writer.fullwidth if writer is not None else 80,
        values=_pickle_fixture_values(item),
        parameters=describe_parameters(item),
    )


def _list_plugins(config: pytest.Config) -> list[str]:
    """Returns the values of ``-p``: of several about one plugin (``-p no:xdist -p xdist``) the last.

    pytest reads those of a rank twice, and would register the plugin twice.
    """
    plugins = [plugin for plugin in config.option.plugins if isinstance(plugin, str)]
    return list({plugin.removeprefix("no:"): plugin for plugin in plugins}.values())


def _get_maxfail(item: pytest.Item) -> int:
    """Returns the number of failures after which a test ends at its next failing subtest; 0: it does not."""
    maxfail: int = item.config.getoption("maxfail", 0)
    return max(1, maxfail - item.session.testsfailed) if maxfail else 0


def _get_debug_rank(config: pytest.Config) -> int | None:
    chosen: int | None = config.getoption("ranks_pdb", None)
    return chosen if chosen is not None else ANY_RANK if config.getoption("usepdb", False) else None


def _get_basetemp(config: Any) -> str | None:
    factory = getattr(config, "_tmp_path_factory", None)  # -p no:tmpdir
    return None if factory is None else str(factory.getbasetemp())


def _get_cwd(config: pytest.Config) -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return str(config.invocation_params.dir)


def _pickle_workerinput(config: pytest.Config) -> dict[str, bytes]:
    """Returns the ``workerinput`` of the ranks, by which plugins know that another process reports.

    Raises:
        pytest.fail.Exception: a value cannot be pickled.
    """
    pickled = config.stash.get(_workerinput, None)
    if pickled is None:
        values = getattr(config, "workerinput", None) or _make_workerinput(config)
        pickled = config.stash[_workerinput] = {}
        for name, value in values.items():
            try:
                pickled[name] = pickle.dumps(value)
            except Exception as error:
                text = f"workerinput[{name!r}] cannot be sent to the ranks: {error}"
                raise pytest.fail.Exception(text, pytrace=False) from None
    return pickled


def _make_workerinput(config: pytest.Config) -> dict[str, Any]:
    """Returns what ``pytest_configure_node`` adds to, once a session, as for one worker of pytest-xdist."""
    values = {"workerid": NO_WORKER, "workercount": 1, "testrunuid": "", "mainargv": sys.argv}
    hook: Any = getattr(config.hook, "pytest_configure_node", None)
    gateway = types.SimpleNamespace(id=NO_WORKER)
    node = types.SimpleNamespace(config=config, gateway=gateway, workerinput=values)
    for implementation in [] if hook is None else hook.get_hookimpls():
        others = [other.plugin for other in hook.get_hookimpls() if other is not implementation]
        call: Any = config.pluginmanager.subset_hook_caller("pytest_configure_node", others)
        try:
            call(node=node)
        except Exception:
            # A plugin may not expect nodes in a session without pytest-xdist's workers. Ranks do without it.
            if is_conftest(implementation.plugin):
                raise
    return values


def _pickle_options(config: pytest.Config) -> dict[str, bytes]:
    pickled = config.stash.get(_options, None)
    if pickled is None:
        options = {name: value for name, value in vars(config.option).items() if name not in _ARGUMENTS}
        options |= {name: value for name, value in _RANK_OPTIONS.items() if name in options}
        options |= {
            "rootdir": str(config.rootpath),
            # Without it, a rank would look for a configuration file from the test's folder upwards.
            "inifilename": str(config.inipath or "/dev/null"),
            "confcutdir": str(config.pluginmanager._confcutdir or config.rootpath),
        }
        pickled = config.stash[_options] = {}
        for name, value in options.items():
            try:
                pickled[name] = pickle.dumps(value)
            except Exception:  # An object of a plugin: a rank's session has the default.
                continue
    return pickled


def _pickle_fixture_values(item: Any) -> dict[str, bytes]:
    values = {}
    for name in item.fixturenames:
        try:
            values[name] = pickle.dumps(item.funcargs[name])
        except Exception as error:
            what = f"the value of the fixture {name!r} cannot be sent to the ranks"
            text = f"{what}: {error}; return a path or data instead"
            raise pytest.fail.Exception(text, pytrace=False) from None
    return values
