"""Coverage of what runs in ranks: measured there as in the parent, and added to what the parent has."""

from __future__ import annotations

import os
import sys
from typing import Any


def asked(folder: str) -> dict[str, Any] | None:
    """How coverage.py measures this process, for ranks that are to write to ``folder``; None: not at all."""
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


class Measured:
    """A rank that is measured while the block runs."""

    def __init__(self, wanted: dict[str, Any] | None, rank: int) -> None:
        self._wanted = wanted
        self._rank = rank
        self._coverage: Any = None

    def __enter__(self) -> None:
        if self._wanted is None:
            return
        import coverage

        inherited = coverage.Coverage.current()
        if inherited is not None:  # Forked off a process that is measured: its data are its own.
            inherited.stop()
        options = {name: value for name, value in self._wanted["options"].items() if value is not None}
        path = os.path.join(self._wanted["folder"], f"coverage.{self._rank}")
        self._coverage = coverage.Coverage(data_file=path, **options)
        self._coverage.start()

    def __exit__(self, *_: object) -> None:
        if self._coverage is not None:
            self._coverage.stop()
            self._coverage.save()


def add(folder: str, ranks: int) -> None:
    """Adds what the ranks have measured to what this process has. One that was killed has written nothing."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage is not None else None
    if coverage is None or current is None:
        return
    for rank in range(ranks):
        path = os.path.join(folder, f"coverage.{rank}")
        if os.path.exists(path):
            data = coverage.CoverageData(basename=path)
            data.read()
            current.get_data().update(data)
