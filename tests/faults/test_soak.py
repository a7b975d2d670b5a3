"""A short soak of rlaunch, and launchers that break each promise, to see that it is noticed."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

import bars
import pytest
import soak
import soak_run
from launchers import LAUNCHERS, Launcher
from soak_plan import Plan, Rank, draw
from soak_run import Run

SEED = 20261121
RUNS = range(5)


@pytest.mark.parametrize("run", RUNS)
def test_rlaunch_keeps_its_promises_in_random_signals(run: int) -> None:
    seen = soak.one(SEED, run, LAUNCHERS["rlaunch"])
    assert not seen.faults, f"soak.py --seed {SEED} --only {run}: {seen.faults}"


def test_a_run_is_drawn_from_the_seed_and_its_number_alone() -> None:
    assert draw(SEED, 3) == draw(SEED, 3)
    assert len({draw(seed, run) for seed in (1, 2) for run in range(50)}) == 100


@dataclass(frozen=True)
class Careless(Launcher):
    """A few lines of shell, as many people have them."""

    shell: str = ""

    def command(self, ranks: int, logs: Path) -> list[str]:
        start = (
            f'for rank in $(seq 0 {ranks - 1}); do RANK=$rank WORLD_SIZE={ranks} "{self.python}" "$@" & done'
        )
        return ["bash", "-c", self.shell.replace("START", start), "careless"]


WELL = Rank("obeys", 0.0, 0, None, ("code", 0), 1, (), 0)
STOPPED = Plan(1, 0, (WELL, WELL), 0.2, (), frozenset(), 0, False, (), 0.1)
FAILS = dataclasses.replace(STOPPED, ranks=(dataclasses.replace(WELL, after=0.0, end=("code", 3)),), last=9.0)
ENDS = dataclasses.replace(STOPPED, ranks=(dataclasses.replace(WELL, after=0.0),), last=9.0)
RECORDS = "cd log; mkdir rlaunch; cd rlaunch"


@pytest.mark.parametrize(
    ("shell", "plan", "fault"),
    [
        ("START; wait", STOPPED, "(a) 2 survivors (2 rank)"),
        ("START; wait", FAILS, "(b) exit 0, but rank 0 ended with code 3"),
        ("trap '' INT; START; wait", STOPPED, "(c) no end "),
        ("START; wait; sleep 2.5; exit 3", FAILS, "(c) ended "),
        ("trap 'kill $(jobs -p); exit 66' INT; START; wait", STOPPED, "(d) exit 66 is none"),
        ("START; wait; echo thread main panicked at here >&2", ENDS, "(e) its stderr has 'panicked at'"),
        (f"START; wait; {RECORDS}; echo '{{}}' > events.jsonl", ENDS, "(f) ValidationError"),
        (f"START; wait; {RECORDS}; > events.jsonl", ENDS, "(f) FileNotFoundError"),
    ],
    ids=["orphans", "exit 0", "deaf", "slow", "odd status", "panic", "bad record", "no result"],
)
def test_faults_of_a_careless_launcher_are_found(
    shell: str, plan: Plan, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak_run, "CROWDED", 0.0)
    launcher = Careless("careless", "", lambda ranks, logs: [], "", 0.2, ours=fault[1] in "ef", shell=shell)
    seen = Run(plan, launcher, tmp_path).go(lambda: None).faults
    assert [text for text in seen if text.startswith(fault)], seen


def test_the_page_has_figures_and_broken_promises() -> None:
    figures = soak.Figures(SEED, LAUNCHERS["rlaunch"])
    seen = soak.one(SEED, 0, LAUNCHERS["rlaunch"])
    figures.add(0, dataclasses.replace(seen, faults=["(a) 1 survivor"]))
    page = figures.page()
    assert f"| seed | {SEED} |\n" in page
    assert "| runs | 1 |\n" in page
    assert f"- run 0 of seed {SEED}: (a) 1 survivor\n" in page
    assert bars.image("soak", soak.ALT) in page
    assert ">promises broken<" in soak.picture(page)


def test_the_picture_is_of_the_page() -> None:
    """`make soak` writes both; who edits one has to write the other."""
    page = (soak_run.DOCS / "soak.md").read_text()
    assert bars.image("soak", soak.ALT) in page
    picture = (soak_run.DOCS / "soak.svg").read_text()
    assert picture == soak.picture(page)
    of = dict(bars.tables(page)[0].rows)
    hit = [words.rpartition(" ")[2] for words in of["members hit"].split(", ")]
    counts = [of["runs"], of["signals sent"].partition(":")[0], of["promises broken"], *hit]
    assert re.findall(r">(\d+)</text>", picture) == counts
    assert f">{of['latest stop'].split()[2]} s<" in picture


def test_a_soak_without_a_stop_has_a_picture() -> None:
    picture = soak.picture(soak.Figures(SEED, LAUNCHERS["rlaunch"]).page())
    assert ">0</text>" in picture
    assert "Latest stop" not in picture
