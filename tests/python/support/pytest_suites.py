"""Small test suites that are run by a pytest of their own."""

from __future__ import annotations

import itertools
import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from effort import ALL
from preloaded import python
from spawning import JOB_VARIABLES

Suite = Callable[..., pytest.RunResult]
# Plugins that are installed beside ours: each process of a session, ranks too, would import them. `-p xdist`
# after these arguments has one after all.
OTHERS = ("anyio", "hypothesispytest", "pytest_cov", "timeout", "xdist", "xdist.looponfail")
QUICK = ("-p", "no:cacheprovider", *(word for name in OTHERS for word in ("-p", f"no:{name}")))

# `ranks` is for tests to which the start method does not matter. The default is a new interpreter for each
# rank, which imports pytest: that takes longer than most tests.
OPTIONS = {} if ALL else {"start_method": "fork"}
HEAD = f"""\
import functools, os
import pytest
ranks = functools.partial(pytest.mark.ranks, **{OPTIONS})
"""


@pytest.fixture(name="suite")
def suite_fixture(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """Runs a source as ``test_it.py``, with these arguments to pytest."""
    for name in [
        n
        for n in os.environ
        if n.startswith((*JOB_VARIABLES, "PYTEST_XDIST", "PYTEST_ADDOPTS", "CI", "BUILD_NUMBER"))
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("COLUMNS", "120")

    runs = itertools.count()

    def run(source: str, *args: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=HEAD + textwrap.dedent(source).strip("\n"))
        base = f"--basetemp={pytester.path / f'base-{next(runs)}'}"
        return pytester.run(*python("pytest"), "-m", "pytest", base, *QUICK, "-ra", *args, timeout=100)

    return run


def write_packages(folder: Path) -> Path:
    """An installed package that imports another one, and a module of the user that imports both."""
    installed = folder / "site-packages"
    for name, source in {
        "heavy/__init__.py": "import heavy.first, light",
        "heavy/first.py": "",
        "heavy/later.py": "import light.more",
        "light/__init__.py": "import light.first",
        "light/first.py": "",
        "light/more.py": "",
        "broken/__init__.py": "import broken.none",
    }.items():
        (installed / name).parent.mkdir(parents=True, exist_ok=True)
        (installed / name).write_text(source)
    (folder / "users.py").write_text("import heavy\nimport heavy.later\n")
    return installed
