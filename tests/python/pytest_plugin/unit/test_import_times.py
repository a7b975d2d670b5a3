"""How long ranks import packages, and what a session says of it."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path

import pytest
from pytest_suites import write_packages
from rlaunch._pytest.import_times import ATTRIBUTE, ImportTimes
from rlaunch._pytest.rank import import_clock


def test_time_is_that_of_the_package_that_the_user_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (write_packages(tmp_path), tmp_path):
        monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    ticks = itertools.count()
    monkeypatch.setattr(import_clock.time, "monotonic", lambda: float(next(ticks)))
    clock = import_clock.ImportClock()
    clock.install()
    try:
        with pytest.raises(ImportError):
            importlib.import_module("broken")
        importlib.import_module("users")
    finally:
        for name in list(sys.modules):
            if name.partition(".")[0] in ("broken", "heavy", "light", "users"):
                del sys.modules[name]
    # From the second module on, each lookup is a second.
    assert clock.seconds == {"broken": 1, "heavy": 3, "heavy.later": 1}


def add(times: ImportTimes, name: str, duration: float, imports: dict[str, float] | None) -> None:
    for when in ("setup", "call", "teardown"):
        report = pytest.TestReport(name, ("t.py", 1, name), {}, "passed", None, when, duration=duration / 3)  # type: ignore[arg-type]
        if when == "teardown" and imports is not None:
            setattr(report, ATTRIBUTE, imports)
        times.pytest_runtest_logreport(report)


@pytest.mark.parametrize(
    ("imports", "is_said"),
    [
        ({"torch": 4.0, "sklearn.datasets": 4.0, "numpy": 0.1}, True),
        ({"torch": 2.9}, False),
        ({"torch": 2.0, "sklearn.datasets": 0.1}, False),
        ({}, False),
    ],
)
def test_a_line_is_said_when_imports_took_most_of_the_time(imports: dict[str, float], is_said: bool) -> None:
    times = ImportTimes()
    add(times, "plain", 100.0, None)
    for name in ("first", "second"):
        add(times, name, 9.0, imports)
    line = times._advise("torch")
    assert (line is not None) == is_said
    assert line is None or line == (
        "ranks imported torch, sklearn.datasets for 16 s of 18 s in 2 tests; "
        "ranks_preload = torch,sklearn.datasets in pytest.ini imports once (or preload in the marker)"
    )
