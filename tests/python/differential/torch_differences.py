"""Where ``rlaunch.run`` differs from torchrun on purpose, by what each does: docs/differences-torchrun.md."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch_lines import Line

Is = Callable[[Any, Line], bool]


@dataclass(frozen=True)
class Seen:
    """The place of a difference, with the value of each side; None: no value."""

    key: str
    theirs: Is
    ours: Is

    def is_it(self, key: str, theirs: Any, ours: Any, line: Line) -> bool:
        return bool(re.fullmatch(self.key, key)) and self.theirs(theirs, line) and self.ours(ours, line)


@dataclass(frozen=True)
class Difference:
    """One difference. ``what``: its line in docs/differences-torchrun.md begins with that."""

    what: str
    seen: tuple[Seen, ...]
    # Whether any line may show it.
    everywhere: bool = False


def exactly(value: Any) -> Is:
    return lambda seen, _: bool(seen == value)


def with_text(*parts: str) -> Is:
    return lambda seen, _: all(part in str(seen) for part in parts)


def anything(seen: Any, _: Line) -> bool:
    return seen is not None


def refused(seen: Any, line: Line) -> bool:
    return seen == line.status and seen in (2, 66) and bool(line.says)


def hides(line: Line) -> bool:
    """Whether there are workers that the console does not show."""
    return re.search("local.ranks.filter", f"{line.words} {line.env}", re.IGNORECASE) is not None


def often(what: str, key: str, theirs: Is, ours: Is) -> Difference:
    return Difference(what, (Seen(key, theirs, ours),), everywhere=True)


def accepted(what: str, status: int) -> Difference:
    """The cases in which torchrun ends with this status."""
    of_worker = Seen(r"worker \d\.\d", exactly(None), exactly("there"))
    return Difference(what, (Seen("status", exactly(status), exactly(0)), of_worker))


WORKER = r"worker \d\.\d:"
NOTHING = exactly(None)
THERE = exactly("there")

DIFFERENCES = {
    "exit status": often(
        "exit status", "status", exactly(1), lambda seen, line: seen == line.status != 0 and not line.says
    ),
    "refused": often("a value that cannot be used", "status", exactly(1), refused),
    "own variables": often(
        "variables",
        f"{WORKER} env RLAUNCH_(EXCEPTION_FILE|EXPORTED|OUTER_LOGS|RANK_KEY|ROUND|STOP_SLOT)",
        NOTHING,
        anything,
    ),
    "address": often(
        "`MASTER_ADDR` on one node",
        f"{WORKER} env MASTER_ADDR",
        exactly(socket.getfqdn()),
        exactly("localhost"),
    ),
    "descriptors": often(
        "a worker's descriptors",
        f"{WORKER} files",
        exactly([0, 1, 2]),
        lambda seen, _: len(seen) == 4 and seen[:3] == [0, 1, 2],
    ),
    "captured": often(
        "a worker's stderr",
        f"{WORKER} descriptor 2",
        lambda seen, line: seen == "HERE/err" or (seen == "/dev/null" and hides(line)),
        lambda seen, _: re.search(r"/fd/pipe:\[\d+\]$", seen) is not None,
    ),
    "absolute": often(
        "`--log-dir` that is relative",
        f"{WORKER} env TORCHELASTIC_ERROR_FILE",
        lambda seen, _: seen.startswith(("logs/", "a/b/logs/")),
        lambda seen, _: seen.startswith(("HERE/logs/", "HERE/a/b/logs/")),
    ),
    "temporary folder": often(
        "the temporary log folder",
        r"log tmp/torchelastic_X/.*",
        anything,
        lambda seen, line: seen is None and (line.status == 0 or bool(line.says)),
    ),
    "last lines": often(
        "the report of a failure",
        r"err:   (traceback : )?say err \d.*",
        NOTHING,
        lambda seen, line: seen == 1 and line.status != 0,
    ),
    "host": often(
        "`hostname` of events", "event .*: hostname", exactly(socket.getfqdn()), exactly(socket.gethostname())
    ),
    "words for flags": accepted("`PET_STANDALONE=true` and the like", 1),
    "maps beyond 9": accepted("`--redirects 10:3`, `--tee 10:3`", 1),
    "abbreviations": accepted("`--nproc=2`", 2),
    "binding": accepted("`--numa-binding` without an accelerator", 1),
    "lines without logs": accepted("`--duplicate-stdout-filters` and the like with `--log-dir /dev/null`", 1),
    "filter without logs": Difference(
        "`--local-ranks-filter` with `--log-dir /dev/null`",
        (
            Seen(r"out: say out 0\.0 .*", exactly(1), NOTHING),
            Seen(r"err: say err 0\.0 .*", exactly(1), NOTHING),
            Seen("worker 0.0: descriptor 1", exactly("HERE/out"), exactly("/dev/null")),
        ),
    ),
    "completion": Difference("`--print-completion`", (Seen("status", exactly(1), exactly(0)),)),
    "run path": Difference(
        "`--run-path`",
        (
            Seen(
                f"{WORKER} command",
                lambda seen, _: "rlaunch._" not in str(seen[1:]),
                with_text("rlaunch._elastic.run_path"),
            ),
            Seen(f"{WORKER} files", lambda seen, _: len(seen) > 3, lambda seen, _: len(seen) == 4),
            Seen(f"{WORKER} leads", exactly([False, False]), exactly([True, True])),
        ),
    ),
    "inductor": Difference(
        "`TORCHINDUCTOR_CACHE_DIR`",
        (Seen(f"{WORKER} env TORCHINDUCTOR_CACHE_DIR", with_text("torchinductor_"), NOTHING),),
    ),
    "bytes": Difference(
        "bytes of `--tee` that are no UTF-8",
        (
            Seen(r"(out|err): .*say (out|err) \d\.\d \ufffd\ufffd", exactly(1), NOTHING),
            Seen(r"(out|err): .*say (out|err) \d\.\d \\xff\\xfe", NOTHING, exactly(1)),
        ),
    ),
    "events": Difference(
        "events of a job that failed",
        (
            Seen("event SUCCEEDED of AGENT None in 0", THERE, NOTHING),
            Seen("event FAILED of AGENT None in 0", NOTHING, THERE),
            Seen("event FAILED of WORKER 0 in 0", THERE, NOTHING),
            Seen("event TERMINATED of WORKER 0 in 0", NOTHING, THERE),
        ),
    ),
    "error file of silence": Difference(
        "`TORCHELASTIC_ERROR_FILE` of the launcher, where no worker wrote one",
        (Seen("own error file", NOTHING, THERE),),
    ),
    "error file of a refusal": Difference(
        "the same, where a value cannot be used",
        (
            Seen(
                "own error file: py_callstack",
                with_text("Traceback"),
                with_text("RuntimeError: --max-restarts -1: "),
            ),
            Seen("own error file: message", with_text("AssertionError: "), with_text("--max-restarts -1: ")),
        ),
    ),
}
