"""Coverage of ranks: measured as the parent measures its own, and added to the parent's data."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from .._errors.atomic_file import write_atomically


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
        # The finished file, for the parent.
        self._path = "" if settings is None else _data_path(settings["folder"], rank)

    def __enter__(self) -> RankCoverage:
        if self._settings is None:
            return self
        import coverage

        inherited = coverage.Coverage.current()
        if inherited is not None:  # This rank was forked off a measured process, whose data stay there.
            inherited.stop()
        options = {name: value for name, value in self._settings["options"].items() if value is not None}
        folder = os.path.join(self._settings["folder"], f"rank-{self._rank}")
        os.makedirs(folder, exist_ok=True)
        self._coverage = coverage.Coverage(data_file=os.path.join(folder, "coverage"), **options)
        self._coverage.start()
        return self

    def save(self) -> None:
        """Writes what has been measured so far. The parent stops a rank whose test has not passed.

        coverage.py writes to a file of the rank's own, whose copy appears at once: a rank that is stopped
        while it writes leaves no half of a file to the parent.
        """
        if self._coverage is None:
            return
        self._coverage.save()
        # Its name has a suffix if the configuration says parallel = true.
        written = Path(self._coverage.get_data().data_filename())
        if written.exists():
            write_atomically(self._path, written.read_bytes())

    def __exit__(self, *_: object) -> None:
        if self._coverage is not None:
            self._coverage.stop()
            self.save()


def _data_path(folder: str, rank: int) -> str:
    return os.path.join(folder, f"coverage.{rank}")


def add_to_parent(folder: str, ranks: int) -> None:
    """Adds the ranks' data to this process's, in its context. A rank that was killed has written none.

    A damaged file (the disk was full) adds nothing: a warning names its rank.
    """
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage is not None else None
    if coverage is None or current is None:
        return
    import sqlite3  # coverage.py needs it too; some builds of Python lack it.

    damaged = []
    for rank in range(ranks):
        path = _data_path(folder, rank)
        if os.path.exists(path):
            try:
                _add(coverage, current.get_data(), path)
            except (coverage.CoverageException, sqlite3.DatabaseError) as error:
                damaged.append(f"rank {rank}: {error}")
    if damaged:
        # Last: a filter may turn it into an exception.
        text = "; ".join(damaged)
        warnings.warn(pytest.PytestWarning(f"the coverage of these ranks is lost: {text}"), stacklevel=2)


def _add(coverage: Any, whole: Any, path: str) -> None:
    """Adds a file to ``whole``. Of a damaged one it adds nothing.

    Raises:
        CoverageException, sqlite3.DatabaseError: the file is damaged.
    """
    import sqlite3

    # sqlite finds some damage only when it reads the damaged page, which may be after others were added.
    with contextlib.closing(sqlite3.connect(path)) as database:
        (state,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    if state != "ok":
        raise sqlite3.DatabaseError(state)
    part = coverage.CoverageData(basename=path)
    try:
        part.read()
        files = part.measured_files()
        has_arcs = part.has_arcs()
        measured = {file: part.arcs(file) if has_arcs else part.lines(file) for file in files}
        tracers = {file: part.file_tracer(file) for file in files}
        # update() alone leaves out the hash in the name of a data file (seen with coverage 7.17.3).
        # One worker's file could pass for a duplicate of another's, which is not combined.
        if part.measured_contexts() - {""}:
            whole.update(part)
    finally:
        part.close()
    if files and has_arcs:
        whole.add_arcs(measured)
    elif files:
        whole.add_lines(measured)
    whole.add_file_tracers({file: tracer for file, tracer in tracers.items() if tracer})
