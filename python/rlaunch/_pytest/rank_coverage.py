"""Coverage of ranks: measured as the parent measures its own, and added to the parent's data."""

from __future__ import annotations

import os
import sys
from typing import Any


def read_settings(folder: str) -> dict[str, Any] | None:
    """Returns how coverage.py measures this process, for ranks that write to ``folder``; None: not at all."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage is not None else None
    if current is None:
        return None
    config = current.config
    return {
        "folder": folder,
        "options": {
            "config_file": config.config_file or False,
            "branch": config.branch,
            "source": config.source,
            "source_pkgs": config.source_pkgs,
            "include": config.run_include,
            "omit": config.run_omit,
            "concurrency": config.concurrency,
        },
    }


class RankCoverage:
    """Measures a rank in a ``with`` block, with the settings of ``read_settings``."""

    def __init__(self, settings: dict[str, Any] | None, rank: int) -> None:
        self._settings = settings
        self._rank = rank
        self._coverage: Any = None

    def __enter__(self) -> RankCoverage:
        if self._settings is None:
            return self
        import coverage

        inherited = coverage.Coverage.current()
        if inherited is not None:  # This rank was forked off a measured process, whose data stay there.
            inherited.stop()
        options = {name: value for name, value in self._settings["options"].items() if value is not None}
        path = os.path.join(self._settings["folder"], f"coverage.{self._rank}")
        self._coverage = coverage.Coverage(data_file=path, **options)
        self._coverage.start()
        return self

    def save(self) -> None:
        """Writes what has been measured so far. The parent stops a rank whose test has not passed."""
        if self._coverage is not None:
            self._coverage.save()

    def __exit__(self, *_: object) -> None:
        if self._coverage is not None:
            self._coverage.stop()
            self._coverage.save()


def add_to_parent(folder: str, ranks: int) -> None:
    """Adds the ranks' data to this process's, in its context. A rank that was killed has written none."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage is not None else None
    if coverage is None or current is None:
        return
    for rank in range(ranks):
        path = os.path.join(folder, f"coverage.{rank}")
        if os.path.exists(path):
            data = coverage.CoverageData(basename=path)
            data.read()
            _add(current.get_data(), data)


def _add(whole: Any, part: Any) -> None:
    # update() alone leaves out the hash in the name of a data file (seen with coverage 7.17.3).
    # One worker's file could pass for a duplicate of another's, which is not combined.
    if part.measured_contexts() - {""}:
        whole.update(part)
    files = part.measured_files()
    if files and part.has_arcs():
        whole.add_arcs({file: part.arcs(file) for file in files})
    elif files:
        whole.add_lines({file: part.lines(file) for file in files})
    tracers = {file: part.file_tracer(file) for file in files}
    whole.add_file_tracers({file: tracer for file, tracer in tracers.items() if tracer})
