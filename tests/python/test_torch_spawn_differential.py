"""``rlaunch.torch`` against the real ``torch.multiprocessing``: the same functions, told apart by nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CASES = Path(__file__).with_name("torch_cases.py")
OURS = ("rlaunch.torch", "rlaunch.torch")
THEIRS = ("torch.multiprocessing", "torch.multiprocessing.spawn")
STOPPED = "WARNING Terminating process N via signal SIGTERM"
KILLED = "WARNING Unable to shutdown process N via SIGTERM , forcefully exiting via SIGKILL"

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Ours, and torch's."""
    files = [tmp_path_factory.mktemp("answers") / "answers.json" for _ in range(2)]
    started = [
        subprocess.Popen(
            [sys.executable, CASES, module, logger, file], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        for (module, logger), file in zip((OURS, THEIRS), files, strict=True)
    ]
    said = [process.communicate()[1].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    return [json.loads(file.read_text()) for file in files]


def test_every_ending_is_told_alike(answers: list[dict[str, Any]]) -> None:
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
