"""Random writers, stalls, full disks: each line of a rank is on the console, in a log, or counted as lost."""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
import time
from pathlib import Path
from typing import BinaryIO

import pytest
from launching import LIMIT, validate
from oracle import SEED
from small_disk import BALLAST, SmallDisk
from torch_launching import TorchPlace

CASES = 40 if "RLAUNCH_TEST_FULL" in os.environ else 6

WRITER = """
import random
draw = random.Random(int(sys.argv[1]))
number = 0
for phase in range(draw.randrange(1, 6)):
    if draw.random() < 0.4:
        fill("disk")
    for _ in range(draw.choice([1, 100, 3000])):
        stream, lines = draw.choice([1, 2]), draw.choice([1, 1, 7, 200])
        data = b"".join(b"%063d\\n" % n for n in range(number, number + lines))
        number += lines
        while data:
            data = data[os.write(stream, data) :]
    time.sleep(draw.random() * 0.05)
    if os.path.exists("disk/ballast"):
        free("disk")
tell("written", number)
"""


# What a pipe holds (pipe(7)). A reader that goes takes it along, though the launcher has shown it.
PIPE = 64 << 10


def read_at_random(reader: BinaryIO, draw: random.Random, into: list[bytes], left: list[int]) -> None:
    """Reads pieces, with pauses. May go away before the end, which it notes in ``left``."""
    leaves_after = draw.choice([None, None, 0, 10_000, 1_000_000])
    total = 0
    with reader:
        while leaves_after is None or total < leaves_after:
            if draw.random() < 0.02:
                time.sleep(draw.random() * 0.3)
            piece = os.read(reader.fileno(), draw.choice([100, 4096, 65536]))
            if not piece:
                return
            total += len(piece)
            into.append(piece)
    left.append(total)


def numbers(data: bytes) -> set[int]:
    return {int(line) for line in data.split(b"\n") if len(line) == 63 and line.isdigit()}


@pytest.mark.parametrize("case", range(CASES))
def test_every_line_is_somewhere(tmp_path: Path, case: int) -> None:
    draw = random.Random(f"{SEED}/{case}")
    place = TorchPlace(tmp_path)
    place.script(BALLAST + WRITER)
    is_joined, size = draw.random() < 0.5, draw.choice(["2m", "16m"])
    disk = SmallDisk(place, size=size)
    options = {"stderr": subprocess.STDOUT} if is_joined else {}
    args = ["--log-dir=disk", "--console-drain-timeout=2", "train.py", str(draw.randrange(1 << 30))]
    with disk.start(*args, **options) as launcher:
        shown: list[list[bytes]] = []
        left: list[int] = []
        threads = []
        for pipe in (launcher.stdout, launcher.stderr):
            if pipe is not None:
                into: list[bytes] = []
                args = (
                    os.fdopen(os.dup(pipe.fileno()), "rb", buffering=0),
                    random.Random(draw.random()),
                    into,
                    left,
                )
                shown.append(into)
                threads.append(threading.Thread(target=read_at_random, args=args))
                pipe.close()
        launcher.stdout = launcher.stderr = None
        for thread in threads:
            thread.start()
        assert launcher.wait(LIMIT) == 0
        for thread in threads:
            thread.join()
    written = set(range(int(place.text("written.0"))))
    found = set().union(*(numbers(b"".join(pieces)) for pieces in shown))
    results = [
        *(place.folder / "after").glob("*/rlaunch/result.json"),
        *(place.folder / "tmp").glob("rlaunch-result-*"),
    ]
    (result,) = [json.loads(path.read_text()) for path in results]
    validate(result, "result")
    for log in (place.folder / "after").glob("*/rlaunch/attempt_0/0/*.log"):
        found |= numbers(log.read_bytes())
    lost = result["lost_bytes"]
    missing = written - found
    assert found <= written
    # At each place where bytes are lost, a line before and one after are in pieces.
    in_pieces = 64 * 8 if lost or left else 0
    assert len(missing) * 64 <= lost + in_pieces + len(left) * PIPE, (sorted(missing)[:5], lost, left)
