"""Which figures break a promise, and how a row reads."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from pathlib import Path

import pytest
from bars import LABELS, VALUES, WIDTH
from bench import ABOUT, replace_sections
from bench_launchers import BEFORE, LAUNCHERS, PADDLE, RLAUNCH, TORCHRUN
from figures import Cell, Figures, Promise, Row
from picture import DRAWN, charts, picture
from sections import newcomers
from session import Session

ROOT = Path(__file__).resolve().parent.parent


def row(ours: Cell, promise: Promise | None, **rivals: Cell) -> Row:
    return Row("crash", "p50", "ms", {RLAUNCH.name: ours, **rivals}, promise)


@pytest.mark.parametrize(
    ("ours", "promise", "rivals"),
    [
        (15.0, Promise("V3", most=15), {}),
        (0.0, Promise("V5", most=0), {}),
        (10.0, Promise("V6", least=10), {}),
        (10.0, Promise("V1", times_less=40), {"paddle": 400.0, "torchrun": "not installed"}),
        (99.0, None, {"paddle": 1.0}),
    ],
)
def test_a_limit_that_is_just_reached_is_kept(
    ours: Cell, promise: Promise | None, rivals: dict[str, Cell]
) -> None:
    assert list(row(ours, promise, **rivals).broken()) == []


@pytest.mark.parametrize(
    ("ours", "promise", "rivals", "words"),
    [
        (15.1, Promise("V3", most=15), {}, "V3, crash: p50: 15.1 ms, promised at most 15 ms"),
        (9.0, Promise("V6", least=10), {}, "V6, crash: p50: 9 ms, promised at least 10 ms"),
        ("stalls", Promise("V6", most=1.5), {}, "V6, crash: p50: stalls"),
        (
            10.0,
            Promise("V1", times_less=40),
            {"paddle": 500.0, "torchrun": 395.0},
            "V1, crash: p50: 39.5 times less than torchrun, promised 40 times",
        ),
    ],
)
def test_a_broken_limit_is_named(ours: Cell, promise: Promise, rivals: dict[str, Cell], words: str) -> None:
    assert list(row(ours, promise, **rivals).broken()) == [words]


def test_a_limit_in_bare_figures() -> None:
    promise = Promise("V4", of_bare=2)
    assert list(dataclasses.replace(row(2.0, promise), bare=1.0).broken()) == []
    broken = list(dataclasses.replace(row(2.5, promise), bare=1.0).broken())
    assert broken == ["V4, crash: p50: 2.50 times bare, promised at most 2 times"]
    assert str(promise) == "V4: ≤ 2 x bare"


def test_a_promise_may_be_broken_in_more_than_one_way() -> None:
    figures = Figures()
    figures.add(row(50.0, Promise("V1", most=30, times_less=40), paddle=100.0, torchrun=100.0))
    assert len(figures.broken()) == 3


def test_a_rival_has_a_ratio_only_where_both_have_a_figure() -> None:
    assert BEFORE not in LAUNCHERS
    assert row(2.0, None, run=3.0, paddle=5.0, torchrun="stalls").texts() == [
        "2 ms",
        "3 ms",
        "5 ms (2.5 x)",
        "stalls",
    ]
    assert row(0.0, None, run=3.0, paddle=5.0, torchrun=1.0).texts() == ["0 ms", "3 ms", "5 ms", "1 ms"]


def test_a_missing_rival_is_reported_as_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PADDLE.__dict__, "version", None)
    monkeypatch.setitem(TORCHRUN.__dict__, "version", "2.0")
    assert row(2.0, None, run=2.0).texts() == ["2 ms", "2 ms", "not installed", "-"]


def test_both_command_lines_keep_the_promises() -> None:
    promise = Promise("V3", most=15)
    assert list(row(15.0, promise, run=15.0).broken()) == []
    (broken,) = row(15.0, promise, run=16.0).broken()
    assert broken == "V3, crash: p50: rlaunch.run 16 ms, promised at most 15 ms"


def test_a_section_that_is_measured_again_replaces_the_one_of_the_page() -> None:
    def tables(sections: dict[str, float]) -> str:
        figures = Figures()
        for section, figure in sections.items():
            figures.add(Row(section, "p50", "ms", {RLAUNCH.name: figure}, None))
        return figures.tables(ABOUT)

    earlier = "# Benchmarks\n\nAbout.\n" + tables({"crash": 1.0, "idle": 2.0, "sweep": 3.0})
    page = replace_sections(earlier, tables({"idle": 9.0, "start": 4.0}), "bench.py idle start", "2 cores")
    head, *blocks = page.split("\n## ")
    assert head == "# Benchmarks\n\nAbout.\n"
    assert [block.partition("\n")[0] for block in blocks] == ["start", "crash", "idle", "sweep"]
    figures = [block.partition("| p50 | ")[2].partition(" |")[0] for block in blocks]
    assert figures == ["4 ms", "1 ms", "9 ms", "3 ms"]
    again = ["Measured again by `bench.py idle start`: 2 cores.\n\n|  |" in block for block in blocks]
    assert again == [True, False, True, False]
    assert page.endswith("|\n")


def test_the_picture_is_of_the_page() -> None:
    """`make bench` writes both; who edits one has to write the other."""
    page = (ROOT / "docs/benchmarks.md").read_text()
    assert [chart.title for chart in charts(page)] == list(DRAWN.values())
    assert (ROOT / "docs/benchmarks.svg").read_text() == picture(page)


def test_bars_are_as_long_as_their_figures() -> None:
    figures = Figures()
    cells = {"rlaunch": 30.0, "paddle": 2400.0, "torchrun": "not installed"}
    figures.add(Row("launch", "wall time of 2 trivial ranks", "ms", cells, bare=15.0))
    drawn = picture("\n" + figures.tables({"launch": "Wall time."}))
    longest = WIDTH - LABELS - VALUES
    widths = [float(width) for width in re.findall(r'<rect x="\d+" y="\d+" width="([\d.]+)"', drawn)]
    assert widths == pytest.approx([longest / 80, longest], abs=0.1)
    assert float(re.findall(r'<line x1="([\d.]+)"', drawn)[0]) == pytest.approx(
        LABELS + longest / 160, abs=0.1
    )
    assert re.findall(r">([\d.]+ ms)<", drawn) == ["30 ms", "2400 ms"]


NEWCOMERS: dict[str | None, dict[str, Cell]] = {
    newcomers.NO_START: {"rounds": 0.0, "pause": 0.02},
    newcomers.FAILS: {"rounds": 1.0, "pause": 1.15},
    newcomers.HANGS: {"rounds": 1.0, "pause": newcomers.HANG_TIMEOUT + 14.0},
    None: {"rounds": 1.0, "world": 7.0},
}
ENDED = "the job makes no more steps"


@pytest.mark.parametrize(
    ("kind", "figure", "seen", "is_kept"),
    [
        (None, "rounds", 1.0, True),
        (None, "rounds", 2.0, False),
        (None, "world", 6.0, False),
        (newcomers.NO_START, "rounds", 1.0, False),
        (newcomers.NO_START, "pause", 1.2, False),
        (newcomers.FAILS, "rounds", 2.0, False),
        (newcomers.FAILS, "pause", ENDED, False),
        (newcomers.HANGS, "rounds", 2.0, False),
        (newcomers.HANGS, "pause", 53.3, False),
        (newcomers.HANGS, "pause", ENDED, False),
    ],
)
def test_a_bad_newcomer_that_costs_more_than_a_round_breaks_a_promise(
    kind: str | None, figure: str, seen: Cell, is_kept: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cells = {**NEWCOMERS, kind: {**NEWCOMERS[kind], figure: seen}}
    monkeypatch.setattr(newcomers, "missing", lambda: None)
    monkeypatch.setattr(newcomers, "machines", lambda _: contextlib.nullcontext([]))
    monkeypatch.setattr(newcomers, "figures_of", lambda *args: cells[args[3]])
    figures = Figures()
    newcomers.measure_newcomers(Session(tmp_path, True, figures, "newcomers"))
    assert (figures.broken() == []) is is_kept, figures.broken()
