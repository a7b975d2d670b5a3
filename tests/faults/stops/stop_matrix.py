"""The stop matrix: ways to stop a job by kinds of ranks, and whether checkpoints are saved.

    python tests/faults/stops/stop_matrix.py --launcher run --sender kill --sender ssh
    python tests/faults/stops/stop_matrix.py --results target/stops.json --write docs/stop-matrix.md

Exit status 1 if a job of rlaunch has lost a checkpoint or left a process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

sys.path += [
    str(Path(__file__).parents[2] / folder)
    for folder in ("faults", "python/support", "python/support/machines", "python/notebook", "cluster")
]

# Importing them registers the senders, in the order of the table.
import senders  # noqa: F401
import senders_unpacked
import slurm_cluster
from stop_cell import LAUNCHERS, RANKS, REAL, SENDERS, SETTLE, Seen, Sender, StopLauncher, run
from stop_ranks import KINDS, RankKind

HEAD = """# Stop matrix

Users, tools and platforms stop a job in different ways, and ranks react in different ways. This page says
under which launcher the ranks' checkpoint is saved. The same code (`tests/faults/stops/`) does the same to
each launcher, with real programs as senders. Written by `make stops`; do not edit. Linux {linux}, Python
{python}, {cores} cores.

A job has {ranks} ranks. A rank that saves needs {save:g} s for it. Each launcher has its default grace
period, which is 30 s under all of them. The stop comes once all ranks have installed their signal handlers.
Each cell has, separated by commas:

- **Saved**: ranks whose checkpoint file is whole, which means that it has its last line. A rank that ignores
  the signals has saved if the last of its periodic checkpoints is whole and no process writes it any more.
- **Seconds** from the stop to the end of the job's last process. *No end*: it still ran at the test's limit.
- **Exit status** of the command that the user started, or the signal that killed it; under Slurm the state of
  the job. *No status*: the sender does not wait for it.
- **Left**: processes of the job that live {settle:g} s after the command's end, if there are any.

✗: not all ranks have saved, or a process is left. n/a: the launcher has no such command, and the row is not
counted.

"""
AFTER_SUMMARY = """
The table counts senders under which both ranks saved and no process was left. A cell in brackets is not
counted: the sender itself signals the workers and ends them, so no launcher can keep them.
[Another table](#{anchor}) repeats it with workers that ignore the signals.

## Senders

"""


class CellKey(NamedTuple):
    """A cell of the matrix."""

    sender: str
    kind: str
    launcher: str

    def __str__(self) -> str:
        return "/".join(self)


Results = dict[CellKey, Seen]


def applies(sender: Sender, kind: RankKind, launcher: StopLauncher) -> bool:
    """Whether there is such a cell."""
    if sender.ours_alone and not launcher.ours:
        return False
    return sender.to_all or kind.name != "guarded"


def all_keys() -> list[CellKey]:
    return [
        CellKey(sender.name, kind.name, launcher.name)
        for kind in KINDS.values()
        for sender in SENDERS.values()
        for launcher in LAUNCHERS.values()
        if applies(sender, kind, launcher)
    ]


def counts(sender: Sender, kind: RankKind) -> bool:
    """Whether it is the launcher that decides about the checkpoint."""
    return not (sender.to_all and kind.name == "workers")


def cell_text(key: CellKey, seen: Seen) -> str:
    if seen.note:
        words = [seen.note]
    else:
        took = "no end" if seen.seconds is None else f"{seen.seconds:.1f} s"
        words = [f"{seen.saved} of {RANKS}", took, seen.status]
    if seen.leftover:
        words.append(f"{seen.leftover} left")
    text = ", ".join(words).replace("|", "\\|")
    if not counts(SENDERS[key.sender], KINDS[key.kind]):
        return f"({text})"
    return text if seen.good else f"✗ {text}"


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def header(*cells: str) -> list[str]:
    return [line(*cells), "|" + "---|" * len(cells)]


def score(results: Results, kind: RankKind, launcher: str) -> str:
    seen = [
        one
        for key, one in results.items()
        if (key.kind, key.launcher) == (kind.name, launcher) and counts(SENDERS[key.sender], kind)
    ]
    return f"{sum(one.good for one in seen)} of {len(seen)}"


def page(results: Results) -> str:
    """The page, in Markdown."""
    launchers = [name for name in LAUNCHERS if any(key.launcher == name for key in results)]
    titles = [f"`{LAUNCHERS[name].title}`" for name in launchers]
    kinds = [kind for kind in KINDS.values() if any(key.kind == kind.name for key in results)]
    about = HEAD.format(
        linux=platform.release().partition("-")[0],
        python=platform.python_version(),
        cores=os.cpu_count(),
        ranks=RANKS,
        save=REAL.save,
        settle=SETTLE,
    )
    lines = [about + line("all saved, nothing left", *titles), "|" + "---|" * (1 + len(titles))]
    lines += [line(kind.title, *(score(results, kind, name) for name in launchers)) for kind in kinds]
    anchor = KINDS["guarded"].title.lower().replace(" ", "-")
    lines += [AFTER_SUMMARY.format(anchor=anchor), *header("sender", "what it does")]
    lines += [line(one.title, one.about.format(**asdict(REAL))) for one in SENDERS.values()]
    for kind in kinds:
        lines += ["", f"## {kind.title}", "", kind.about.format(save=REAL.save), ""]
        lines += header("sender", *titles)
        for one in SENDERS.values():
            keys = [CellKey(one.name, kind.name, name) for name in launchers]
            if any(key in results for key in keys):
                cells = (cell_text(key, results[key]) if key in results else "n/a" for key in keys)
                lines.append(line(one.title, *cells))
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def read_results(file: Path | None) -> Results:
    if file is None or not file.exists():
        return {}
    read = {CellKey(*key.split("/")): Seen(**seen) for key, seen in json.loads(file.read_text()).items()}
    return {key: seen for key, seen in read.items() if key in all_keys()}


def write_results(file: Path, results: Results) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({str(key): asdict(seen) for key, seen in results.items()}, indent=1))


@contextlib.contextmanager
def cluster_for(keys: list[CellKey]) -> Iterator[slurm_cluster.Cluster | None]:
    """The Slurm cluster, where a cell needs it."""
    if all(key.sender != "slurm" for key in keys):
        yield None
        return
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as folder,
        slurm_cluster.cluster(Path(folder)) as cluster,
    ):
        yield cluster


def main() -> int:
    parser = argparse.ArgumentParser(description="Whether checkpoints are saved when jobs are stopped.")
    parser.add_argument("--launcher", action="append", choices=LAUNCHERS, help="again for more (all)")
    parser.add_argument("--sender", action="append", choices=SENDERS, help="again for more (all)")
    parser.add_argument("--kind", action="append", choices=KINDS, help="of rank; again for more (all)")
    parser.add_argument("--jobs", type=int, default=4, help="cells that run at once (4)")
    parser.add_argument("--loader", choices=("torch", "plain"), default="torch", help="of data (torch)")
    parser.add_argument("--results", type=Path, help="results in JSON: those of other cells are kept")
    parser.add_argument("--write", type=Path, help="the file to write the page to (stdout)")
    args = parser.parse_args()

    keys = [
        key
        for key in all_keys()
        if (not args.launcher or key.launcher in args.launcher)
        and (not args.sender or key.sender in args.sender)
        and (not args.kind or key.kind in args.kind)
    ]
    needed = [senders_unpacked.missing()] if any(key.sender == "ssh" for key in keys) else []
    needed += [slurm_cluster.missing()] if any(key.sender == "slurm" for key in keys) else []
    if problems := [problem for problem in needed if problem is not None]:
        print(f"stop_matrix: {problems[0]}", file=sys.stderr)
        return 2
    results = read_results(args.results)
    lock = threading.Lock()

    with cluster_for(keys) as cluster, ThreadPoolExecutor(args.jobs) as pool:

        def measure(key: CellKey) -> None:
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="stops-") as folder:
                seen, _ = run(
                    SENDERS[key.sender],
                    KINDS[key.kind],
                    LAUNCHERS[key.launcher],
                    REAL,
                    Path(folder),
                    args.loader,
                    cluster,
                )
            with lock:
                results[key] = seen
                if args.results:
                    write_results(args.results, results)
            took = time.monotonic() - began
            print(f"{took:6.1f} s  {key!s:36} {cell_text(key, seen)}", file=sys.stderr, flush=True)

        list(pool.map(measure, keys))
    text = page(results)
    if args.write:
        args.write.write_text(text)
    else:
        print(text, end="")
    ours = [name for name, launcher in LAUNCHERS.items() if launcher.ours]
    return int(
        any(
            not seen.good and counts(SENDERS[key.sender], KINDS[key.kind])
            for key, seen in results.items()
            if key.launcher in ours
        )
    )


if __name__ == "__main__":
    sys.exit(main())
