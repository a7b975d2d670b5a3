"""Trains on four hosts with an etcd of three members, and breaks everything between them at random.

    make chaos                                                 half an hour; writes docs/chaos.md
    .venv/bin/python tests/chaos/chaos.py --minutes 5 --seed 7
    .venv/bin/python tests/chaos/chaos.py --jobs 1 --keep DIR  one job, whose files stay for a look

Hosts are network namespaces, each with a cgroup and a file system of its own for its logs. Ranks train by
torch's gloo and save checkpoints as examples/checkpoints.py does. The job is elastic, 2 to 4 nodes; a
launcher that ends is started again. Faults come in bursts. After each, the job has to save a checkpoint with
all nodes, and at its end every launcher has to exit with status 0.

Judged by what ranks wrote: (a) no rank of a round runs when one of a newer round has begun, but for the
moments in which a node that was frozen as a whole goes on, 1 s at most; (b) each round begins with the newest
checkpoint that was saved before it; (c) a checkpoint within 90 s of the last fault's end; (d) no exit status
without a reason, no panic.

Needs root. Exit status 1 if something was broken, 2 if this machine cannot run it.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "python" / "support"
sys.path += [str(SUPPORT), str(SUPPORT / "machines"), str(SUPPORT.parent / "elastic")]

import chaos_faults  # noqa: E402
from chaos_judge import Findings, Frozen, journal, judge, lives  # noqa: E402
from chaos_plan import LEASE, MEMBERS, MIN_NODES, NODES, Fault, Kind, burst  # noqa: E402
from chaos_world import EXPECTED, World, missing, now, world  # noqa: E402

RECOVERY = 90.0  # Seconds for (c).
MINUTES_OF_A_JOB = 5.0
ENDS = 60.0  # Seconds for the launchers to end after the last step.


class NoProgressError(Exception):
    """The job did not do what it has to; the text says what."""


class Run:
    """The figures of all jobs together."""

    def __init__(self, seed: int) -> None:
        self.seed, self.began = seed, time.monotonic()
        self.jobs = 0
        self.faults: Counter[Kind] = Counter()
        self.seconds: Counter[Kind] = Counter()
        self.statuses: Counter[int] = Counter()
        self.recoveries: list[float] = []
        self.findings: list[Findings] = []
        self.broken: list[str] = []
        self.bursts = 0

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self.began) / 60

    def report(self, text: str) -> None:
        print(f"{self.minutes:5.1f} min  {text}", flush=True)

    def breaks(self, text: str) -> None:
        self.broken.append(f"job {self.jobs} of seed {self.seed}: {text}")
        self.report(f"BROKEN {self.broken[-1]}")

    def total(self, name: str) -> int:
        return sum(getattr(of_job, name) for of_job in self.findings)

    def rows(self) -> list[tuple[str, str]]:
        thawed = [seconds for of_job in self.findings for seconds in of_job.thawed]
        margins = [of_job.margin for of_job in self.findings if of_job.margin is not None]
        back = sorted(self.recoveries)
        return [
            ("seed", str(self.seed)),
            ("minutes", f"{self.minutes:.1f}"),
            ("jobs", str(self.jobs)),
            ("faults", f"{self.faults.total()} in {self.bursts} bursts"),
            ("rounds", str(self.total("rounds"))),
            ("two rounds at once", str(self.total("overlaps"))),
            ("least time between the last rank of a round and the next round", milliseconds(margins, min)),
            (
                "ranks of frozen nodes that ran when thawed, their round over",
                f"{len(thawed)}, for {milliseconds(thawed, max)} at most" if thawed else "0",
            ),
            ("checkpoints saved", str(self.total("saved"))),
            ("checkpoints lost", str(self.total("lost"))),
            ("checkpoints saved by an older round, in its own folder", str(self.total("stale"))),
            (
                "from the last fault's end to a checkpoint of all nodes",
                f"median {statistics.median(back):.1f} s, at most {back[-1]:.1f} s" if back else "-",
            ),
            ("exits of launchers, by status", listed(self.statuses)),
            ("promises broken", str(len(self.broken))),
        ]

    def page(self) -> str:
        head = PAGE.format(
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
            f"| {kind.value} | {self.faults[kind]} | {self.seconds[kind]:.0f} |"
            for kind in Kind
            if self.faults[kind]
        ]
        faults = ["", *(f"- {fault}" for fault in self.broken)] if self.broken else []
        table = ["", "| fault | times | seconds in all |", "|---|---|---|", *kinds]
        return "\n".join([head, "| | |", "|---|---|", *rows, *table, *faults]) + "\n"


PAGE = """# Chaos

Real jobs under random faults: torch's gloo on {minimum} to {nodes} hosts (network namespaces), an etcd
of {members} members with TLS, a lease (`--heartbeat_timeout`) of {lease:.0f} s, both command lines, with
and without `--preload torch`. Written by `make chaos`; do not edit. Linux {linux}, Python {python}, {cores}
cores. What is done and what is checked stands at the top of `tests/chaos/chaos.py`.
"""


def milliseconds(values: list[float], which: object) -> str:
    return f"{which(values) * 1000:.0f} ms" if values and callable(which) else "-"


def listed(counter: Counter[int]) -> str:
    return ", ".join(f"{status}: {count}" for status, count in sorted(counter.items())) or "none"


class Chaos:
    """One job in a world."""

    def __init__(self, run: Run, world: World, number: int, folder: Path) -> None:
        self.run, self.world, self.number, self.folder = run, world, number, folder
        self.frozen: list[Frozen] = []

    def go(self, minutes: float) -> None:
        self.run.jobs += 1
        self.world.begin_job(self.number, self.folder)
        try:
            self.run.report(f"job {self.number}: trains after {self.progress(now()):.1f} s")
            end = time.monotonic() + minutes * 60
            while time.monotonic() < end:
                self.burst()
            self.finish()
        except NoProgressError as error:
            self.run.breaks(str(error))
        finally:
            self.end()

    def burst(self) -> None:
        number, self.run.bursts = self.run.bursts, self.run.bursts + 1
        faults = burst(self.run.seed, number)
        self.run.report(f"burst {number}: " + "; ".join(map(described, faults)))
        times = [(fault.begin, 0, fault) for fault in faults] + [(fault.end, 1, fault) for fault in faults]
        begin = time.monotonic()
        active: dict[Fault, ExitStack] = {}
        with ExitStack() as all_of_them:
            for at, ends, fault in sorted(times, key=lambda time: time[:2]):
                self.world.wait(begin + at - time.monotonic())
                if ends:
                    active.pop(fault).close()
                    continue
                active[fault] = all_of_them.enter_context(ExitStack())
                active[fault].enter_context(chaos_faults.inject(self.world, fault, self.frozen))
                self.run.faults[fault.kind] += 1
                self.run.seconds[fault.kind] += round(fault.end - fault.begin)
        took = self.progress(now())
        self.run.recoveries.append(took)
        self.run.report(f"burst {number}: a checkpoint of all nodes after {took:.1f} s")

    def progress(self, since: float) -> float:
        """Waits for a checkpoint of all nodes that was saved since then; how long after it that was."""
        while now() - since < RECOVERY:
            self.world.wait(0.1)
            whole = {life.round for life in lives(self.folder) if life.world == NODES}
            for entry in journal(self.folder):
                if entry["event"] == "saved" and entry["time"] > since and entry["round"] in whole:
                    return float(entry["time"]) - since
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
        after = Counter(node.statuses[0] for node in self.world.nodes)
        if before != Counter({0: NODES}) or after != Counter({1: NODES}):
            raise NoProgressError(
                f"exits with status 0: {dict(before)} nodes before the end, {dict(after)} at it"
            )

    def end(self) -> None:
        """Ends what is left, and judges the job."""
        for node in self.world.nodes:
            node.kill()
            self.run.statuses += node.statuses
            for status in set(node.statuses) - EXPECTED:
                self.run.breaks(f"a launcher of node {node.number} exited with status {status}")
            console = (self.folder / f"console.{node.number}").read_text(errors="replace")
            if "panicked at" in console:
                self.run.breaks(f"a launcher of node {node.number} panicked")
            node.statuses.clear()
        findings = judge(lives(self.folder), self.frozen, journal(self.folder))
        self.run.findings.append(findings)
        for fault in findings.faults:
            self.run.breaks(fault)
        self.run.report(f"job {self.number}: {findings.rounds} rounds, {findings.saved} checkpoints saved")


def described(fault: Fault) -> str:
    length = f" for {fault.end - fault.begin:.1f} s" if fault.end > fault.begin else ""
    return f"{fault.kind.name} {fault.target} at {fault.begin:.1f} s{length}"


def main() -> int:
    about, _, notes = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=notes, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="how long jobs are begun (30)")
    parser.add_argument("--jobs", type=int, help="end after so many jobs")
    parser.add_argument("--seed", type=int, default=20261125, help="what is drawn (20261125)")
    parser.add_argument("--keep", type=Path, help="a folder for all files, which stay")
    parser.add_argument("--write", type=Path, help="a page to write the summary to")
    args = parser.parse_args()
    if reason := missing():
        print(f"chaos: {reason}", file=sys.stderr)
        return 2
    run = Run(args.seed)
    with ExitStack() as stack:
        folder = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        folder.mkdir(parents=True, exist_ok=True)
        made = stack.enter_context(world(folder))
        number = 0
        while run.minutes < args.minutes and (args.jobs is None or number < args.jobs):
            left = min(MINUTES_OF_A_JOB, args.minutes - run.minutes)
            Chaos(run, made, number, folder / f"job{number}").go(left)
            number += 1
    print("\n".join(f"{name}: {text}" for name, text in run.rows()))
    if args.write is not None:
        args.write.write_text(run.page())
    return 1 if run.broken else 0


if __name__ == "__main__":
    sys.exit(main())
