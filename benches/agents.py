"""How many nodes agree, in what time and by how many bytes, at a real etcd and at a real embedded master.

    make agents                                     10 to 1,000 nodes, and writes docs/agents.md and .svg
    .venv/bin/python benches/agents.py 10 100       these numbers, and nothing written

All nodes are backends in one process on this machine, and so is the etcd or master: they share its cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sections.rendezvous import etcd_server

COUNTS = (10, 30, 100, 300, 1000)
# How long these take is mostly the lease, of 30 s here.
COUNTS_OF_LOSSES = (100, 1000)
LOSSES = ("leader", "churn")
BACKENDS = ("master", "etcd")
COLOURS = {"master": "#b5541c", "etcd": "#1c6fb5"}
# Of bytes a node, between the last two numbers of nodes: as many times more as there are nodes, and a bit.
NO_WORSE_THAN_LINEAR = 1.1
PROMISED_SECONDS = 10.0
# Of 1,000 nodes: a quarter of what a list without compression needs.
PROMISED_BYTES = 115 * 1024
WIDTH, HEIGHT, MARGIN = 420, 300, 60


@dataclass
class Point:
    backend: str
    what: str
    nodes: int
    seconds: float
    bytes_per_node: float


def measure(backend: str, what: str, nodes: int) -> Point:
    command = ["cargo", "bench", "--quiet", "--locked", "--bench", "agents", "--", backend, what, str(nodes)]
    with tempfile.TemporaryDirectory(prefix="agents") as folder:
        if backend == "etcd":
            with etcd_server(Path(folder)) as port:
                done = run([*command, f"http://127.0.0.1:{port}"])
        else:
            done = run(command)
    found = json.loads(done.splitlines()[-1])
    return Point(backend, what, nodes, found["seconds"], found["bytes_per_node"])


def run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def table(points: list[Point]) -> str:
    lines = [
        "| nodes | master, s | etcd, s | master, KiB a node | etcd, KiB a node |",
        "|---|---|---|---|---|",
    ]
    for nodes in sorted({point.nodes for point in points}):
        of = {point.backend: point for point in points if point.nodes == nodes}
        times = [f"{of[backend].seconds:.2f}" for backend in BACKENDS]
        sizes = [f"{of[backend].bytes_per_node / 1024:.0f}" for backend in BACKENDS]
        lines.append(f"| {' | '.join([str(nodes), *times, *sizes])} |")
    return "\n".join(lines) + "\n"


def table_of_losses(points: list[Point]) -> str:
    lines = [
        "| nodes | | master, s | etcd, s | master, KiB a node | etcd, KiB a node |",
        "|---|---|---|---|---|---|",
    ]
    named = {"leader": "one node is lost; at etcd, the one that leads", "churn": "a tenth is replaced"}
    for nodes, what in sorted({(point.nodes, point.what) for point in points}, reverse=True):
        of = {point.backend: point for point in points if (point.nodes, point.what) == (nodes, what)}
        times = [f"{of[backend].seconds:.2f}" for backend in BACKENDS]
        sizes = [f"{of[backend].bytes_per_node / 1024:.0f}" for backend in BACKENDS]
        lines.append(f"| {' | '.join([str(nodes), named[what], *times, *sizes])} |")
    return "\n".join(lines) + "\n"


def plot(points: list[Point]) -> str:
    """Two panels with logarithmic axes."""
    panels = [
        panel(0, "seconds until all run", points, lambda point: point.seconds),
        panel(WIDTH, "KiB a node", points, lambda point: point.bytes_per_node / 1024),
    ]
    size = f'width="{2 * WIDTH}" height="{HEIGHT}" viewBox="0 0 {2 * WIDTH} {HEIGHT}"'
    style = 'font-family="sans-serif" font-size="12"'
    background = f'<rect width="{2 * WIDTH}" height="{HEIGHT}" fill="white"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{background}{"".join(panels)}</svg>\n'


def panel(left: int, title: str, points: list[Point], value: object) -> str:
    assert callable(value)
    xs = [math.log10(point.nodes) for point in points]
    ys = [math.log10(value(point)) for point in points]
    low, high = math.floor(min(ys)), math.ceil(max(ys))

    def x(log: float) -> float:
        return left + MARGIN + (log - min(xs)) / (max(xs) - min(xs)) * (WIDTH - 2 * MARGIN)

    def y(log: float) -> float:
        return HEIGHT - MARGIN + (log - low) / (high - low) * (2 * MARGIN - HEIGHT)

    parts = [f'<text x="{left + WIDTH / 2}" y="24" text-anchor="middle">{title}</text>']
    for decade in range(low, high + 1):
        line = f'x1="{x(min(xs))}" x2="{x(max(xs))}" y1="{y(decade)}" y2="{y(decade)}"'
        parts.append(f'<line {line} stroke="#ddd"/>')
        label = f"{10.0**decade:g}"
        parts.append(f'<text x="{x(min(xs)) - 8}" y="{y(decade) + 4}" text-anchor="end">{label}</text>')
    for count in sorted({point.nodes for point in points}):
        at = f'x="{x(math.log10(count))}" y="{HEIGHT - MARGIN + 20}"'
        parts.append(f'<text {at} text-anchor="middle">{count}</text>')
    parts.append(f'<text x="{left + WIDTH / 2}" y="{HEIGHT - 16}" text-anchor="middle">nodes</text>')
    for number, backend in enumerate(BACKENDS):
        own = [point for point in points if point.backend == backend]
        dots = [(x(math.log10(point.nodes)), y(math.log10(value(point)))) for point in own]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in dots)
        colour = COLOURS[backend]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in dots]
        legend = f'x="{x(min(xs)) + 10}" y="{MARGIN + 4 + 16 * number}"'
        parts.append(f'<text {legend} fill="{colour}">{backend}</text>')
    return "".join(parts)


def broken(points: list[Point]) -> list[str]:
    """The broken promises."""
    found = []
    for backend in BACKENDS:
        firsts = [point for point in points if (point.backend, point.what) == (backend, "first")]
        *_, before, last = sorted(firsts, key=lambda point: point.nodes)
        more = last.bytes_per_node / before.bytes_per_node / (last.nodes / before.nodes)
        if more > NO_WORSE_THAN_LINEAR:
            found.append(f"{backend}: bytes a node grow {more:.2f} times as fast as the number of nodes")
        if last.nodes == 1000 and last.bytes_per_node > PROMISED_BYTES:
            found.append(f"{backend}: {last.bytes_per_node:.0f} bytes a node, promised {PROMISED_BYTES}")
        for point in points:
            if point.backend == backend and point.seconds > PROMISED_SECONDS:
                found.append(
                    f"{backend}, {point.what}: {point.nodes} nodes took {point.seconds:.1f} s, "
                    f"promised {PROMISED_SECONDS:g}"
                )
    return found


HEAD = """# How many nodes agree

Time from the start of the first node until every node has read the first round with its members, and the
bytes that a node reads. A node brings 8 ranks and their endpoints, the longest records there are. Written by
`make agents`; do not edit. {machine}. All nodes, and the etcd or the master of the rendezvous, are on this
one machine and share its cores: what is measured is all the work of all of them.

"""
TAIL = """
![time and bytes against nodes](agents.svg)

Each node reads the list of members once a round: frameworks want the endpoints of all ranks. It is
compressed, and what is left is mostly what is random, the ports and the nodes' ids. The bytes that a node
sends do not depend on the number of nodes.

## After a loss

Nodes end without a word. Time from the lapse of the last one's lease (of 30 s here) until all others have
received the next round with its members: no round begins earlier. At etcd, where a node is missing, 1 s of
it is the last call; the tenth that is replaced has the leader in it. Bytes sent and read from the end of the
nodes on, with all renewals of leases.

"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("counts", nargs="*", type=int, metavar="NODES")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write agents.md and agents.svg there")
    chosen = parser.parse_args(arguments)
    points = []
    for nodes in chosen.counts or COUNTS:
        for backend in BACKENDS:
            points.append(measure(backend, "first", nodes))
            print(points[-1], flush=True)
    losses = []
    for nodes in chosen.counts or COUNTS_OF_LOSSES:
        for backend in BACKENDS:
            for what in LOSSES:
                losses.append(measure(backend, what, nodes))
                print(losses[-1], flush=True)
    if chosen.write:
        machine = f"{os.cpu_count()} cores, Linux {platform.release().partition('-')[0]}, etcd 3.5.1"
        chosen.write.joinpath("agents.md").write_text(
            HEAD.format(machine=machine) + table(points) + TAIL + table_of_losses(losses)
        )
        chosen.write.joinpath("agents.svg").write_text(plot(points))
    else:
        print(table(points))
        print(table_of_losses(losses))
    wrong = broken([*points, *losses]) if len(set(chosen.counts or COUNTS)) > 1 else []
    for line in wrong:
        print(f"broken: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
