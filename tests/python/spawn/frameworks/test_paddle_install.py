"""``rlaunch.paddle`` and the pytest plugin: unchanged programs of the real Paddle, on rlaunch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from effort import cases
from preloaded import python
from pytest_suites import QUICK
from rlaunch.pytest_plugin import pytest_report_header
from spawning import JOB_VARIABLES

# Imports of Paddle, several in each test.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith((*JOB_VARIABLES, "PYTEST_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")


def run(
    folder: Path, *args: str, preloaded: bool = False, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python to its end; nothing of it stays. `preloaded`: where Paddle is imported already."""
    before = set(psutil.pids())
    done = subprocess.run(
        [*(python("paddle") if preloaded else [sys.executable]), *args],
        cwd=folder,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    ours = [p for p in psutil.process_iter(["cwd"]) if p.pid not in before and p.info["cwd"] == str(folder)]
    assert psutil.wait_procs(ours, timeout=10)[1] == []
    return done


# --- install() ------------------------------------------------------------------------------------------

REPLACED = [
    *("paddle.distributed.spawn", "spawn.spawn", "spawn.MultiprocessContext"),
    *("spawn._get_subprocess_env_list", "spawn._options_valid_check", "spawn._get_default_nprocs"),
]

INSTALLING = """
import json, sys
import rlaunch.paddle
assert "paddle" not in sys.modules, "rlaunch.paddle alone imports no Paddle"
if sys.argv[1] == "before":
    import paddle.distributed as dist

def owners():
    import paddle.distributed as dist
    module = sys.modules["paddle.distributed.spawn"]
    names = ["spawn", "MultiprocessContext", "_get_subprocess_env_list", "_options_valid_check"]
    things = [dist.spawn, *(getattr(module, name) for name in [*names, "_get_default_nprocs"])]
    return [thing.__module__ for thing in things]

def identities():
    module = sys.modules["paddle.distributed.spawn"]
    return {name: id(value) for name, value in vars(module).items()}

seen = {}
if sys.argv[1] == "before":
    seen["at first"], first = owners(), identities()
installation = rlaunch.paddle.install()
seen["installed"] = owners()
rlaunch.paddle.install().uninstall()  # The second installation undoes nothing.
seen["still installed"] = owners()
installation.uninstall()
seen["uninstalled"] = owners()
if sys.argv[1] == "before":
    seen["restored"] = identities() == first
installation.uninstall()
rlaunch.paddle.uninstall()
seen["uninstalled again"] = owners()
try:
    with rlaunch.paddle.install() as again:
        seen["inside"] = owners()
        import paddle
        seen["through the package"] = paddle.distributed.spawn.__module__
        raise KeyError("out")
except KeyError:
    seen["outside"] = owners()
rlaunch.paddle.install()
rlaunch.paddle.uninstall()
seen["at last"] = owners()
print(json.dumps(seen))
"""


@pytest.mark.parametrize("paddle", ["before", "not before"])
def test_install_replaces_and_uninstall_puts_back(paddle: str, tmp_path: Path) -> None:
    done = run(tmp_path, "-c", INSTALLING, paddle)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    theirs = ["paddle.distributed.spawn"] * len(REPLACED)
    mine = [f"rlaunch._spawn.{name}" for name in ("spawn", "spawn", "context")]
    mine += [f"rlaunch._spawn.plan.{name}" for name in ("ranks", "options", "paddle_devices")]
    expected: dict[str, Any] = {
        "installed": mine,
        "still installed": mine,
        "uninstalled": theirs,
        "uninstalled again": theirs,
        "inside": mine,
        "through the package": "rlaunch._spawn.spawn",
        "outside": theirs,
        "at last": theirs,
    }
    if paddle == "before":
        expected |= {"at first": theirs, "restored": True}
    assert seen == expected


BY_NAME = """
import os

def write(folder):
    name = os.environ["PADDLE_TRAINER_ID"]
    open(os.path.join(folder, name), "w").close()

if __name__ == "__main__":
    import sys
    from paddle.distributed import spawn
    import rlaunch.paddle

    theirs = spawn.__code__
    with rlaunch.paddle.install():
        context = spawn(write, args=(sys.argv[1],), nprocs=2)
        print(type(context).__module__)
        try:
            spawn(write, nproc=2)
        except ValueError as error:
            print(type(error).__name__)
    print(spawn.__code__ is theirs)
"""


def test_spawn_that_was_imported_by_name_before_runs_on_rlaunch(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(BY_NAME)
    done = run(tmp_path, "main.py", str(tmp_path), preloaded=True)
    assert done.stdout.split() == ["rlaunch._spawn.context", "ValueError", "True"], done.stderr
    assert {"0", "1"} <= {path.name for path in tmp_path.iterdir()}


def test_without_paddle_install_says_so(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['paddle'] = None\n"
        "import rlaunch.paddle\n"
        "try:\n    rlaunch.paddle.install()\n"
        "except ImportError as error:\n    print(error.name.partition('.')[0])\n"
        "rlaunch.paddle.uninstall()\n"
    )
    done = run(tmp_path, "-c", code)
    assert (done.stdout, done.returncode) == ("paddle\n", 0), done.stderr


# --- Training: a program that knows nothing of rlaunch --------------------------------------------------

TRAINING = """
import sys
import paddle
import paddle.distributed as dist


def train(steps):
    dist.init_parallel_env()
    rank = dist.get_rank()
    paddle.seed(7)
    layer = paddle.DataParallel(paddle.nn.Linear(3, 1))
    sgd = paddle.optimizer.SGD(learning_rate=0.1, parameters=layer.parameters())
    inputs = paddle.full([4, 3], float(rank + 1))
    losses = []
    for _ in range(steps):
        loss = layer(inputs).square().mean()
        loss.backward()
        sgd.step()
        sgd.clear_grad()
        losses.append(round(float(loss), 6))
    weight = [round(value, 6) for value in layer.parameters()[0].reshape([-1]).tolist()]
    started_by_rlaunch = "rlaunch._spawn.worker" in sys.modules
    return rank, dist.get_world_size(), losses, weight, started_by_rlaunch


if __name__ == "__main__":
    context = dist.spawn(train, args=(3,), nprocs=2)
    print([queue.get() for queue in context.return_queues], type(context).__module__)
"""
ON_RLAUNCH = """
import runpy
import rlaunch.paddle
with rlaunch.paddle.install():
    runpy.run_path("training.py", run_name="__main__")
"""


def test_an_unchanged_training_program_trains_the_same(tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text(TRAINING)
    outcomes = []
    for args, owner, mark in (
        (["training.py"], "paddle.distributed.spawn", False),
        (["-c", ON_RLAUNCH], "rlaunch._spawn.context", True),
    ):
        done = run(tmp_path, *args, preloaded=not mark)
        assert done.returncode == 0, done.stderr
        line = done.stdout.strip().splitlines()[-1]
        assert line.endswith(f" {owner}")
        ranks = json.loads(
            re.sub(r"[()]", lambda m: {"(": "[", ")": "]"}[m[0]], line.rpartition(" ")[0])
            .replace("True", "true")
            .replace("False", "false")
        )
        assert [rank[:2] + rank[4:] for rank in ranks] == [[0, 2, mark], [1, 2, mark]]
        outcomes.append([rank[2:4] for rank in ranks])
    theirs, mine = outcomes
    assert mine == theirs
    (losses_0, weight_0), (losses_1, weight_1) = mine
    assert weight_0 == weight_1, "the gradients have been averaged over the ranks"
    assert losses_0 != losses_1


# --- The pytest plugin ----------------------------------------------------------------------------------

SUITE = """
import sys
import pytest
import paddle.distributed as dist

THEIRS = sys.modules["paddle.distributed.spawn"]


def work(number):
    if number < 0:
        raise ValueError("negative")
    return number + 1


def test_spawn(request):
    context = dist.spawn(work, args=(1,), nprocs=1, backend="gloo", start_method="fork")
    assert [queue.get() for queue in context.return_queues] == [2]
    print("context of", type(context).__module__)


def test_failure():
    with pytest.raises(Exception, match="(?s)with the following error:.*ValueError: negative") as caught:
        dist.spawn(work, args=(-1,), nprocs=1, backend="gloo", start_method="fork")
    print("error of", type(caught.value).__module__)


def test_helpers():
    rows = THEIRS._get_subprocess_env_list(nprocs=2, options={"backend": "gloo"})
    assert [row["PADDLE_TRAINER_ID"] for row in rows] == ["0", "1"]
    print("helpers of", THEIRS._get_subprocess_env_list.__module__)
"""
BY_HAND = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
HEADER = "rlaunch: installed in place of the launchers of "


INSTALLED = [
    ({**BY_HAND, "RLAUNCH_INSTALL": "True"}, ["-p", "rlaunch.pytest_plugin"], True),
    ({"RLAUNCH_INSTALL": "1"}, ["-p", "no:rlaunch"], False),
    ({"RLAUNCH_INSTALL": "1"}, [], True),
    ({}, [], False),
]


@pytest.mark.parametrize(("environ", "args", "on_rlaunch"), INSTALLED[: cases(2, 4)])
def test_an_unchanged_suite(
    environ: dict[str, str], args: list[str], on_rlaunch: bool, tmp_path: Path
) -> None:
    (tmp_path / "test_theirs.py").write_text(SUITE)
    words = ["-m", "pytest", "-s", *QUICK, *args, "test_theirs.py"]
    # What is put in Paddle's place is put there when that is imported.
    done = run(tmp_path, *words, preloaded=not on_rlaunch, **environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    owners = re.findall(r"(context|error|helpers) of (\S+)", done.stdout)
    theirs = {
        "context": "paddle.distributed.spawn",
        "error": "builtins",
        "helpers": "paddle.distributed.spawn",
    }
    mine = {
        "context": "rlaunch._spawn.context",
        "error": "rlaunch.errors",
        "helpers": "rlaunch._spawn.plan.ranks",
    }
    assert dict(owners) == (mine if on_rlaunch else theirs)
    assert (HEADER in done.stdout) == on_rlaunch


CONFTEST_BY_NAME = """
import pytest
from paddle.distributed import spawn


@pytest.fixture
def start():
    return spawn
"""
SUITE_BY_NAME = """
def work():
    pass


def test_spawn(start):
    context = start(work, nprocs=1, backend="gloo", start_method="fork")
    print("context of", type(context).__module__)
"""


def test_a_conftest_that_imports_spawn_by_name_gets_rlaunchs(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST_BY_NAME)
    (tmp_path / "test_theirs.py").write_text(SUITE_BY_NAME)
    words = ["-m", "pytest", "-s", *QUICK, "test_theirs.py"]
    done = run(tmp_path, *words, RLAUNCH_INSTALL="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"context of (\S+)", done.stdout) == ["rlaunch._spawn.context"]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [*((v, True) for v in ("1", "true", "YES", "on")), *((v, False) for v in ("", "0", "no", "false"))],
)
def test_the_header_says_whether_it_is_installed(
    value: str, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLAUNCH_INSTALL", value)
    assert pytest_report_header() == ([f"{HEADER}paddle and torch"] if wanted else [])


def test_a_wrong_value_ends_the_session(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "pytest", *QUICK, RLAUNCH_INSTALL="2")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: RLAUNCH_INSTALL=2: unknown value; set it to 1 (all)" in done.stderr


def test_the_plugin_imports_no_paddle_unasked(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(
        "import sys\n\ndef test_it():\n    assert 'rlaunch.pytest_plugin' in sys.modules\n"
        "    assert 'paddle' not in sys.modules\n"
    )
    done = run(tmp_path, "-m", "pytest", "-q", *QUICK, "test_theirs.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
