"""The table of libraries that have run on rlaunch, as the tests have seen it."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from importlib.metadata import version

from scenario_table import NOT_SEEN, code, escaped

HEAD = """# Libraries

<!-- Written by `make test-ecosystem ECOSYSTEM="--write docs/ecosystem.md"`; do not edit. -->

Each row is a test of `make test-ecosystem` with this version of the library: a small script on two ranks, on
CPUs. "As under torchrun" means that the test has run the script on both launchers. Both jobs had the
same ranks, world size and losses, to the last digit. The scripts are in `tests/ecosystem/scripts`. [Jobs for
torch](torch.md) and [Run existing programs](install.md) say how to start such scripts, and
[Debuggers](debuggers.md) how to stop ranks at a breakpoint.

Python {python}, {frameworks}.

| library | version | tried | how it went | command |
|---|---|---|---|---|
"""


@dataclass
class Row:
    """One test. `number`: its place in the table. `library`: its name on PyPI."""

    number: int
    library: str = ""
    tried: str = ""
    command: str = ""
    seen: str = NOT_SEEN

    def begin(self, library: str, tried: str, command: str) -> str:
        """Fills in all but the end; returns the command."""
        self.library, self.tried, self.command = library, tried, command
        return command

    def as_list(self) -> list[int | str]:
        return list(astuple(self))

    def as_line(self) -> str:
        texts = [self.library, version(self.library), self.tried, self.seen]
        return "".join(f"| {escaped(text)} " for text in texts) + f"| {code(self.command)} |\n"


def as_page(rows: Iterable[Row]) -> str:
    frameworks = ", ".join(f"{name} {version(name)}" for name in ("torch", "paddlepaddle"))
    head = HEAD.format(python=platform.python_version(), frameworks=frameworks)
    return head + "".join(row.as_line() for row in rows)


def as_text(rows: Iterable[Row]) -> str:
    return "\n".join(f"{row.library}: {row.tried}\n    $ {row.command}\n    {row.seen}" for row in rows)
