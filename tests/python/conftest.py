"""Fixtures of most tests of the launcher."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import nvml
import pytest
import rlaunch
from elastic_jobs import BACKENDS, Backend
from etcd import Etcd
from launching import Place, marked
from multi_host import MultiHost, multi_host
from oracle import SEED, Oracle

# A shell's background, and nohup, start programs with these ignored, which all processes below inherit: no
# test of a stop would find any process that listens.
LISTENED_TO = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
for number, action in LISTENED_TO.items():
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, action)


# Jobs of tests stay out of the history of the user who runs them.
STATE = tempfile.TemporaryDirectory(prefix="rlaunch-state-")
os.environ["XDG_STATE_HOME"] = STATE.name

# The workers of pytest-xdist draw the same.
os.environ["RLAUNCH_SEED"] = str(SEED)


def pytest_report_header() -> str:
    return f"RLAUNCH_SEED={SEED}"


def pytest_collection_finish() -> None:
    """Tests that collect garbage need not look at what collection made, nor do forked ranks copy it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _no_zygote_left() -> Iterator[None]:
    """Each module begins without the zygotes that another module's tests started in this process."""
    yield
    rlaunch.end_zygotes()


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pytest's, but short: of a path that is refused messages show the beginning."""
    return tmp_path_factory.mktemp("t")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each way in which nodes find each other."""
    kind: Backend = request.param
    return kind


@pytest.fixture
def mark() -> Iterator[str]:
    """A mark in the environment of the processes of a test; leftovers of the test are killed."""
    mark = uuid.uuid4().hex
    yield mark
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> nvml.Driver:
    """Makes an environment in which the driver's library is the fake, built with these definitions."""
    return lambda *definitions: nvml.environment(tmp_path_factory.mktemp("nvml"), *definitions)


@pytest.fixture(scope="session")
def four_gpus(driver: nvml.Driver) -> dict[str, str]:
    """An environment in which the driver shows four GPUs."""
    return driver()


@pytest.fixture(scope="module")
def made() -> Iterator[MultiHost]:
    """Two hosts for launchers, and one more for an etcd."""
    with multi_host(2) as made:
        yield made


@pytest.fixture(scope="module")
def etcd(made: MultiHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """An etcd on the host that runs no launcher."""
    with made.etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    """The real Paddle, in a process of its own."""
    made = Oracle()
    yield made
    made.close()
