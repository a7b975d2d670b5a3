"""The pytest plugin: tests marked ``@pytest.mark.ranks(n)`` run on n ranks.

With RLAUNCH_INSTALL=1, a suite that calls ``paddle.distributed.spawn`` runs on rlaunch.
"""

from __future__ import annotations

import os

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _is_install_requested() -> bool:
    return os.environ.get("RLAUNCH_INSTALL", "").lower() in ("1", "true", "yes", "on")


def pytest_addoption(parser: pytest.Parser) -> None:
    timeout = "seconds for a test on ranks, unless its marker or pytest-timeout sets them; 0: no limit"
    parser.addini("ranks_timeout", f"{timeout} (default: 300)")
    parser.addini(
        "ranks_preload",
        "modules to import once for all tests on ranks whose markers set neither preload nor start_method "
        "(torch, paddle)",
    )
    parser.addini(
        "ranks_leaks",
        "what to do if ranks leave processes, ports or shared memory behind: error (default), warn or ignore",
    )
    group = parser.getgroup("rlaunch", "tests on ranks")
    group.addoption(
        "--ranks-pdb",
        type=int,
        default=None,
        metavar="RANK",
        help="rank that enters the debugger when a test on ranks fails (--pdb: the first rank that fails)",
    )
    group.addoption("--ranks-timeout", type=float, default=None, metavar="SECONDS", help=timeout)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "ranks(n, *, timeout=None, start_method=None, gpus=None, frameworks='paddle,torch', preload=None, "
        "shared=()): run the test on n ranks, each a process of its own.",
    )
    if _is_install_requested():
        from .paddle import install

        config.add_cleanup(install().uninstall)


def pytest_report_header() -> list[str]:
    return ["rlaunch: installed under paddle.distributed.spawn"] if _is_install_requested() else []


def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    if config.pluginmanager.has_plugin("rlaunch-rank"):
        return
    marked = [item for item in session.items if item.get_closest_marker("ranks") is not None]
    if marked:
        # Imported only for sessions with marked tests.
        from ._pytest.hooks import run_on_ranks

        run_on_ranks(config, marked)


@pytest.fixture(scope="session")
def rank(pytestconfig: pytest.Config) -> Any:
    """The rank that this process is in its test: ``rank.rank``, ``world_size``, ``local_rank``.

    Operations of all ranks: ``rank.barrier()``, ``rank.gather(obj)``, ``rank.broadcast(obj, src=0)``.
    """
    session: Any = pytestconfig.pluginmanager.get_plugin("rlaunch-rank")
    if session is not None:
        return session.rank
    pytest.fail("the fixture rank is for tests marked with @pytest.mark.ranks(n)", pytrace=False)
