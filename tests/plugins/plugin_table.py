"""Compares tests on ranks with plain tests beside each plugin, and writes docs/pytest-plugins.md.

    python tests/plugins/plugin_table.py --results target/plugins.json --write docs/pytest-plugins.md

The file of the results keeps each plugin that has been compared. A later call adds those that are missing;
`--again` compares the chosen ones once more. With `--install` the environments are only made.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypedDict

from conformance import compare, install, version
from plugin_list import PLUGINS, Plugin

EQUAL = "equal"
HEAD = """# Plugins of pytest

<!-- Written by `make plugins`; do not edit. -->

Each row compares two runs of one suite in an environment with pytest, this plugin and rlaunch: once as
plain tests, once as tests on two ranks. The tests in `tests/plugins/suite` pass, fail, crash, hang, skip
and xfail, and fail in their setup and teardown. "Equal" means that each test had the same outcomes in
both runs, reruns included, and that pytest had the same exit status.

A crash is a SIGSEGV on a rank: in the setup, the call, the teardown, or after it. The plain test raises
an exception at that place, because its crash would end the session. A plain test that hangs raises one
too, except beside pytest-timeout. Where the ranks do different things, such as a skip and a failure, the
plain test does the worse one.

Each plugin has two rows: merely installed, and in use. In the second one its options are set, or tests
use its fixtures and markers. Ranks are forked from a preloaded process. Beside {fresh}
they are new interpreters in the first row.

One difference is not in the suite. When a test has failed, the other ranks are stopped. An error in a
teardown that follows is then not reported.

The plugins are the most downloaded ones, down to place 1,800, and a selection of those that follow.
"Place" is the one among the 15,000 most downloaded packages of PyPI, in a list of autumn 2026. Plugins
that need a server, a browser or a framework are left out, such as pytest-django. So are those of
services, such as langsmith, and packages without an effect of their own on tests, such as pytest-runner.
pytest-forked fails with pytest 9. With `--profile` of pytest-profiling, all ranks of a test write the
same file, and such tests fail now and then.

Python {python}, pytest {pytest}. {equal} of {rows} rows are equal, of {plugins} plugins.

| plugin | version | place | tried | plain tests | tests on ranks | result |
|---|---|---|---|---|---|---|
"""


class Row(TypedDict):
    plugin: str
    version: str
    pytest: str
    tried: str
    plain: str
    ranks: str
    differences: list[str]


def make_row(plugin: Plugin, in_use: bool) -> Row:
    python = install(plugin)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        seen = compare(plugin, in_use, Path(folder))
    row = Row(
        plugin=plugin.name,
        version=version(python, plugin.name),
        pytest=version(python, "pytest"),
        tried=plugin.describe() if in_use else "merely installed",
        plain=seen.plain.counts(),
        ranks=seen.ranks.counts(),
        differences=seen.differences(),
    )
    result = "\n    ".join(row["differences"]) or EQUAL
    print(f"{plugin.name}, {row['tried']}, {time.monotonic() - begin:.0f} s: {result}", flush=True)
    return row


def make_rows(plugins: Iterable[Plugin], jobs: int, results: dict[str, Row], file: Path | None) -> None:
    """Compares beside these plugins, `jobs` at a time."""
    pairs = [(plugin, in_use) for plugin in plugins for in_use in (True, False)]
    with ThreadPoolExecutor(jobs) as pool:
        for plugin, _ in pairs[::2]:
            pool.submit(install, plugin).result()
        waiting = {pool.submit(make_row, *pair): _key(*pair) for pair in pairs}
        for done in as_completed(waiting):
            results[waiting[done]] = done.result()
            if file is not None:
                file.write_text(json.dumps(results, indent=1))


def _key(plugin: Plugin, in_use: bool) -> str:
    return f"{plugin.name}, {'in use' if in_use else 'installed'}"


def as_page(results: dict[str, Row]) -> str:
    places = {plugin.name: plugin.place for plugin in PLUGINS}
    keys = [_key(plugin, in_use) for plugin in PLUGINS for in_use in (False, True)]
    rows = [results[key] for key in keys if key in results]
    head = HEAD.format(
        python=platform.python_version(),
        pytest=", ".join(sorted({row["pytest"] for row in rows})),
        equal=sum(not row["differences"] for row in rows),
        rows=len(rows),
        fresh=", ".join(plugin.name for plugin in PLUGINS if plugin.likely),
        plugins=len({row["plugin"] for row in rows}),
    )
    return head + "".join(_as_line(row, places[row["plugin"]]) for row in rows)


def _as_line(row: Row, place: int) -> str:
    result = "<br>".join(row["differences"]) or EQUAL
    cells = [row["plugin"], row["version"], f"{place:,}", row["tried"], row["plain"], row["ranks"], result]
    return "".join(f"| {cell.replace('|', chr(92) + '|')} " for cell in cells) + "|\n"


def choose(names: Iterable[str]) -> list[Plugin]:
    """The plugins of these names, or all. `likely`: those that CI tests."""
    names = set(names)
    return [p for p in PLUGINS if not names or p.name in names or ("likely" in names and p.likely)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="plugins, or 'likely'; all by default")
    parser.add_argument("--install", action="store_true", help="make the environments only")
    parser.add_argument("--again", action="store_true", help="compare even those that the results have")
    parser.add_argument("--jobs", type=int, default=4, help="rows at a time")
    parser.add_argument("--results", type=Path, help="JSON file of the results")
    parser.add_argument("--write", type=Path, help="write the page into this file")
    args = parser.parse_args()
    chosen = choose(args.names)
    if args.install:
        for plugin in chosen:
            install(plugin)
        return 0
    has_results = args.results is not None and args.results.exists()
    results: dict[str, Row] = json.loads(args.results.read_text()) if has_results else {}
    known = () if args.again else results
    missing = [plugin for plugin in chosen if any(_key(plugin, use) not in known for use in (True, False))]
    make_rows(missing, args.jobs, results, args.results)
    if args.write is not None:
        args.write.write_text(as_page(results))
    return int(any(row["differences"] for row in results.values()))


if __name__ == "__main__":
    sys.exit(main())
