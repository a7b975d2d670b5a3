"""Whom launchers blame: each story under each launcher, in one table.

    python tests/faults/blame/table.py --launcher rlaunch --launcher torchrun --write docs/blame.md

Exit status 1 if a report of rlaunch does not name the culprit with its reason.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path += [str(Path(__file__).parents[2] / "python" / "support")]

import all_stories  # noqa: F401
from judge import LAUNCHERS, OURS, Blamer, BlameReport
from story import STORIES, Story

HEAD = """# Whom launchers blame

{count} jobs that fail, each with real processes (of torch or Paddle where it says so), under each launcher.
Written by `make blame`; do not edit. Linux {linux}, Python {python}, {cores} cores.

- ✓: the launcher's report names the rank that failed first, and the reason: the exception, the signal, the
  exit status, the line of a library.
- ◐: it names the rank without the reason.
- ✗: it names no rank, or another one.

Of Paddle's launcher and of torchrun all output counts as the report, also what ranks print between the
launcher's lines.

"""


def judge(of: Story, launcher: Blamer) -> str:
    with tempfile.TemporaryDirectory(prefix="blame-") as folder:
        try:
            report = launcher.run(of, Path(folder))
        except subprocess.TimeoutExpired:
            return "✗ did not end"
    return mark(of, report)


def mark(of: Story, report: BlameReport) -> str:
    if not report.names_culprit(of):
        return "✗ names none" if report.rank is None else f"✗ names rank {report.rank}"
    return "◐" if report.missing(of) or report.misleading(of) else "✓"


def page(marks: dict[str, dict[str, str]]) -> str:
    """The page, in Markdown. `marks`: of each story, by launcher."""
    names = list(next(iter(marks.values())))
    lines = [
        HEAD.format(
            count=len(marks),
            linux=platform.release().partition("-")[0],
            python=platform.python_version(),
            cores=os.cpu_count(),
        )
        + "| | "
        + " | ".join(LAUNCHERS[name].title for name in names)
        + " |",
        "|---|" + "---|" * len(names),
    ]
    good = [sum(row[name] == "✓" for row in marks.values()) for name in names]
    named = [sum(not row[name].startswith("✗") for row in marks.values()) for name in names]
    lines.append("| culprit with its reason | " + " | ".join(f"{n} of {len(marks)}" for n in good) + " |")
    lines.append("| culprit | " + " | ".join(f"{n} of {len(marks)}" for n in named) + " |")
    for story, row in marks.items():
        framework = STORIES[story].framework
        title = STORIES[story].title + (f" ({framework})" if framework else "")
        lines.append(f"| {title} | " + " | ".join(row[name] for name in names) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Whom launchers blame for jobs that fail.")
    parser.add_argument("--launcher", action="append", choices=LAUNCHERS, help="again for more (all)")
    parser.add_argument("--story", action="append", default=[], help="whose name starts so; again for more")
    parser.add_argument("--write", type=Path, help="the file to write the table to (stdout)")
    args = parser.parse_args()
    chosen = [name for name in STORIES if not args.story or name.startswith(tuple(args.story))]
    marks: dict[str, dict[str, str]] = {name: {} for name in chosen}

    def run(pair: tuple[str, str]) -> None:
        name, launcher = pair
        result = judge(STORIES[name], LAUNCHERS[launcher])
        marks[name][launcher] = result
        print(f"{name:24} {launcher:9} {result}", file=sys.stderr, flush=True)

    names = args.launcher or list(LAUNCHERS)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, itertools.product(chosen, names)))
    marks = {name: {launcher: row[launcher] for launcher in names} for name, row in marks.items()}
    text = page(marks)
    if args.write:
        args.write.write_text(text)
    else:
        print(text, end="")
    return int(any(row.get(ours, "✓") != "✓" for row in marks.values() for ours in OURS))


if __name__ == "__main__":
    sys.exit(main())
