"""The faults that a chaos run draws, and that its judge notices each violation."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

import bars
import chaos
import chaos_judge
import pytest
from chaos_judge import AFTER_THAW, Findings, Hold, Life, judge
from chaos_plan import AT_ONCE, LEASE, OF_ETCD, Kind, burst

DOCS = Path(__file__).parents[2] / "docs"


def test_bursts_are_drawn_from_the_seed_and_their_number_alone() -> None:
    assert burst(1, 0, 3) == burst(1, 0, 3)
    assert len({tuple(burst(seed, seed, number)) for seed in (1, 2) for number in range(50)}) == 100


def test_no_two_faults_are_at_one_place_at_once_and_all_kinds_come() -> None:
    drawn: set[Kind] = set()
    longest = 0.0
    for number in range(200):
        last: dict[object, float] = {}
        for fault in burst(1, 0, number):
            place = "etcd" if fault.kind in OF_ETCD else fault.target
            assert fault.begin >= last.get(place, 0.0)
            assert (fault.begin == fault.end) == (fault.kind in AT_ONCE)
            last[place] = fault.end
            drawn.add(fault.kind)
            longest = max(longest, fault.end - fault.begin)
    assert drawn == set(Kind)
    assert longest > 2 * LEASE


def life(of: int, began: float, last: float, rank: int = 0, node: int = 0, world: int = 2) -> Life:
    return Life(of, rank, node, world, began, last)


FIRST = [life(1, 0, 10), life(1, 0, 9, rank=1, node=1)]
SECOND = life(2, 11, 20, world=1)


def began(of: int, time: float, step: int) -> dict[str, Any]:
    return {"event": "began", "round": of, "time": time, "step": step}


def saved(of: int, time: float, step: int) -> dict[str, Any]:
    return {"event": "saved", "round": of, "time": time, "step": step}


def test_rounds_one_after_another_have_no_fault() -> None:
    journal = [began(1, 1, 0), saved(1, 5, 5), saved(1, 9, 10), began(2, 12, 10), saved(2, 15, 15)]
    assert judge([*FIRST, SECOND], [], journal) == Findings(rounds=2, saved=3, margin=2)


def test_a_rank_that_outlives_its_round_is_an_overlap() -> None:
    late = [FIRST[0], life(1, 0, 11.5, rank=1, node=1)]
    findings = judge([*late, SECOND], [], [])
    assert findings.overlaps == 1
    assert findings.faults == ["rank 1 of round 1 on node 1 ran for 0.500 s beside round 2"]


def test_a_clock_tick_is_no_overlap() -> None:
    """The kernel says when a process began in clock ticks, rounded down."""
    assert judge([*FIRST, life(2, 9.995, 20)], [], []).overlaps == 0
    assert judge([*FIRST, life(2, 9.985, 20)], [], []).overlaps == 1


def test_so_is_one_that_outlives_two() -> None:
    late = [life(1, 0, 30), life(2, 11, 20), life(3, 21, 40)]
    assert judge(late, [], []).overlaps == 2


@pytest.mark.parametrize("after", [AFTER_THAW / 2, AFTER_THAW * 2])
def test_a_frozen_rank_has_a_moment_to_end_once_it_is_thawed(after: float) -> None:
    thawed = life(1, 0, 15 + after, rank=1, node=1)
    findings = judge([FIRST[0], thawed, SECOND], [Hold(1, 8, 15)], [])
    assert findings.thawed == [pytest.approx(after)]
    assert findings.overlaps == (after > AFTER_THAW)
    # No reason: another node's freeze, one after the newer round began, one before it, one within the lease.
    for frozen in (Hold(0, 8, 15), Hold(1, 12, 15), Hold(1, 5, 9.5), Hold(1, 9, 11.2)):
        assert judge([FIRST[0], thawed, SECOND], [frozen], []).overlaps == 1


def test_two_sets_of_ranks_with_one_number_are_a_fault() -> None:
    assert judge([*FIRST, life(1, 3, 6)], [], []).faults == ["round 1 began twice: [0, 0, 1] of worlds {2}"]
    assert judge([*FIRST, life(1, 3, 6, rank=2, world=3)], [], []).faults


def test_a_round_that_begins_before_what_was_saved_has_lost_a_checkpoint() -> None:
    findings = judge([], [], [began(1, 1, 0), saved(1, 5, 5), saved(1, 9, 10), began(2, 12, 5)])
    assert findings.lost == 1
    assert findings.faults == ["round 2 began at step 5, though 10 was saved"]


def test_what_an_older_round_saves_later_counts_apart() -> None:
    findings = judge(
        [], [], [began(1, 1, 0), saved(1, 5, 5), began(2, 12, 5), saved(1, 13, 10), began(3, 20, 5)]
    )
    assert (findings.lost, findings.stale) == (0, 1)


def test_a_wrong_checkpoint_is_a_lost_one() -> None:
    corrupt = {"event": "corrupt", "round": 2, "time": 12, "step": 10}
    findings = judge([], [], [began(1, 1, 0), saved(1, 5, 10), corrupt])
    assert findings.faults == ["round 2 found a wrong checkpoint of step 10"]


def write_life(folder: Path, pid: int, node: int, last: str) -> None:
    head = {"round": 1, "rank": node, "node": node, "world": 2, "began": 1.0, "pid": pid}
    (folder / f"life.1.{node}.{node}.{pid}").write_text(json.dumps(head) + "\n" + last)


def test_a_rank_lives_until_it_wrote_last_or_until_its_process_ended(tmp_path: Path) -> None:
    write_life(tmp_path, 7, 0, "5.0\n")
    write_life(tmp_path, 8, 1, "6.0\n")
    write_life(tmp_path, 9, 2, "")
    assert {one.node: one.last for one in chaos_judge.lives(tmp_path)} == {0: 5.0, 1: 6.0}
    ends = {7: 5.5, 8: 20.0}
    assert {one.node: one.last for one in chaos_judge.lives(tmp_path, ends)} == {0: 5.5, 1: 20.0}
    # The kernel held node 1's rank, which was killed, until its log folder did not hang any more.
    hung = [Hold(1, 4, 20.5), Hold(0, 6, 7)]
    assert {one.node: one.last for one in chaos_judge.lives(tmp_path, ends, hung)} == {0: 5.5, 1: 6.0}


def test_an_entry_that_a_kill_has_cut_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "journal.2.8").write_text(json.dumps(saved(2, 9, 10)) + "\n" + '{"event": "sav')
    (tmp_path / "journal.1.7").write_text(json.dumps(began(1, 1, 0)) + "\n")
    assert [entry["time"] for entry in chaos_judge.journal(tmp_path)] == [1, 9]


def test_the_picture_is_of_the_page() -> None:
    """`make chaos` writes both; who edits one has to write the other."""
    page = (DOCS / "chaos.md").read_text()
    assert bars.image("chaos", chaos.ALT) in page
    picture = (DOCS / "chaos.svg").read_text()
    assert picture == chaos.picture(page)
    summary, kinds = bars.tables(page)
    counts = [dict(summary.rows)[name].split()[0] for name in chaos.COUNTS]
    assert re.findall(r">(\d+)</text>", picture) == [*counts, *(times for _, times, *_ in kinds.rows)]
    median, most = re.findall(r"([\d.]+ s)", dict(summary.rows)[chaos.RECOVERED])
    assert re.findall(r">([\d.]+ s)</text>", picture) == [median, most]


def test_a_run_that_was_cut_short_has_a_page_with_a_picture() -> None:
    page = chaos.Run(1).page()
    assert bars.image("chaos", chaos.ALT) in page
    assert all(f">{escape(kind.value)}<" in chaos.picture(page) for kind in Kind)
