"""Trains on four hosts with an etcd of three members, and breaks everything between them at random.

    make chaos                                                 half an hour; writes docs/chaos.md
    .venv/bin/python tests/chaos/chaos.py --minutes 5 --seed 7
    .venv/bin/python tests/chaos/chaos.py --first 3 --jobs 1 --keep DIR   job 3 again; its files stay in DIR

Hosts are network namespaces, each with a cgroup and a file system of its own for its logs. Ranks train by
torch's gloo and save checkpoints as examples/checkpoints.py does. The job is elastic, 2 to 4 nodes; a
launcher that ends is started again. Faults come in bursts. After each, the job has to save a checkpoint with
all nodes, and at its end every launcher has to exit with status 0.

Judged by what ranks wrote, and by when their processes ended: (a) ranks of two rounds never run at once (to a
clock tick, 10 ms), except up to 1 s after a node thaws that was frozen as a whole; (b) each round begins with
the newest checkpoint that was saved before it; (c) all nodes save a checkpoint within 90 s of the end of the
last fault; (d) only launchers that a fault has killed or stopped exit early, and none panics or warns of a
clock.

Needs root. Exit status 1 if something was broken, 2 if this machine cannot run it.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "python" / "support"
# First: a client of etcd has the name of a module of the tests.
sys.path[:0] = [str(SUPPORT), str(SUPPORT / "machines"), str(SUPPORT.parent / "elastic")]
sys.path.append(str(Path(__file__).parents[1] / "pictures"))

import bars  # noqa: E402
import chaos_faults  # noqa: E402
from bars import Bar, Chart  # noqa: E402
from chaos_judge import Findings, Hold, journal, judge, lives  # noqa: E402
from chaos_plan import LEASE, MEMBERS, MIN_NODES, NODES, Fault, Kind, burst  # noqa: E402
from chaos_witness import Witness  # noqa: E402
from chaos_world import UnusableError, World, missing, now, world  # noqa: E402

RECOVERY = 90.0  # Seconds for (c).
SETTLED = 1.0  # Seconds that a round has to go on after its checkpoint.
MINUTES_OF_A_JOB = 5.0
ENDS = 60.0  # Seconds for the launchers to end after the last step.
BROKEN_TEXTS = ("panicked at", "the clock of")


class NoProgressError(Exception):
    """The job did not do what it has to; the text says what."""


class Run:
    """The figures of all jobs together."""

    def __init__(self, seed: int) -> None:
        self.seed, self.began = seed, time.monotonic()
        self.where = "the start"
        self.jobs: Counter[str] = Counter()
        self.bursts = 0
        self.faults: Counter[Kind] = Counter()
        self.missed: Counter[Kind] = Counter()
        self.seconds: Counter[Kind] = Counter()
        self.statuses: Counter[int] = Counter()
        self.unharmed = 0
        self.recoveries: list[float] = []
        self.findings: list[Findings] = []
        self.broken: list[str] = []

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self.began) / 60

    def report(self, text: str) -> None:
        print(f"{self.minutes:5.1f} min  {self.where}: {text}", flush=True)

    def breaks(self, text: str) -> None:
        self.broken.append(f"seed {self.seed}, {self.where}: {text}")
        self.report(f"BROKEN {text}")

    def total(self, name: str) -> int:
        return sum(getattr(of_job, name) for of_job in self.findings)

    def rows(self) -> list[tuple[str, str]]:
        thawed = [seconds for of_job in self.findings for seconds in of_job.thawed]
        margins = [of_job.margin for of_job in self.findings if of_job.margin is not None]
        back = self.recoveries
        return [
            ("seed", str(self.seed)),
            ("minutes", f"{self.minutes:.1f}"),
            ("jobs", ", ".join(f"{count} of `{what}`" for what, count in self.jobs.items())),
            ("faults", f"{self.faults.total()} in {self.bursts} bursts"),
            ("rounds", str(self.total("rounds"))),
            ("ranks that ran beside a newer round", str(self.total("overlaps"))),
            (
                "ranks of frozen nodes that ran when they were thawed, their round over",
                f"{len(thawed)}, for {milliseconds(thawed, max)} at most" if thawed else "0",
            ),
            ("least time from the end of a lost node's rank to the next round", milliseconds(margins, min)),
            ("checkpoints saved", str(self.total("saved"))),
            ("checkpoints lost", str(self.total("lost"))),
            ("checkpoints that an older round saved later, in its own folder", str(self.total("stale"))),
            (
                "from the last fault's end to a checkpoint of all nodes",
                f"median {statistics.median(back):.1f} s, at most {max(back):.1f} s" if back else "-",
            ),
            ("bursts after which all nodes still trained", str(self.unharmed)),
            ("exits of launchers, by status", listed(self.statuses)),
            ("promises broken", str(len(self.broken))),
        ]

    def page(self, name: str = "chaos") -> str:
        """`name`: of its file and of its picture."""
        head = PAGE.format(
            picture=bars.image(name, ALT),
            linux=platform.release().partition("-")[0],
            python=platform.python_version(),
            cores=os.cpu_count(),
            nodes=NODES,
            minimum=MIN_NODES,
            members=MEMBERS,
            lease=LEASE,
        )
        rows = [f"| {name} | {text} |" for name, text in self.rows()]
        kinds = [
            f"| {kind.value} | {self.faults[kind]} | {self.seconds[kind]} | {self.missed[kind]} |"
            for kind in Kind
        ]
        broken = ["", *(f"- {text}" for text in self.broken)] if self.broken else []
        table = ["", "| fault | times | seconds in all | met no rank |", "|---|---|---|---|", *kinds]
        return "\n".join([head, "| | |", "|---|---|", *rows, *table, *broken]) + "\n"


ALT = "Bars: faults, checkpoints and broken promises; the time to recover; the faults by kind"
PAGE = """# Chaos

Real jobs under random faults: torch's gloo on {minimum} to {nodes} hosts (network namespaces), an etcd
of {members} members with TLS, a lease (`--heartbeat_timeout`) of {lease} s.

{picture}

Written by `make chaos`; do not edit. Linux {linux}, Python {python}, {cores} cores. What is done and what is
checked stands at the top of `tests/chaos/chaos.py`.
"""
COUNTS = (
    "faults",
    "rounds",
    "ranks that ran beside a newer round",
    "checkpoints saved",
    "checkpoints lost",
    "promises broken",
)
RECOVERED = "from the last fault's end to a checkpoint of all nodes"


def picture(page: str) -> str:
    """The SVG of the page's two tables."""
    summary, kinds = bars.tables(page)[:2]
    of = dict(summary.rows)
    counts = [(name, [bar(of[name].split()[0])]) for name in COUNTS]
    times = [
        (name, [bar(seconds, " s")])
        for name, seconds in re.findall(r"(median|at most) ([\d.]+) s", of[RECOVERED])
    ]
    faults = [(name, [bar(times)]) for name, times, *_ in kinds.rows]
    line = (RECOVERY, f"promised, {RECOVERY:g} s")
    return bars.picture(
        [
            Chart("What was done, and what broke", counts),
            Chart(RECOVERED.capitalize(), times, line=line),
            Chart("Faults, by kind", faults),
        ]
    )


def bar(number: str, unit: str = "") -> Bar:
    return Bar(float(number), number + unit)


def milliseconds(values: list[float], which: Callable[[list[float]], float]) -> str:
    return f"{which(values) * 1000:.0f} ms" if values else "-"


def listed(counter: Counter[int]) -> str:
    return ", ".join(f"{status}: {count}" for status, count in sorted(counter.items())) or "none"


class Chaos:
    """One job in a world."""

    def __init__(self, run: Run, world: World, number: int, folder: Path, keeps: bool) -> None:
        self.run, self.world, self.number, self.folder, self.keeps = run, world, number, folder, keeps
        self.frozen: list[Hold] = []
        self.hung: list[Hold] = []

    def go(self, minutes: float) -> None:
        self.run.where = f"job {self.number}"
        what = self.world.begin_job(self.number, self.folder)
        with Witness(self.folder) as witness:
            try:
                self.run.report(f"{what} trains after {self.progress(now()):.1f} s")
                self.run.jobs[what] += 1
                end = time.monotonic() + minutes * 60
                number = 0
                while time.monotonic() < end:
                    self.burst(number)
                    number += 1
                self.finish()
            except (NoProgressError, UnusableError) as error:
                self.run.breaks(str(error))
            finally:
                self.end(witness)

    def burst(self, number: int) -> None:
        self.run.where = f"job {self.number}, burst {number}"
        self.run.bursts += 1
        faults = burst(self.run.seed, self.number, number)
        self.run.report("; ".join(map(described, faults)))
        times = [(fault.begin, 0, fault) for fault in faults] + [(fault.end, 1, fault) for fault in faults]
        begin = time.monotonic()
        active: dict[Fault, tuple[ExitStack, float]] = {}
        with ExitStack() as all_of_them:
            for at, ends, fault in sorted(times, key=lambda time: time[:2]):
                self.world.wait(begin + at - time.monotonic())
                if ends:
                    stack, began = active.pop(fault)
                    stack.close()
                    self.run.seconds[fault.kind] += round(now() - began)
                    continue
                stack = all_of_them.enter_context(ExitStack())
                active[fault] = (stack, now())
                did = stack.enter_context(chaos_faults.inject(self.world, fault, self.frozen, self.hung))
                self.run.faults[fault.kind] += 1
                self.run.missed[fault.kind] += not did
        since = now()
        went_on = self.is_whole(since)
        took = self.progress(since)
        if went_on:
            self.run.unharmed += 1
        else:
            self.run.recoveries.append(took)
        self.run.report(f"a checkpoint of all nodes after {took:.1f} s")

    def is_whole(self, at: float, number: int | None = None) -> bool:
        """Whether a round with all nodes, or this one, runs at a time that is just over."""
        alive = Counter(
            life.round for life in lives(self.folder) if life.world == NODES and life.last > at - 0.2
        )
        return any(count == NODES and number in (None, of) for of, count in alive.items())

    def progress(self, since: float) -> float:
        """Waits for a checkpoint of all nodes that was saved since then, in a round that goes on.

        How long after it that was.
        """
        while now() - since < RECOVERY:
            self.world.wait(0.1)
            whole = {life.round for life in lives(self.folder) if life.world == NODES}
            saved = [
                (float(entry["time"]), int(entry["round"]))
                for entry in journal(self.folder)
                if entry["event"] == "saved" and entry["time"] > since and entry["round"] in whole
            ]
            for at, number in saved[:1] + saved[-1:]:
                self.world.wait(at + SETTLED - now())
                if self.is_whole(now(), number):
                    return at - since
        raise NoProgressError(f"no checkpoint of all nodes within {RECOVERY:.0f} s")

    def finish(self) -> None:
        """Has the ranks end, and sees that the launchers do."""
        for node in self.world.nodes:
            node.away = True
        before = Counter(node.statuses[0] for node in self.world.nodes)
        (self.folder / "finish").touch()
        deadline = time.monotonic() + ENDS
        while any(node.process is not None for node in self.world.nodes):
            if time.monotonic() > deadline:
                raise NoProgressError(f"launchers have not ended {ENDS:.0f} s after the last step")
            self.world.wait(0.1)
        for node in self.world.nodes:
            node.explained.append({0})
        after = Counter(node.statuses[0] for node in self.world.nodes)
        if before != Counter({0: NODES}) or after != Counter({1: NODES}):
            raise NoProgressError(f"exits with status 0: {dict(before)} before the end, {dict(after)} at it")

    def end(self, witness: Witness) -> None:
        """Ends what is left, and judges the job."""
        self.run.where = f"job {self.number}"
        for node in self.world.nodes:
            node.end()
            self.run.statuses += node.statuses
            for status in node.unexplained():
                self.run.breaks(f"a launcher of node {node.number} exited with status {status}")
            console = node.console.read_text(errors="replace")
            for text in BROKEN_TEXTS:
                if text in console:
                    self.run.breaks(f"a launcher of node {node.number} wrote '{text}'")
            if self.keeps:
                shutil.copytree(node.disk / f"job{self.number}", self.folder / f"log.{node.number}")
        findings = judge(lives(self.folder, witness.ends, self.hung), self.frozen, journal(self.folder))
        self.run.findings.append(findings)
        for fault in findings.faults:
            self.run.breaks(fault)
        self.run.report(f"{findings.rounds} rounds, {findings.saved} checkpoints saved")


def described(fault: Fault) -> str:
    length = f" for {fault.end - fault.begin:.1f} s" if fault.end > fault.begin else ""
    return f"{fault.kind.name} {fault.target} at {fault.begin:.1f} s{length}"


def run_all(run: Run, args: argparse.Namespace) -> None:
    with ExitStack() as stack:
        folder = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        folder.mkdir(parents=True, exist_ok=True)
        made = stack.enter_context(world(folder))
        number = args.first
        while run.minutes < args.minutes and (args.jobs is None or number < args.first + args.jobs):
            left = min(MINUTES_OF_A_JOB, args.minutes - run.minutes)
            Chaos(run, made, number, folder / f"job{number}", args.keep is not None).go(left)
            number += 1


def main() -> int:
    about, _, notes = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=notes, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="how long jobs are begun (30)")
    parser.add_argument("--jobs", type=int, help="end after so many jobs")
    parser.add_argument("--first", type=int, default=0, metavar="JOB", help="the number of the first job (0)")
    parser.add_argument("--seed", type=int, default=20261125, help="the seed of the faults (20261125)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a new folder for all files, which stay")
    parser.add_argument("--write", type=Path, help="a page to write the summary to")
    args = parser.parse_args()
    if args.keep is not None and args.keep.exists():
        parser.error(f"--keep {args.keep}: it exists; name a new folder")
    if reason := missing():
        print(f"chaos: {reason}", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # All that was made is undone then.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    run = Run(args.seed)
    try:
        run_all(run, args)
    except Exception:
        traceback.print_exc()
        run.breaks("the run itself has failed, see above")
        return 2
    finally:
        print("\n".join(f"{name}: {text}" for name, text in run.rows()))
    if args.write is not None:
        page = run.page(args.write.stem)
        args.write.write_text(page)
        args.write.with_suffix(".svg").write_text(picture(page))
    return 1 if run.broken else 0


if __name__ == "__main__":
    sys.exit(main())
