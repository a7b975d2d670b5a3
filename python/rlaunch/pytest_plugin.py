"""pytest plugin: tests that run on several ranks, marked ``@pytest.mark.ranks(n)``; and, with
RLAUNCH_INSTALL=1, a suite that uses ``paddle.distributed.spawn`` runs on rlaunch.
"""

from __future__ import annotations

import os

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_YES = ("1", "true", "yes", "on")


def _wanted() -> bool:
    return os.environ.get("RLAUNCH_INSTALL", "").lower() in _YES


def pytest_addoption(parser: pytest.Parser) -> None:
    said = (
        "seconds that a test on ranks may take where neither its marker nor pytest-timeout says; 0: any time"
    )
    parser.addini("ranks_timeout", f"{said} (default: 300)")
    parser.addini(
        "ranks_preload",
        "modules that are imported once for all tests on ranks that do not say otherwise (torch, paddle)",
    )
    parser.addini(
        "ranks_leaks",
        "what it is if ranks leave processes, ports or shared memory behind: error (default), warn or ignore",
    )
    group = parser.getgroup("rlaunch", "tests on ranks")
    group.addoption(
        "--ranks-pdb",
        type=int,
        default=None,
        metavar="RANK",
        help="as --pdb, for tests on ranks: this one is looked at when it fails (--pdb: the first that does)",
    )
    group.addoption("--ranks-timeout", type=float, default=None, metavar="SECONDS", help=said)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "ranks(n, *, timeout=None, start_method=None, gpus=None, dialect='paddle,torch', preload=None, "
        "shared=()): run the test on n ranks, each a process of its own.",
    )
    if _wanted():
        from .paddle import install

        config.add_cleanup(install().uninstall)


def pytest_report_header() -> list[str]:
    return ["rlaunch: installed under paddle.distributed.spawn"] if _wanted() else []


def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    if config.pluginmanager.has_plugin("rlaunch-rank"):
        return
    marked = [item for item in session.items if item.get_closest_marker("ranks") is not None]
    if marked:
        # All of the rest is imported for tests that need it.
        from ._pytest_parent import take

        take(config, marked)


@pytest.fixture(scope="session")
def rank(pytestconfig: pytest.Config) -> Any:
    """Who this process is among the ranks of the test: ``rank.rank``, ``world_size``, ``local_rank``;
    ``rank.barrier()``, ``rank.gather(obj)``, ``rank.broadcast(obj, src=0)``.
    """
    session: Any = pytestconfig.pluginmanager.get_plugin("rlaunch-rank")
    if session is not None:
        return session.rank
    pytest.fail("the fixture rank is for tests marked with @pytest.mark.ranks(n)", pytrace=False)
