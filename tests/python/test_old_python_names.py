"""Python names that were public in an earlier version still work; those with a new name warn."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_suites import QUICK
from rlaunch._spawn.plan.options import rename_old_options

# Statement, and the end of its DeprecationWarning; "" for none.
OLD = [
    ("from rlaunch.spawn import spawn", "import spawn and MultiprocessContext from rlaunch"),
    (
        "from rlaunch.spawn import MultiprocessContext as C; assert C is rlaunch.MultiprocessContext",
        "import spawn and MultiprocessContext from rlaunch",
    ),
    (
        "from rlaunch.spawn import _options_valid_check, _get_default_nprocs, _get_subprocess_env_list",
        "import spawn and MultiprocessContext from rlaunch",
    ),
    (
        "import rlaunch.spawn; assert rlaunch.spawn.spawn is rlaunch.spawn",
        "import spawn and MultiprocessContext from rlaunch",
    ),
    (
        "import importlib; assert importlib.import_module('rlaunch.spawn').spawn is rlaunch.spawn",
        "import spawn and MultiprocessContext from rlaunch",
    ),
    (
        "import rlaunch.spawn as old; assert old.spawn is old",
        "import spawn and MultiprocessContext from rlaunch",
    ),
    ("from rlaunch.launch import launch; assert launch is rlaunch.launch", "import launch from rlaunch"),
    ("import rlaunch.launch; assert rlaunch.launch.launch is rlaunch.launch", "import launch from rlaunch"),
    (
        "from rlaunch.context import MultiprocessContext as C; assert C is rlaunch.MultiprocessContext",
        "import MultiprocessContext from rlaunch",
    ),
    ("from rlaunch.context import RanksContext", "import MultiprocessContext from rlaunch"),
    (
        "from rlaunch.errors import MissingRank, MissingRankError; assert MissingRank is MissingRankError",
        "its name is MissingRankError",
    ),
    (
        "from rlaunch.paddle import Installation; assert Installation([]).stands is False",
        "its name is is_active",
    ),
    ("rlaunch.spawn(print, nprocs=0, start_method='fork', grace=3.0)", "its name is grace_period"),
    ("rlaunch.spawn(print, nprocs=0, start_method='fork', dialect='torch')", "its name is frameworks"),
    ("from rlaunch import spawn, launch, end_zygotes, __version__", ""),
    ("from rlaunch import ParallelEnv, get_rank, get_world_size, init_parallel_env", ""),
    ("from rlaunch import LaunchError, NoResultError, RankError, WorkerError, ZygoteError", ""),
    ("from rlaunch import AttemptResult, RankResult, Report", ""),
    ("from rlaunch.errors import ChildFailedError, ProcessFailure, record", ""),
    ("from rlaunch.errors import TORCH_ERRORS, TORCH_SPAWN, counterpart, peer_class", ""),
    ("from rlaunch.errors import ProcessException, ProcessExitedException, ProcessRaisedException", ""),
    ("from rlaunch.report import AttemptResult, RankResult, Report", ""),
    ("from rlaunch.run import command, get_args_parser, main, parse_args, run", ""),
    ("from rlaunch.paddle import install, uninstall", ""),
    ("import rlaunch.torch as t; assert set(t.__all__) <= set(dir(t))", ""),
    ("from rlaunch.torch import LaunchConfig, ProcessContext, elastic_launch, install, uninstall", ""),
    ("from rlaunch.torch import ProcessException, ProcessExitedException, ProcessRaisedException", ""),
    ("from rlaunch.torch import spawn, start_processes", ""),
    ("import rlaunch.env, rlaunch.errors, rlaunch.pytest_plugin", ""),
]

# Each statement runs in a process of its own, forked off this one: a module warns when it is imported first.
PROGRAM = """
import json, os, sys, warnings
import rlaunch

for statement in json.load(sys.stdin):
    reader, writer = os.pipe()
    if os.fork() == 0:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                exec(compile(statement, "<old name>", "exec"))
                assert callable(rlaunch.spawn) and callable(rlaunch.launch)
                error = None
            except BaseException as raised:
                error = repr(raised)
        deprecated = [w for w in caught if issubclass(w.category, DeprecationWarning)]
        seen = [[w.category.__name__, str(w.message), w.filename] for w in deprecated]
        os.write(writer, json.dumps([error, seen]).encode())
        os._exit(0)
    os.close(writer)
    print(os.read(reader, 1 << 16).decode())
    os.wait()
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, list[object]]:
    statements = [statement for statement, _ in OLD]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(statements),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(statements, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize(("statement", "warning"), OLD)
def test_an_old_name_works(statement: str, warning: str, answers: dict[str, list[object]]) -> None:
    error, warned = answers[statement]
    assert error is None
    assert isinstance(warned, list)
    if not warning:
        assert warned == []
        return
    # `from module import name` asks a module's __getattr__ twice.
    assert warned
    for category, text, filename in warned:
        assert category == "DeprecationWarning"
        assert text.endswith(warning)
        # The line to change; importlib's functions are frames of their own.
        assert filename == "<old name>" or "importlib" in statement


OLD_OPTIONS = """
import os
import rlaunch

def variables(folder):
    with open(f"{folder}/{os.environ['RANK']}", "w") as file:
        file.write(os.environ.get("PADDLE_TRAINER_ID", "none"))

if __name__ == "__main__":
    import sys
    rlaunch.spawn(variables, (sys.argv[1],), nprocs=2, dialect=sys.argv[2])
"""


def spawn_with_dialect(folder: Path, dialect: str) -> subprocess.CompletedProcess[str]:
    (folder / "main.py").write_text(OLD_OPTIONS)
    command = [sys.executable, "main.py", str(folder), dialect]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_spawn_sets_the_variables_that_dialect_asks_for(tmp_path: Path) -> None:
    done = spawn_with_dialect(tmp_path, "torch")
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / str(rank)).read_text() for rank in (0, 1)] == ["none", "none"]


def test_spawn_refuses_an_unknown_dialect(tmp_path: Path) -> None:
    done = spawn_with_dialect(tmp_path, "nonsense")
    assert done.returncode == 1
    assert "nonsense" in done.stderr.splitlines()[-1]


def test_an_old_option_of_spawn_sets_the_new_one_unless_that_is_set() -> None:
    options = {"grace": 3.0, "dialect": "torch", "frameworks": "jax"}
    rename_old_options(options)
    assert options == {"grace_period": 3.0, "frameworks": "jax"}


def test_an_old_argument_of_the_marker_works(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os
        import pytest

        @pytest.mark.ranks(1, dialect="torch")
        def test_variables():
            assert "PADDLE_TRAINER_ID" not in os.environ and os.environ["RANK"] == "0"
        """
    )
    done = pytester.runpytest_subprocess(*QUICK)
    done.assert_outcomes(passed=1, warnings=1)
    done.stdout.fnmatch_lines(["*dialect of @pytest.mark.ranks is deprecated; its name is frameworks*"])
