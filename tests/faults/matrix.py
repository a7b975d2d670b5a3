"""Kills, floods and starves launchers, and writes what they made of it into one table.

    python tests/faults/matrix.py --launcher rlaunch
    python tests/faults/matrix.py --launcher rlaunch --launcher paddle --write docs/fault-matrix.md

FAULTS_RLAUNCH_PYTHON, FAULTS_PADDLE_PYTHON, FAULTS_TORCHRUN_PYTHON name the interpreters (default: this one).
Exit status 1 if rlaunch does not show what is wanted in some case, 2 if a launcher is not there.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import sys
import tempfile
import time
import traceback
from pathlib import Path

import cases.environment

# Importing them registers their cases.
import cases.kill
import cases.leftovers
import cases.looked_into
import cases.output
import cases.place
import cases.shortage
import cases.status
import cases.stop  # noqa: F401
from cases.case import CASES, Case, Group, Observation
from launchers import GRACE, LAUNCHERS, Launcher

sys.path.append(str(Path(__file__).parents[1] / "pictures"))

import bars
from bars import Bar, Chart

TITLES = {"rlaunch": "rlaunch", "paddle": "paddle.distributed.launch", "torchrun": "torchrun"}

Row = dict[str, Observation]


def measure(case: Case, launcher: Launcher) -> Observation:
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        try:
            return case.run(launcher, Path(folder))
        except Exception:
            traceback.print_exc()
            return Observation("the case itself failed", False)


def cell(seen: Observation) -> str:
    text = seen.text.replace("|", "\\|")
    return f"✗ {text}" if seen.ok is False else text


ALT = "Bars of each launcher: the share of cases that are as wanted, of all cases and of each group"
HEAD = """# Fault matrix

What launchers make of being killed, flooded and starved: the same code (`tests/faults/`) did the same to
each, side by side.

{picture}

Written by `{command}`; do not edit. Linux {linux}, Python {python}, {cores} cores.
✗: not what is wanted.

*Survivors* are processes of the job, known by a mark in their environment, that live 2 s after the launcher's
end; zombies do not count. A job has two ranks, which use no framework, unless the row says otherwise.
Grace: {grace} s for rlaunch and torchrun, 30 s for Paddle, which has no option for it.
"""


def table(launchers: list[Launcher], rows: dict[str, Row], thorough: bool, page: str = "fault-matrix") -> str:
    """The page, in Markdown. `page`: the name of its file and of its picture."""
    names = [launcher.name for launcher in launchers]
    about = HEAD.format(
        picture=bars.image(page, ALT),
        command="make faults" if thorough else "tests/faults/matrix.py --quick",
        linux=platform.release().partition("-")[0],
        python=platform.python_version(),
        cores=os.cpu_count(),
        grace=GRACE,
    )
    lines = [about, *header("as wanted", *(TITLES[name] for name in names))]
    lines.append(line("all cases", *(score(name, rows) for name in names)))
    members_of = {group: [name for name in rows if CASES[name].group is group] for group in Group}
    for group, members in members_of.items():
        if members:
            of_group = {name: rows[name] for name in members}
            lines.append(line(group.value, *(score(name, of_group) for name in names)))
    for group, members in members_of.items():
        if members:
            lines += ["", f"## {group.value}", ""]
            lines += header("case", "wanted", *(TITLES[name] for name in names))
        for name in members:
            seen = (cell(rows[name][launcher]) for launcher in names)
            lines.append(line(CASES[name].title, CASES[name].ideal, *seen))
    return "\n".join(lines) + "\n"


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def header(*cells: str) -> list[str]:
    return [line(*cells), "|" + "---|" * len(cells)]


def score(name: str, rows: dict[str, Row]) -> str:
    checked = [row[name].ok for row in rows.values() if row[name].ok is not None]
    return f"{sum(map(bool, checked))} of {len(checked)}"


def picture(page: str) -> str:
    """The SVG of the page's first table."""
    summary = bars.tables(page)[0]
    rows = [(name, [share(cell, at) for at, cell in enumerate(cells)]) for name, *cells in summary.rows]
    return bars.picture([Chart("Cases that are as wanted", rows, tuple(summary.head[1:]))])


def share(cell: str, column: int) -> Bar:
    """Of a score such as ``22 of 74``."""
    good, _, checked = cell.partition(" of ")
    return Bar(int(good) / max(1, int(checked)), cell, bars.OTHER if column else bars.OURS)


def main() -> int:
    parser = argparse.ArgumentParser(description="What launchers make of being killed, flooded and starved.")
    parser.add_argument("--launcher", action="append", choices=LAUNCHERS, help="again for more (rlaunch)")
    parser.add_argument("--quick", action="store_true", help="samples, as in `make test`")
    parser.add_argument("--case", action="append", default=[], help="whose name starts so; again for more")
    parser.add_argument("--write", type=Path, help="the file to write the table to (stdout)")
    parser.add_argument("--only-installed", action="store_true", help="leave out launchers not there")
    args = parser.parse_args()

    launchers = []
    for name in args.launcher or ["rlaunch"]:
        launcher = dataclasses.replace(LAUNCHERS[name], thorough=not args.quick)
        if launcher.installed():
            launchers.append(launcher)
        elif not args.only_installed:
            print(f"matrix: {launcher.hint}", file=sys.stderr)
            return 2
    chosen = [
        case
        for case in CASES.values()
        if (case.quick or not args.quick) and (not args.case or case.name.startswith(tuple(args.case)))
    ]
    order = list(Group)
    rows: dict[str, Row] = {}
    for case in sorted(chosen, key=lambda case: order.index(case.group)):
        row = rows[case.name] = {}
        for launcher in launchers:
            began = time.monotonic()
            row[launcher.name] = measure(case, launcher)
            took = time.monotonic() - began
            print(
                f"{took:6.1f} s  {case.name:24} {launcher.name:9} {cell(row[launcher.name])}",
                file=sys.stderr,
                flush=True,
            )
    name = args.write.stem if args.write else "fault-matrix"
    page = table(launchers, rows, not args.quick, name)
    if args.write:
        args.write.write_text(page)
        args.write.with_suffix(".svg").write_text(picture(page))
    else:
        print(page, end="")
    return int(any(row["rlaunch"].ok is False for row in rows.values() if "rlaunch" in row))


if __name__ == "__main__":
    sys.exit(main())
