"""The task of a rank: which test it runs, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# As `Task.debug_rank`: the first rank that fails.
ANY_RANK = -1
# As `workerid` in `Task.worker`, if no worker of pytest-xdist runs the test: the value of its `worker_id`.
NO_WORKER = "master"


@dataclass
class Task:
    """What a rank of a test receives. Plain types: a rank unpickles it before it imports the test suite.

    Attributes:
        path, names: the test: its file, and the names of its nodes below the file.
        options: the parent's options that can be pickled, each pickled.
        plugins: the values of ``-p``.
        folder: the folder in which pytest was started.
        cwd: the parent's working folder.
        basetemp: the parent's base of temporary folders; None without pytest's tmpdir plugin.
        worker: the ``workerinput``, each value pickled.
        worker_id: the worker of pytest-xdist that runs the test; None without pytest-xdist.
        captures: whether output goes to files instead of the terminal.
        has_colour, width: of the terminal.
        debug_rank: the rank that enters the debugger when its test fails, ``ANY_RANK``, or None.
        is_forked: whether the rank is forked off the parent itself.
        coverage: how the parent measures coverage, as in ``rank_coverage``.
        values: fixture values of the parent by name, each pickled.
        parameters: the parent's parameters of the test by name, as ``describe_parameters`` returns them.
    """

    path: str
    names: list[str]
    options: dict[str, bytes]
    plugins: list[str]
    folder: str
    cwd: str
    basetemp: str | None
    worker: dict[str, bytes]
    worker_id: str | None
    captures: bool
    has_colour: bool
    width: int
    debug_rank: int | None = None
    is_forked: bool = False
    coverage: dict[str, Any] | None = None
    values: dict[str, bytes] = field(default_factory=dict)
    parameters: dict[str, bytes | str] = field(default_factory=dict)


def list_node_names(item: pytest.Item) -> list[str]:
    """Returns the names of a test's nodes below its file."""
    chain = item.listchain()
    files = [i for i, node in enumerate(chain) if isinstance(node, pytest.File)]
    return [node.name for node in chain[files[-1] + 1 :]]


def is_conftest(plugin: object) -> bool:
    """Returns whether a plugin is a ``conftest.py``."""
    return Path(getattr(plugin, "__file__", None) or "").name == "conftest.py"
