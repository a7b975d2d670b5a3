"""``rlaunch.torch`` against the real ``torch.multiprocessing``: the same functions, with no difference."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from preloaded import python
from sharing import once

CASES = Path(__file__).with_name("torch_cases.py")
OURS = ("rlaunch.torch", "rlaunch.torch")
THEIRS = ("torch.multiprocessing", "torch.multiprocessing.spawn")
STOPPED = "WARNING Terminating process N via signal SIGTERM"
KILLED = "WARNING Unable to shutdown process N via SIGTERM , forcefully exiting via SIGKILL"

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Ours, and torch's."""
    return once(tmp_path_factory, "answers", answers_of)


def answers_of(folder: Path) -> list[dict[str, Any]]:
    files = [folder / f"{module}.json" for module, _ in (OURS, THEIRS)]
    started = [
        subprocess.Popen(
            [*python("torch"), CASES, module, logger, file], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        for (module, logger), file in zip((OURS, THEIRS), files, strict=True)
    ]
    said = [process.communicate()[1].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    return [json.loads(file.read_text()) for file in files]


def test_every_end_is_reported_alike(answers: list[dict[str, Any]]) -> None:
    ours, theirs = (each["endings"] for each in answers)
    assert len(theirs) > 35
    assert {name: ours[name] for name in theirs if ours[name] != theirs[name]} == {}
    failed = [answer for answer in ours.values() if isinstance(answer, dict)]
    assert {answer["type"] for answer in failed} == {"ProcessRaisedException", "ProcessExitedException"}
    for promise in ("is the message", "is of the process", "is the same when pickled"):
        assert all(answer[promise] for answer in failed), promise


def test_join_returns_and_raises_alike(answers: list[dict[str, Any]]) -> None:
    ours, theirs = answers
    assert ours["joins"] == theirs["joins"]
    assert ours["steps"] == theirs["steps"]
    assert theirs["steps"][-1] == [-15, -15, 9]


def test_ranks_are_stopped_alike(answers: list[dict[str, Any]]) -> None:
    ours, theirs = answers
    assert ours["lines"] == theirs["lines"]
    assert set(ours["lines"]) == {STOPPED}
    assert ours["in grace"] == theirs["in grace"]
    assert ours["in grace"][0][1] == [0, 3]
    assert ours["in grace"][1] == []
    assert ours["grace over"] == theirs["grace over"]
    assert ours["grace over"][0][1] == [-9, 4]
    assert ours["grace over"][1] == [STOPPED, KILLED]


# --- In a program that has imported torch -----------------------------------------------------------------

PROGRAM = """
import pickle, sys
import torch
import torch.multiprocessing as mp
from rlaunch.errors import TORCH_ERRORS, ChildFailedError, ProcessFailure, peer_class, record
from rlaunch.torch import start_processes

def add(i, tensor):
    tensor += 1
    raise RuntimeError("enough")

def leave(i):
    sys.exit(3)

def raised(method, function, *args):
    try:
        start_processes(function, args, start_method=method)
    except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
        return error

def main():
    from torch.distributed.elastic.multiprocessing import errors

    tensor = torch.zeros(2).share_memory_()
    for kind, error in (
        (mp.ProcessRaisedException, raised("spawn", add, tensor)),
        (mp.ProcessExitedException, raised("fork", leave)),
    ):
        assert isinstance(error, kind), error
        again = pickle.loads(pickle.dumps(error))
        assert isinstance(again, kind), again
        assert (again.args, again.error_pid) == (error.args, error.error_pid)

    failed = peer_class(ChildFailedError, TORCH_ERRORS)("job", {0: ProcessFailure(0, 1, 1, "")}, root=0)
    assert isinstance(failed, errors.ChildFailedError)
    assert str(pickle.loads(pickle.dumps(failed))) == str(failed)
    handled = []

    class Handler(errors.ErrorHandler):
        def record_exception(self, error):
            handled.append(error)

    try:
        record(main_of_a_rank, Handler())()
    except ZeroDivisionError as error:
        assert handled == [error]
    else:
        raise AssertionError("nothing was raised")
    print(tensor.tolist())

def main_of_a_rank():
    1 / 0

if __name__ == "__main__":
    main()
"""


def test_torchs_except_clauses_and_tensors_work(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = subprocess.run([*python("torch"), script], capture_output=True, text=True, check=False)
    assert done.stdout == "[1.0, 1.0]\n", done.stderr
