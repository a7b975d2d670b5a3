"""The table of what happened to jobs in a real Slurm cluster, as the tests have seen it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass

HEAD = """# Slurm checks

<!-- Written by `make test-cluster CLUSTER="--write docs/slurm-table.md"`; do not edit. -->

`make test-cluster` starts a cluster of Debian's {versions}: a head and three nodes. Each node has its own
network, hostname, process ids and cgroups. Every row is a test with real launchers. A job has 2 nodes
with 2 ranks each unless the row says otherwise. `launch.py` passes its arguments to `rlaunch.launch()` and
exits with the job's status. GPUs are a stub of the driver. [Slurm and mpirun](slurm.md) says how to use
rlaunch there.

| scenario | command | expected | seen |
|---|---|---|---|
"""
NOT_SEEN = "**the test failed**"


@dataclass
class Row:
    """One scenario. `number`: its place in the table."""

    number: int
    scenario: str = ""
    command: str = ""
    expected: str = ""
    seen: str = NOT_SEEN

    def begin(self, scenario: str, command: str, expected: str) -> None:
        self.scenario, self.command, self.expected = scenario, command, expected

    def as_list(self) -> list[int | str]:
        return list(astuple(self))


def as_page(rows: Iterable[Row], versions: str) -> str:
    return HEAD.format(versions=versions) + "".join(
        f"| {escaped(row.scenario)} | {code(row.command)} | {escaped(row.expected)} | {escaped(row.seen)} |\n"
        for row in rows
    )


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def code(command: str) -> str:
    return "<br>".join(f"`{escaped(line)}`" for line in command.splitlines())


def as_text(rows: Iterable[Row]) -> str:
    return "\n".join(f"{row.scenario}\n    $ {row.command}\n    {row.seen}" for row in rows)
