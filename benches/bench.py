"""Speed and memory of rlaunch, side by side with its rivals in the same run.

    make bench                                          every section
    .venv/bin/python benches/bench.py launch crash      some of them

Figures are for this machine at this moment; the ratios are what to look at. FAULTS_TORCHRUN_PYTHON and
FAULTS_PADDLE_PYTHON name the interpreters of the rivals (default: this one). `make bench BEFORE=HEAD~1`
builds the rlaunch of that commit and measures it too. Exit status 1 if a promise is broken or a section
fails; the last lines say which.
"""

from __future__ import annotations

import argparse
import inspect
import os
import platform
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from bench_launchers import BEFORE, LAUNCHERS, RUN
from figures import NOT_INSTALLED, Figures
from picture import picture
from sections import (
    end,
    newcomers,
    nodes,
    output,
    planning,
    preload,
    pytest_ranks,
    rendezvous,
    restart,
    stacks,
    start,
)
from session import Session

SECTIONS: dict[str, Callable[[Session], None]] = {
    "import": start.measure_import,
    "launch": start.measure_launch,
    "line": start.measure_first_line,
    "collective": start.measure_collective,
    "spawn": start.measure_spawn,
    "start": start.measure_start,
    "crash": end.measure_crash,
    "idle": end.measure_idle,
    "linger": end.measure_linger,
    "sweep": end.measure_sweep,
    "restart": restart.measure_restart,
    "output": output.measure_output,
    "stall": output.measure_stall,
    "lines": output.measure_lines,
    "plan": planning.measure_plan,
    "rendezvous": rendezvous.measure_rendezvous,
    "nodes": nodes.measure_nodes,
    "newcomers": newcomers.measure_newcomers,
    "stacks": stacks.measure_stacks,
    "preload": preload.measure_preload,
    "suite": pytest_ranks.measure_suite,
}
ABOUT = {name: inspect.cleandoc(measure.__doc__ or "") for name, measure in SECTIONS.items()}

HEAD = """# Benchmarks

rlaunch and its rivals, side by side: each table is of one run. Written by `{command}`; do not edit.
{about}.

In brackets: how many times rlaunch's figure. *rlaunch before*: the rlaunch of the commit that the table
names. *Bare*: the same ranks without any launcher. *Promise*: what rlaunch's figure must keep to; the bench
fails when it does not.

![{alt}]({picture})
"""
ALT = "Bars of three rows of the tables below: wall time of a job, end after a failure, memory"


def about() -> str:
    named = (it for it in LAUNCHERS if it not in (RUN, BEFORE))
    versions = [f"{it.title} {it.version or NOT_INSTALLED}" for it in named]
    if BEFORE in LAUNCHERS:
        versions.append(f"{BEFORE.title}: commit {Path(BEFORE.python).parents[2].name}")
    linux = platform.release().partition("-")[0]
    machine = [f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start", f"Linux {linux}"]
    return ", ".join([*machine, f"Python {platform.python_version()}", *versions])


def page(figures: Figures, name: str, command: str, about: str, failed: list[str]) -> str:
    """The results in Markdown. `name`: of the page and its picture. `failed`: sections that did not come to
    their end, with the error.
    """
    gaps = "".join(f"\n**Not measured to its end**: {text}.\n" for text in failed)
    head = HEAD.format(command=command, about=about, alt=ALT, picture=f"{name}.svg")
    return head + gaps + figures.tables(ABOUT)


def replace_sections(earlier: str, measured: str, command: str, about: str) -> str:
    """A page with some sections measured again. `measured`: their tables, as `Figures.tables` has them."""
    head, *old = earlier.split("\n## ")
    _, *new = measured.split("\n## ")
    sections = {block.partition("\n")[0]: block.rstrip("\n") + "\n" for block in old}
    for block in new:
        name, _, rest = block.partition("\n")
        text, table, rows = rest.partition("\n\n|")
        again = f"\n\nMeasured again by `{command}`: {about}."
        sections[name] = f"{name}\n{text}{again}{table}{rows}".rstrip("\n") + "\n"
    return "\n## ".join([head, *(sections[name] for name in ABOUT if name in sections)])


def arguments() -> argparse.Namespace:
    listed = "\n".join(f"  {name:<8} {text}" for name, text in ABOUT.items())
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"sections:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="default: all")
    parser.add_argument(
        "--quick", action="store_true", help="fewer and shorter runs; figures to look at only"
    )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="PAGE",
        help="write the results there, in Markdown, and a picture beside; of some sections: in place of "
        "these sections of the page",
    )
    chosen = parser.parse_args()
    for name in chosen.sections:
        if name not in SECTIONS:
            parser.error(f"no section {name}; there are {', '.join(SECTIONS)}")
    return chosen


def main() -> int:
    chosen = arguments()
    words = [*(["--quick"] if chosen.quick else []), *chosen.sections]
    command = " ".join(["benches/bench.py", *words]) if words else "make bench"
    machine = about()
    print(machine, flush=True)
    # Servers and launchers that were started end too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    figures = Figures()
    failed: list[str] = []
    for name in chosen.sections or SECTIONS:
        try:
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                SECTIONS[name](Session(Path(folder), chosen.quick, figures, name))
        except Exception as error:  # The other sections are worth their time.
            traceback.print_exc()
            failed.append(f"{name} ({type(error).__name__}: {error})")
            if chosen.sections:  # The page keeps what it has of this section.
                figures.rows = [row for row in figures.rows if row.section != name]
    if chosen.write is not None:
        text = page(figures, chosen.write.stem, command, machine, failed)
        if chosen.sections and chosen.write.exists():
            text = replace_sections(chosen.write.read_text(), figures.tables(ABOUT), command, machine)
        chosen.write.write_text(text)
        chosen.write.with_suffix(".svg").write_text(picture(text))
    for text in failed:
        print(f"bench: failed: {text}", flush=True)
    broken = figures.broken()
    for text in broken:
        print(f"bench: broken promise {text}", flush=True)
    return 1 if broken or failed else 0


if __name__ == "__main__":
    sys.exit(main())
