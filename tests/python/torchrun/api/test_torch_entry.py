"""Functions as ranks' programs (``_elastic.function_worker``), and ``LaunchConfig`` against torch's."""

from __future__ import annotations

import json
import os
import pickle
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from paths import PYTHONPATH
from preloaded import python
from rlaunch._elastic import function_worker
from rlaunch.errors import NoResultError
from rlaunch.torch import LaunchConfig

# A program that sends functions of its own; FUNCTION is an expression, and its value is called with ARGS.
PROGRAM = """
import os, subprocess, sys
from rlaunch._elastic import function_worker

class Held:
    def __init__(self, value):
        self.value = value

def rank(*args):
    return int(os.environ["RANK"]), args, sys.argv[1:], __name__, os.getcwd()

def held(value):
    return Held(value)

def main():
    function_worker.dump_call({function}, {args}, "payload")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "rlaunch._elastic.function_worker", "payload", "results"],
            env={{**os.environ, "RANK": str(i), "TORCHELASTIC_ERROR_FILE": f"error.{{i}}.json"}},
        )
        for i in range(2)
    ]
    print([rank.wait() for rank in ranks])
    results = function_worker.load_results("results", range(2))
    print([value.value if type(value) is Held else value for value in results.values()])

{guard}main()
"""
GUARD = 'if __name__ == "__main__": '


def run(
    folder: Path, function: str, args: str, guard: str = GUARD, stdin: bool = False, **environ: str
) -> subprocess.CompletedProcess[str]:
    (folder / "results").mkdir()
    script = folder / "program.py"
    text = PROGRAM.format(function=function, args=args, guard=guard)
    script.write_text(text)
    command = [sys.executable, "-", "a", "b"] if stdin else [sys.executable, str(script), "a", "b"]
    return subprocess.run(
        command,
        input=text if stdin else None,
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def without_cloudpickle(folder: Path) -> dict[str, str]:
    """As on a machine where it is not installed."""
    hidden = folder / "hidden"
    hidden.mkdir()
    (hidden / "cloudpickle.py").write_text("raise ImportError(__name__)")
    return {"PYTHONPATH": str(hidden)}


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_function_of_a_script_runs_as_in_multiprocessing(tmp_path: Path) -> None:
    lines = lines_of(run(tmp_path, "rank", "(1, 'x')", **without_cloudpickle(tmp_path)))
    expected = [(i, (1, "x"), ["a", "b"], "__mp_main__", str(tmp_path)) for i in range(2)]
    assert lines == ["[0, 0]", str(expected)]
    for name in ("payload", "results/0.pickle", "results/1.pickle"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path / "results")) == ["0.pickle", "1.pickle"]


def test_classes_of_a_script_come_back_as_they_are(tmp_path: Path) -> None:
    assert lines_of(run(tmp_path, "held", "('kept',)"))[1] == "['kept', 'kept']"


def test_a_lambda_is_sent_whole(tmp_path: Path) -> None:
    assert lines_of(run(tmp_path, "lambda x: x * 2", "(21,)"))[1] == "[42, 42]"


def test_without_cloudpickle_a_lambda_is_refused_with_reason(tmp_path: Path) -> None:
    done = run(tmp_path, "lambda x: x", "(1,)", **without_cloudpickle(tmp_path))
    assert done.returncode == 1
    assert "cannot be sent to the ranks: entrypoint: function main.<locals>.<lambda>\n" in done.stderr
    assert done.stderr.endswith("install cloudpickle, which pickles it by value.\n")
    assert not (tmp_path / "payload").exists()


def test_a_function_of_a_program_without_a_file_is_sent_whole(tmp_path: Path) -> None:
    lines = lines_of(run(tmp_path, "rank", "()", stdin=True))
    assert lines == ["[0, 0]", str([(i, (), ["a", "b"], "__main__", str(tmp_path)) for i in range(2)])]


def test_a_script_without_a_main_guard_is_an_error_that_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, "rank", "()", guard="")
    assert "if __name__ == '__main__':" in done.stderr
    assert done.stdout == "[1, 1]\n"


# --- One rank ---------------------------------------------------------------------------------------------


def one_rank(folder: Path, function: Any, *args: Any) -> tuple[int, str]:
    """Its exit status and stderr."""
    payload = folder / "payload"
    function_worker.dump_call(function, args, str(payload))
    environ = {
        **os.environ,
        "RANK": "5",
        "TORCHELASTIC_ERROR_FILE": str(folder / "error.json"),
        "PYTHONPATH": PYTHONPATH,
    }
    done = subprocess.run(
        [sys.executable, "-m", "rlaunch._elastic.function_worker", payload, folder],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stderr


def error(folder: Path) -> Any:
    return json.loads((folder / "error.json").read_text())["message"]


def test_exceptions_are_recorded(tmp_path: Path) -> None:
    status, said = one_rank(tmp_path, divmod, 1, 0)
    assert status == 1
    assert "ZeroDivisionError" in said
    assert error(tmp_path)["message"].startswith("ZeroDivisionError: ")
    with pytest.raises(NoResultError, match="the result of rank 5 is not there"):
        function_worker.load_results(str(tmp_path), [5])


@pytest.mark.parametrize(("code", "status"), [(0, 0), (3, 3), ("text", 1)])
def test_an_exit_is_an_exit_and_0_a_return(tmp_path: Path, code: Any, status: int) -> None:
    assert one_rank(tmp_path, sys.exit, code)[0] == status
    assert not (tmp_path / "error.json").exists()
    if status == 0:
        assert function_worker.load_results(str(tmp_path), [5]) == {5: None}


def give_a_lock() -> Any:
    import threading

    return threading.Lock()


def test_a_result_that_cannot_be_pickled_is_an_error(tmp_path: Path) -> None:
    status, said = one_rank(tmp_path, give_a_lock)
    assert status == 1
    assert error(tmp_path)["message"].startswith(
        "TypeError: cannot be sent to the parent: result: _thread.lock\ncannot pickle "
    )
    assert said.splitlines()[-1].startswith("Send the values that result is created from")
    assert "another exception" not in said
    assert not (tmp_path / "5.pickle").exists()


def test_an_argument_that_cannot_be_pickled_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^cannot be sent to the ranks: args\[1\]: _thread.lock\n") as caught:
        function_worker.dump_call(print, (1, give_a_lock()), str(tmp_path / "payload"))
    assert caught.value.__context__ is None
    assert not (tmp_path / "payload").exists()


def give_a_socket() -> Any:
    import socket

    return socket.socket()


def test_a_descriptor_is_not_sent_through_a_file(tmp_path: Path) -> None:
    # multiprocessing would serve it from the sender, which may have ended, to the first reader alone.
    with (
        give_a_socket() as link,
        pytest.raises(TypeError, match=r"^cannot be sent to the ranks: args\[0\]: socket"),
    ):
        function_worker.dump_call(print, (link,), str(tmp_path / "payload"))
    assert one_rank(tmp_path, give_a_socket)[0] == 1
    assert error(tmp_path)["message"].startswith("TypeError: cannot be sent to the parent: result: socket")


class Landmine:
    def __reduce__(self) -> Any:
        return int, ("bang",)


def test_arguments_that_cannot_be_unpickled_are_recorded(tmp_path: Path) -> None:
    status, _ = one_rank(tmp_path, print, Landmine())
    assert status == 1
    assert "bang" in error(tmp_path)["message"]


def test_proxies_of_a_manager_work(tmp_path: Path) -> None:
    from multiprocessing import Manager

    with Manager() as manager:
        shared = manager.list()
        assert one_rank(tmp_path, put_into, shared)[0] == 0
        assert list(shared) == ["put"]


def put_into(shared: Any) -> None:
    shared.append("put")


def test_results_may_be_large(tmp_path: Path) -> None:
    assert one_rank(tmp_path, bytes, 50_000_000)[0] == 0
    assert len(pickle.loads((tmp_path / "5.pickle").read_bytes())) == 50_000_000


# --- LaunchConfig -----------------------------------------------------------------------------------------

REAL = textwrap.dedent(
    """
    import dataclasses, json
    from torch.distributed.launcher import LaunchConfig
    fields = dataclasses.fields(LaunchConfig)
    made = [LaunchConfig(1, 2, 4, **more) for more in ({}, {"rdzv_timeout": 7}, {"shutdown_timeout": 0})]
    said = [{f.name: getattr(c, f.name) for f in fields} for c in made]
    print(json.dumps([[f.name for f in fields], said], default=lambda _: None))
    """
)


def test_the_configuration_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", raising=False)
    done = subprocess.run([*python("torch"), "-c", REAL], capture_output=True, text=True, check=True)
    names, configs = json.loads(done.stdout)
    ours = [
        LaunchConfig(1, 2, 4),
        LaunchConfig(1, 2, 4, rdzv_timeout=7),
        LaunchConfig(1, 2, 4, shutdown_timeout=0),
    ]
    # Where torch has made an object, None stands for it.
    assert [vars(config) for config in ours] == configs
    assert list(vars(ours[0])) == names


def test_the_time_to_stop_in_may_come_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7")
    assert LaunchConfig(1, 1, 1).shutdown_timeout == 7
    assert LaunchConfig(1, 1, 1, shutdown_timeout=9).shutdown_timeout == 9
    with pytest.raises(ValueError, match="shutdown_timeout must be non-negative, got -1"):
        LaunchConfig(1, 1, 1, shutdown_timeout=-1)
