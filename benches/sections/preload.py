"""The cost of ranks that are forked from a zygote: the time until all are past an import, and memory."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from bench_launchers import RLAUNCH
from figures import Promise
from running import answer, succeed
from sections.start import timed, written
from session import Session

RANKS = 8

# A rank comes into the function, says so, and sleeps until the program opens the gate.
IDLERS = """
import importlib, os

def idle(module, tell, gate):
    importlib.import_module(module)
    os.write(tell.fileno(), b"x")
    with open(gate):
        pass
"""

# Imports no framework itself. It is the only one that can read the pipe to its end.
PROGRAM = """
import json, multiprocessing, os, sys, time, warnings
from pathlib import Path

import rlaunch
from idlers import idle

def below(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *below(child)]
    return found

def main(module, ranks, method, turns, benches):
    sys.path.append(benches)
    from running import pss
    warnings.simplefilter("ignore")
    options = {"start_method": method} | ({"preload": module} if method == "zygote" else {})
    gate = str(Path(__file__).with_name(f"gate.{os.getpid()}"))
    os.mkfifo(gate)
    starts = []
    for _ in range(turns):
        receiver, tell = multiprocessing.Pipe(duplex=False)
        begin = time.monotonic()
        context = rlaunch.spawn(idle, (module, tell, gate), ranks, join=False, **options)
        tell.close()
        come = 0
        while come < ranks:
            said = os.read(receiver.fileno(), ranks)
            come += len(said) or context.results()
        starts.append({"seconds": time.monotonic() - begin, "memory": pss(below(os.getpid()))})
        with open(gate, "w"):
            context.results()
    print(json.dumps(starts))

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])
"""


@dataclass
class Start:
    """One start of all ranks.

    Attributes:
        seconds: until all of them were in the function.
        memory: of them and the zygote while they idled there, MB.
    """

    seconds: float
    memory: float


def measure_preload(session: Session) -> None:
    """From `spawn` until all ranks have imported a framework, and what they then hold while they idle."""
    written(session.folder, "idlers.py", IDLERS)
    script = written(session.folder, "program.py", PROGRAM)

    def starts(module: str, method: str, turns: int) -> list[Start]:
        command = [RLAUNCH.python, str(script), module, str(RANKS), method, str(turns)]
        return [Start(**it) for it in answer([*command, str(Path(__file__).parents[1])])]

    def alone(module: str) -> float:
        return timed(lambda: succeed([RLAUNCH.python, "-c", f"import {module}"])) / 1000

    for module in ("torch", "paddle"):
        alone(module)  # Its files are in memory from here on.
        imports, cold, warm = [], [], []
        for _ in range(session.amount(5, 1)):
            imports.append(alone(module))
            first, *later = starts(module, "zygote", session.amount(4, 2))
            cold.append(first)
            warm += later
        (without,) = starts(module, "spawn", 1)
        one = statistics.median(imports)
        first_seconds = statistics.median(it.seconds for it in cold)
        memory = statistics.median(it.memory for it in cold)

        def row(what: str, figure: float, unit: str, promise: Promise | None = None) -> None:
            session.row(what, {RLAUNCH.name: figure}, unit, promise)

        row(f"one import of {module}, no ranks", one, "s")
        row(f"{RANKS} ranks past it, a program's first start by a zygote", first_seconds, "s")
        row("the same, in imports", first_seconds / one, "imports", Promise("V7", most=1.3))
        row("the program's later starts", statistics.median(it.seconds for it in warm), "s")
        row("start method spawn", without.seconds, "s")
        row("memory of the ranks and the zygote, PSS", memory, "MB")
        row("start method spawn, PSS", without.memory, "MB")
        row("the former in parts of the latter", memory / without.memory, "", Promise("V7", most=1 / 3))
