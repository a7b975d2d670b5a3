"""A full disk is waited for: under the console, under the logs and under the records."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from launching import Place, validate
from small_disk import BALLAST, SmallDisk
from torch_launching import TorchPlace

# More than what is left of the last page of a file.
LONG = 9000

FULL_FOR_A_WHILE = f"""
def say(text):
    os.write(2, (text + "x" * {LONG} + "\\n").encode())
say("before ")
until(lambda: os.path.getsize("disk/out") > {LONG}, "the line before")
fill("disk")
say("during ")
await_writes(4)
"""


def lines_of(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if line.endswith("x" * LONG)]


@pytest.mark.parametrize("stream", ["stderr", "stdout"])
def test_the_console_waits_for_room(tmp_path: Path, stream: str) -> None:
    place = TorchPlace(tmp_path)
    body = BALLAST + FULL_FOR_A_WHILE + 'free("disk")\nsay("after ")\n'
    place.script(body if stream == "stderr" else body.replace("os.write(2", "os.write(1"))
    # Of a tee'd stdout the launcher is the only writer, too.
    args = [] if stream == "stderr" else ["-t1"]
    disk = SmallDisk(place, redirect="2> disk/out" if stream == "stderr" else "> disk/out")
    ended = disk.run(*args, "train.py")
    assert ended.status == 0, ended.stderr
    out = place.text("after/out")
    assert lines_of(out.replace("[default0]:", "")) == ["before", "during", "after"]
    said = out if stream == "stderr" else ended.stderr
    assert (
        len(re.findall(stream + r" accepts output again after .* s \(No space left on device\)", said)) == 1
    )
    # While it lasts, it is said where it can be.
    assert ended.stderr.count("stdout: No space left on device: the output of ranks waits in") == (
        stream == "stdout"
    )
    assert list((place.folder / "tmp").iterdir()) == []


def test_what_a_full_disk_never_took_is_kept_and_named(tmp_path: Path) -> None:
    place = TorchPlace(tmp_path)
    place.script(BALLAST + FULL_FOR_A_WHILE)
    ended = SmallDisk(place, redirect="2> disk/out").run("--console-drain-timeout=1", "train.py")
    assert ended.status == 0
    (kept,) = (place.folder / "tmp").glob("torchelastic_*/*")
    assert str(kept) in ended.stdout.decode()
    log = kept / "rlaunch/attempt_0/0/stderr.log"
    assert lines_of(log.read_text()) == ["before", "during"]
    result = json.loads((kept / "rlaunch/result.json").read_text())
    validate(result, "result")
    shown = (place.folder / "after/out").stat().st_size
    assert (result["unshown_bytes"], result["lost_bytes"]) == (log.stat().st_size - shown, 0)


def test_events_wait_for_room(tmp_path: Path) -> None:
    place = Place(tmp_path)
    # Each attempt has some hundred bytes of events, and the last page of their file has 4096.
    place.script(
        BALLAST
        + """
attempt = int(os.environ["RLAUNCH_RANK_KEY"].split("/")[1])
if attempt == 0:
    fill("disk")
if attempt == 20:
    free("disk")
sys.exit(attempt < 20)
"""
    )
    ended = SmallDisk(place).run("--log_dir=disk", "--max_restart=20", "--restart_delay=0", "train.py")
    assert ended.status == 0, ended.stderr
    assert ended.stderr.count("events.jsonl for now: No space left on device; it is tried again") == 1
    events = [json.loads(line) for line in place.text("after/rlaunch/events.jsonl").splitlines()]
    assert [event["sequence"] for event in events] == list(range(len(events)))
    assert [event["event"] for event in events].count("rank_started") == 21
    assert events[-1]["event"] == "job_ended"
