"""Processes that ranks of ``rlaunch.spawn`` start end with the job, and when the parent is killed."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from effort import each
from own_memory import OWN_MEMORY, SEES_ALL, needs_own_memory
from stress import METHODS, Parent, all_gone, eventually, guardians, wait_inside_join
from tree_parents import (
    forks_a_bystander,
    guardian_is_no_child_of_the_host,
    joins_for_ever,
    no_interpreter,
    parent_of_a_failing_sharer,
    parent_of_a_traced_rank,
    parent_of_forkers,
    parent_of_leavers,
    parent_of_markers,
    parent_of_sharers,
    parent_that_cannot_start_all_beside_a_traced_rank,
    parent_that_is_interrupted_beside_a_traced_rank,
    parent_that_is_its_executable,
    spawns_twice,
    two_threads,
    whose_guardian_ends_at_once,
)

each_method = each("method", METHODS)


@each_method
@pytest.mark.parametrize("end", ["well", "fail"])
def test_processes_that_ranks_leave_are_swept_and_named(method: str, end: str) -> None:
    with Parent(parent_of_leavers, method, end) as parent:
        messages: list[Any] = []
        while not isinstance(messages[-1:] and messages[-1], str):
            messages.append(parent.heard())
        left = [pid for item in messages[:-1] for pid in item["left"]]
        assert messages[-1] == ("fine" if end == "well" else "RankError")
        assert not any(map(psutil.pid_exists, left)) or all_gone(left, 2)
        parent.heard()
        assert parent.ends() == 0
        # A rank that is ended in the middle of this has left what it had.
        count = len(left) if end == "well" else r"\d+"
        assert re.search(rf"rlaunch: swept {count} leftover processes of the job \(", parent.complaints())
        assert parent.leaves_no_process()


@each_method
def test_processes_that_ranks_started_die_with_a_killed_parent(method: str) -> None:
    with Parent(parent_of_leavers, method, "stay") as parent:
        messages = [parent.heard() for _ in range(2)]
        left = [pid for item in messages for pid in [item["pid"], *item["left"]]]
        assert all(map(psutil.pid_exists, left))
        os.kill(parent.process.pid, signal.SIGKILL)
        assert all_gone(left, 2)
        assert parent.leaves_no_process()


@each_method
def test_processes_that_ranks_forked_without_an_execve_are_swept(method: str) -> None:
    with Parent(parent_of_forkers, method, "well") as parent:
        left = [pid for _ in range(2) for pid in parent.heard()["left"]]
        assert parent.heard() == "fine"
        assert all_gone(left, 2)
        assert parent.ends() == 0
        assert "rlaunch: swept 4 leftover processes of the job (" in parent.complaints()
        assert parent.leaves_no_process()


@each_method
def test_processes_that_ranks_forked_die_with_a_killed_parent(method: str) -> None:
    with Parent(parent_of_forkers, method, "stay") as parent:
        left = [
            pid
            for _ in range(2)
            for message in [parent.heard()]
            for pid in [message["pid"], *message["left"]]
        ]
        os.kill(parent.process.pid, signal.SIGKILL)
        assert all_gone(left, 2)
        assert parent.leaves_no_process()


@each_method
@pytest.mark.parametrize("end", ["well", "stay"])
def test_a_marked_process_outlives_its_rank_and_a_killed_parent(method: str, end: str) -> None:
    with Parent(parent_of_markers, method, end) as parent:
        message = parent.heard()
        kept, swept = message["left"]
        try:
            if end == "well":
                assert parent.heard() == "fine"
                assert parent.ends() == 0
                assert f"rlaunch: left running by RLAUNCH_NO_SWEEP: sleep (pid {kept})" in parent.complaints()
            else:
                os.kill(parent.process.pid, signal.SIGKILL)
            assert all_gone([message["pid"], swept], 2)
            assert psutil.Process(kept).cmdline() == ["sleep", "600"]
        finally:
            os.kill(kept, signal.SIGKILL)


@each_method
@pytest.mark.parametrize("end", ["well", "stay"])
def test_ranks_of_a_marked_program_and_their_forks_are_not_marked(
    method: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLAUNCH_NO_SWEEP", "1")
    with Parent(parent_of_forkers, method, end) as parent:
        left = [pid for _ in range(2) for pid in parent.heard()["left"]]
        if end == "well":
            assert parent.heard() == "fine"
            assert parent.ends() == 0
        else:
            os.kill(parent.process.pid, signal.SIGKILL)
        assert all_gone(left, 2)


def test_the_guardian_is_no_child_of_the_host() -> None:
    with Parent(guardian_is_no_child_of_the_host) as parent:
        assert [parent.heard() for _ in range(3)] == [1, [], "no child"]
        assert parent.ends() == 0
        assert parent.leaves_no_process()


def test_the_guardian_of_one_thread_lets_the_ranks_of_another_be() -> None:
    with Parent(two_threads) as parent:
        assert parent.heard() == "done"
        assert parent.ends() == 0
        assert parent.complaints() == ""
        assert parent.leaves_no_process()


def test_a_fork_of_the_parent_does_not_keep_the_guardian_waiting() -> None:
    with Parent(forks_a_bystander) as parent:
        message = parent.heard()
        os.kill(parent.process.pid, signal.SIGKILL)
        assert all_gone([message["pid"], *message["left"]], 2)


def test_ranks_run_where_no_guardian_can_be_started() -> None:
    with Parent(no_interpreter) as parent:
        assert parent.heard() == "done"
        assert parent.ends() == 0


@pytest.mark.parametrize("kind", ["frozen", "embeds", "names an interpreter"])
def test_the_guardian_does_not_run_the_program_a_second_time(tmp_path: Path, kind: str) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\n: > "$0.ran"\n')
    program.chmod(0o755)
    with Parent(parent_that_is_its_executable, kind, str(program)) as parent:
        message = parent.heard()
        has_guardian = guardians(parent) != []
        os.kill(parent.process.pid, signal.SIGKILL)
        assert all_gone([message["pid"]], 2)
        assert has_guardian == (kind == "names an interpreter")
        assert not has_guardian or all_gone(message["left"], 2)
    assert not program.with_suffix(".ran").exists()


def test_a_guardian_that_has_died_is_replaced() -> None:
    with Parent(spawns_twice) as parent:
        assert parent.heard() == "first"
        (guardian,) = guardians(parent)
        os.kill(guardian, signal.SIGKILL)
        assert all_gone([guardian])
        os.kill(parent.process.pid, signal.SIGUSR1)
        message = parent.heard()
        os.kill(parent.process.pid, signal.SIGKILL)
        assert all_gone([message["pid"], *message["left"]], 2)


@pytest.mark.parametrize("framework", ["paddle", "torch"])
def test_a_guardian_that_dies_during_a_join_is_replaced_at_once(framework: str) -> None:
    with Parent(joins_for_ever, framework) as parent:
        message = parent.heard()
        wait_inside_join(parent.process.pid)
        (guardian,) = guardians(parent)
        os.kill(guardian, signal.SIGKILL)
        assert all_gone([guardian])
        assert eventually(lambda: len(guardians(parent)) == 1)
        os.kill(parent.process.pid, signal.SIGKILL)
        assert all_gone([message["pid"], *message["left"]], 2)
        assert parent.leaves_no_process()


def test_a_guardian_that_cannot_run_is_not_started_without_end(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho >> "$0.ran"\n')
    program.chmod(0o755)
    ran = program.with_suffix(".ran")
    with Parent(whose_guardian_ends_at_once, str(program)) as parent:
        # The first one, and three that replace it.
        assert eventually(lambda: ran.exists() and ran.read_text() == "\n" * 4)
        program.with_suffix(".end").touch()
        assert parent.ends() == 0
    assert ran.read_text() == "\n" * 4


@each_method
def test_shared_memory_of_paddle_is_removed_by_the_guardian(method: str) -> None:
    with Parent(parent_of_sharers, method, "stay") as parent:
        worker, rank = map(Path, parent.heard())
        try:
            os.kill(parent.process.pid, signal.SIGKILL)
            deadline = time.monotonic() + 20
            while worker.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not worker.exists()
        finally:
            worker.unlink(missing_ok=True)
            rank.unlink(missing_ok=True)


@needs_own_memory
@each_method
@pytest.mark.parametrize("end", ["fail", "fail alone"])
def test_shared_memory_of_a_failed_rank_is_removed(method: str, end: str) -> None:
    """And of its worker, which may have ended before: then no process is seen to have the file."""
    with Parent(parent_of_sharers, method, end, prefix=OWN_MEMORY) as parent:
        worker, rank = parent.heard()
        unseen = [rank] if end == "fail" else [worker, rank]
        error, *left = parent.heard()
        assert (error, sorted(left)) == ("RankError", [] if SEES_ALL else sorted(unseen))


@needs_own_memory
@each_method
def test_shared_memory_of_a_process_that_ends_by_itself_during_the_stop_is_removed(
    method: str, tmp_path: Path
) -> None:
    with Parent(parent_of_a_failing_sharer, method, str(tmp_path), prefix=OWN_MEMORY) as parent:
        (name,) = {parent.heard(), parent.heard()} - {"ready"}
        os.kill(parent.process.pid, signal.SIGUSR2)
        assert parent.heard() == ["RankError", *([] if SEES_ALL else [name])]


def is_left_behind(rank: dict[str, int], complaints: str) -> bool:
    """Whether one line says so, and the ranks were stopped once."""
    line = (
        f"rlaunch: error: rank 0 (pid {rank['pid']}) has been killed, but a debugger (pid {rank['tracer']}) "
        "has not waited for it; it is left behind\n"
    )
    return complaints.count(line) == 1 and complaints.count("waiting up to") <= 1


after_each = pytest.mark.parametrize("after_torch", [False, True])


@after_each
def test_a_rank_that_cannot_be_reaped_is_named_and_not_waited_for_at_exit(after_torch: bool) -> None:
    with Parent(parent_of_a_traced_rank, after_torch) as parent:
        rank = parent.heard()
        assert parent.heard().lower() == "process 1 terminated with exit code 3" + "." * (not after_torch)
        # The rank's descriptor is readable all the time.
        assert parent.heard() < 1, "the wait is not idle"
        assert parent.heard() == [[], {}]
        assert parent.ends() == 0
        assert is_left_behind(rank, parent.complaints())
        os.kill(rank["tracer"], signal.SIGKILL)
        assert parent.leaves_no_process()


@after_each
def test_after_an_interrupt_a_rank_that_cannot_be_reaped_is_not_waited_for_again(after_torch: bool) -> None:
    with Parent(parent_that_is_interrupted_beside_a_traced_rank, after_torch) as parent:
        rank = parent.heard()
        wait_inside_join(parent.process.pid)
        parent.process.send_signal(signal.SIGINT)
        assert parent.heard() == []
        assert parent.ends() == 0
        assert is_left_behind(rank, parent.complaints())
        os.kill(rank["tracer"], signal.SIGKILL)
        assert parent.leaves_no_process()


def test_a_failed_start_ends_the_ranks_whatever_is_raised_and_leaves_behind_what_cannot_be_reaped() -> None:
    with Parent(parent_that_cannot_start_all_beside_a_traced_rank) as parent:
        rank = parent.heard()
        assert parent.heard() == ["of the user", []]
        assert parent.ends() == 0
        assert is_left_behind(rank, parent.complaints())
        os.kill(rank["tracer"], signal.SIGKILL)
        assert parent.leaves_no_process()
