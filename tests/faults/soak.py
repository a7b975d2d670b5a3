"""Soaks a launcher in random signals for a while, and says which promises it broke.

    python tests/faults/soak.py --minutes 30 --seed 7
    python tests/faults/soak.py --seed 7 --only 123          # one run of those again
    python tests/faults/soak.py --runs 5 --launcher paddle   # a rival, to see that the checks can fail

The actions of a run are drawn from the seed and its number alone; the instants are the machine's. Checked
after each: (a) no process of the job lives 2 s after the launcher's end; (b) no exit 0 with a failed rank;
(c) no stop longer than grace + 2 s, from the first signal that stops or from the first failed rank of the
last attempt, without the time in which the soak itself held a process stopped; (d) an exit status that has
a reason; (e) no traceback and no panic of the launcher; (f) events.jsonl and result.json match their
schemas. Where processes have to wait for a processor, (a) and (c) allow for as long as that, 10 s at most.

Exit status 1 if something was broken, 2 if the launcher is not there.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import marked
from launchers import LAUNCHERS, Launcher
from soak_plan import draw
from soak_run import SLACK, Run, Seen

sys.path.append(str(Path(__file__).parents[1] / "pictures"))

import bars
from bars import Bar, Chart

PROGRESS = 20.0  # Seconds between two lines of it.


class Figures:
    """The results of all runs together."""

    def __init__(self, seed: int, launcher: Launcher) -> None:
        self.seed, self.launcher = seed, launcher
        self.began = time.monotonic()
        self.runs = 0
        self.broken: list[str] = []
        self.sent: Counter[str] = Counter()
        self.hit: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.latest: tuple[float, float, int] = (
            -math.inf,
            0.0,
            -1,
        )  # Beyond the grace, in all, and in which run.
        self.survivors: list[marked.Member] = []

    def add(self, run: int, seen: Seen) -> None:
        self.runs += 1
        self.sent += seen.sent
        self.hit += seen.hit
        self.ends[seen.status] += 1
        if seen.stop is not None:
            self.latest = max(self.latest, (seen.stop - seen.grace, seen.stop, run))
        if len(seen.survivors) > len(self.survivors):
            self.survivors = seen.survivors
        for fault in seen.faults:
            self.broken.append(f"run {run} of seed {self.seed}: {fault}")
            again = f"soak.py --seed {self.seed} --only {run} --launcher {self.launcher.name}"
            print(f"BROKEN {self.broken[-1]}\n       again: {again}", flush=True)

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self.began) / 60

    def line(self) -> str:
        counts = f"{self.runs} runs  {self.sent.total()} signals  {len(self.broken)} broken"
        return f"{self.minutes:5.1f} min  {counts}"

    def rows(self) -> list[tuple[str, str]]:
        beyond, stop, run = self.latest
        latest = f"{stop:.2f} s, {beyond:+.2f} s beyond its grace (run {run})" if run >= 0 else "none"
        return [
            ("launcher", self.launcher.name),
            ("seed", str(self.seed)),
            ("minutes", f"{self.minutes:.1f}"),
            ("runs", str(self.runs)),
            ("signals sent", f"{self.sent.total()}: {listed(self.sent)}"),
            ("members hit", listed(self.hit)),
            ("ends", listed(self.ends)),
            ("latest stop", latest),
            ("worst survivors", marked.describe(self.survivors)),
            ("promises broken", str(len(self.broken))),
        ]

    def summary(self) -> str:
        return "\n".join(f"{name:16} {text}" for name, text in self.rows())

    def page(self, name: str = "soak") -> str:
        """`name`: of its file and of its picture."""
        head = PAGE.format(
            picture=bars.image(name, ALT),
            linux=platform.release().partition("-")[0],
            python=platform.python_version(),
            cores=os.cpu_count(),
        )
        rows = [f"| {name} | {text} |" for name, text in self.rows() if name != "ends"]
        ends = [f"| {end} | {count} |" for end, count in self.ends.most_common()]
        faults = ["", *(f"- {fault}" for fault in self.broken)] if self.broken else []
        return "\n".join([head, "| | |", "|---|---|", *rows, "", *ENDS, *ends, *faults]) + "\n"


ENDS = ["| how the launcher ended | runs |", "|---|---|"]
ALT = "Bars: runs, signals and broken promises; the processes that signals were sent to; the latest stop"
PAGE = """# Soak

The soak starts jobs of 1 to 8 ranks that obey SIGTERM, ignore it, fail, die, leave children,
sessions and daemons and write output, and sends random signals to random processes of them.

{picture}

Written by `make soak`; do not edit. Linux {linux}, Python {python}, {cores} cores. What is checked after each
run stands at the top of `tests/faults/soak.py`.
"""


def picture(page: str) -> str:
    """The SVG of the page's table."""
    of = dict(bars.tables(page)[0].rows)
    counts = [(name, counted(of[name])) for name in ("runs", "signals sent", "promises broken")]
    hit = [(name, counted(count)) for name, count in re.findall(r"([^,]+) (\d+)(?:, |$)", of["members hit"])]
    charts = [Chart("What was done, and what broke", counts), Chart("Signals, by the process they hit", hit)]
    if latest := re.search(r"([+-][\d.]+) s beyond its grace", of["latest stop"]):
        bar = Bar(max(0.0, float(latest[1])), f"{latest[1]} s")
        line = (SLACK, f"promised, {SLACK:+g} s")
        charts.append(Chart("Latest stop, beyond its grace", [(of["launcher"], [bar])], line=line))
    return bars.picture(charts)


def counted(cell: str) -> list[Bar]:
    """The number that a cell begins with."""
    number = re.match(r"\d+", cell)
    return [Bar(int(number[0]), number[0])] if number else []


def listed(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common()) or "none"


def one(seed: int, run: int, launcher: Launcher, tick: Callable[[], None] = lambda: None) -> Seen:
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        return Run(draw(seed, run), launcher, Path(folder)).go(tick)


def main() -> int:
    about, _, notes = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=notes, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="how long runs are begun (30)")
    parser.add_argument("--runs", type=int, help="end after so many runs")
    parser.add_argument("--seed", type=int, default=20261121, help="what is drawn (20261121)")
    parser.add_argument("--only", type=int, metavar="RUN", help="this run alone, and what it does")
    parser.add_argument("--launcher", choices=LAUNCHERS, default="rlaunch")
    parser.add_argument("--write", type=Path, help="a page to write the summary to")
    args = parser.parse_args()
    launcher = LAUNCHERS[args.launcher]
    if not launcher.installed():
        print(f"soak: {launcher.hint}", file=sys.stderr)
        return 2

    figures = Figures(args.seed, launcher)
    said = time.monotonic()

    def tick() -> None:
        nonlocal said
        if time.monotonic() - said > PROGRESS:
            said = time.monotonic()
            print(figures.line(), flush=True)

    run = 0 if args.only is None else args.only
    if args.only is not None:
        print(draw(args.seed, run))
    while figures.minutes < args.minutes and (args.runs is None or figures.runs < args.runs):
        figures.add(run, one(args.seed, run, launcher, tick))
        tick()
        if args.only is not None:
            break
        run += 1
    print(figures.summary())
    if args.write:
        page = figures.page(args.write.stem)
        args.write.write_text(page)
        args.write.with_suffix(".svg").write_text(picture(page))
    return int(bool(figures.broken))


if __name__ == "__main__":
    sys.exit(main())
