"""Which processes of a rank say at which step it is: those that it has started, and no daemon of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launching import DAEMON, Place
from steps import PREEMPTED, ask, events, variables

STEPS = """
import rlaunch
step = 0
while not rlaunch.should_stop(step):
    step += 1
    if step == 5:
        tell("ready", os.getpid())
    time.sleep(0.001)
tell("stopped", step)
"""
FAR_AHEAD = "import rlaunch; assert not rlaunch.should_stop(10**12)"


def test_the_step_of_a_daemon_is_none_of_the_rank(place: Place, tmp_path: Path) -> None:
    """Else the ranks would be asked to stop at a step that they never reach."""
    place.script(f"""{DAEMON}
import rlaunch
if rank == 1:
    assert not rlaunch.should_stop(0)
    pid = run_daemon({FAR_AHEAD!r})
    until(lambda: is_gone(pid), "the end of the daemon")
    tell("ready", os.getpid())
    until(lambda: rlaunch.time_left() is not None, "the notice")
{STEPS}""")
    with place.start("--nproc_per_node=2", "train.py", env=variables(tmp_path / "run")) as launcher:
        place.ready(2)
        assert ask(tmp_path / "run", "preempt").status == 0
        ended = place.wait(launcher)
    assert ended.status == PREEMPTED, ended.stderr
    (step,) = {event["step"] for event in events(tmp_path / "log", "stop_step")}
    assert step < 10**12
    assert {place.text(f"stopped.{rank}") for rank in range(2)} == {str(step)}


# Programs that a rank starts and waits for.
WRAPPERS = {
    "a shell": "$PYTHON -u train.py; exit $?",
    "a session of its own": "setsid --wait $PYTHON -u train.py; exit $?",
    "another wrapper": "sh -c '$PYTHON -u train.py; exit $?'; exit $?",
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_rank_behind_a_wrapper_takes_part(place: Place, tmp_path: Path, wrapper: str) -> None:
    place.script(STEPS)
    path = tmp_path / "wrapper.sh"
    path.write_text(f"#!/bin/sh\n{WRAPPERS[wrapper]}\n")
    path.chmod(0o700)
    env = variables(tmp_path / "run", PYTHON=sys.executable)
    with place.start("--nproc_per_node=2", "./wrapper.sh", env=env) as launcher:
        place.ready(2)
        assert ask(tmp_path / "run", "preempt").status == 0
        ended = place.wait(launcher)
    assert ended.status == PREEMPTED, ended.stderr
    assert len({place.text(f"stopped.{rank}") for rank in range(2)}) == 1
