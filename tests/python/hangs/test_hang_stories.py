"""Ten ways in which jobs hang, with real torch and Paddle: the launcher names the odd rank.

One that is silent but makes steps must not be called a hang.
"""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from effort import FULL
from launching import Place, environment, until, validate

STORIES = Path(__file__).with_name("stories")
TIMEOUT = 2
# Paddle's processes take twice as long to start: `make test-full`.
FRAMEWORKS = ("torch", "paddle") if FULL else ("torch",)


class Story(NamedTuple):
    """The name of a script, the ranks that are named, and what the report says of them."""

    name: str
    odd: list[int]
    text: str
    frameworks: tuple[str, ...] = ("torch", "paddle")


TALES = [
    Story(
        "barrier_mismatch",
        [2],
        r"rank 2 is the odd one: .* barrier.*, and rank 2 is waiting .* in all_reduce",
    ),
    Story(
        "data_loader_lock",
        [1],
        r"the others wait in all_reduce, and rank 1 is in \S*get \(.*data_loader_lock\.py:\d+\)",
    ),
    Story("stopped_rank", [1], r"rank 1 is the odd one: stopped by a signal"),
    Story(
        "crossed_collectives",
        [0],
        r"rank 0 is the odd one: 2 others are waiting .*reduce_experts",
        ("torch",),
    ),
    Story(
        "crossed_collectives", [0], r"rank 0 is the odd one: 2 others are waiting .*broadcast", ("paddle",)
    ),
    Story("c_sleep", [2], r"and rank 2 is in preprocess \(.*c_sleep\.py:\d+\)"),
    Story("slow_read", [1], r"and rank 1 is in read_sample \(.*slow_read\.py:\d+\)"),
    Story("import_hang", [2], r"and rank 2 is in <module> \(.*waits_at_import\.py:7\)"),
    Story("stuck_at_exit", [1], r"and rank 1 is at its exit, in _shutdown"),
    Story("data_loader_worker", [1], r"__getitem__ \(.*data_loader_worker\.py:\d+\)", ("torch",)),
    Story(
        "dead_peer", [], r"rank 1 has ended(, and the others wait for it in new_group|; the others are in )"
    ),
    Story(
        "dead_peer_store",
        [],
        r"rank 1 has ended; the others are in <module> \(.*dead_peer_store\.py:\d+\)",
        ("torch",),
    ),
]
# Each job imports torch: the others are for `make test-full`.
SOME = ("data_loader_lock", "stopped_rank", "dead_peer", "stuck_at_exit")
CASES = [
    pytest.param(story, framework, id=f"{story.name}-{framework}")
    for story in TALES
    for framework in story.frameworks
    if framework in FRAMEWORKS and (FULL or story.name in SOME)
]


def launch(place: Place, story: str, framework: str, *more: str) -> subprocess.Popen[bytes]:
    script = STORIES / f"{framework}_jobs" / f"{story}.py"
    options = ["--frameworks", framework, "--nproc_per_node=3", "--grace_period=0", f"--preload={framework}"]
    env = environment(PYTHONPATH=str(STORIES), OMP_NUM_THREADS="1")
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return place.popen(*options, *more, str(script), env=env, **pipes)


@pytest.mark.parametrize(("story", "framework"), CASES)
def test_a_hang_is_called_and_its_rank_named(story: Story, framework: str, place: Place) -> None:
    with place.cleaned(launch(place, story.name, framework, f"--hang_timeout={TIMEOUT}")) as launcher:
        log = place.folder / "log/rlaunch/events.jsonl"
        until(lambda: log.exists() and [one for one in place.events() if one["event"] == "hang"], "a hang")
        launcher.send_signal(signal.SIGTERM)
        ended = place.wait(launcher)
    hang = next(one for one in place.events() if one["event"] == "hang")
    validate(hang, "events")
    assert hang["report"] in ended.stderr
    assert re.search(story.text, hang["report"]), hang["report"]
    assert hang["odd"] == story.odd, hang["report"]
    assert hang["silent_seconds"] >= TIMEOUT
    assert re.match(r"the job seems to hang: no rank has written anything for [\d.]+ s, ", hang["report"])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_silent_job_that_makes_steps_is_no_hang(framework: str, place: Place) -> None:
    arguments = (f"--hang_timeout={TIMEOUT}", "--log_level=DEBUG")
    with place.cleaned(launch(place, "silent_but_moving", framework, *arguments)) as launcher:
        assert launcher.stderr is not None
        looks = 0
        for line in launcher.stderr:
            assert b"seems to hang" not in line, place.events()[-1]
            looks += b"for --hang_timeout: Moved" in line
            if looks == 3:
                break
        launcher.send_signal(signal.SIGTERM)
        assert "seems to hang" not in place.wait(launcher).stderr
