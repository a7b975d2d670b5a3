"""A reader of the console that stalls: what it does not take is kept up to a limit, the rest is counted."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from launching import Place, gone, until
from torch_launching import TorchPlace

MEBI = 1 << 20
LIMIT_OF_CAPTURE = 64 * MEBI

# Numbered lines of 64 bytes.
WRITE = """
def write(stream, first, count):
    end = first + count
    for start in range(first, end, 1 << 14):
        data = b"".join(b"%063d\\n" % number for number in range(start, min(start + (1 << 14), end)))
        while data:
            data = data[os.write(stream, data) :]
"""


def kept_of(place: TorchPlace) -> tuple[dict[str, Any], Path]:
    """The result of a job whose folder was kept, and the captured log of its only rank."""
    (kept,) = (place.folder / "tmp").glob("torchelastic_*/*")
    return json.loads((kept / "rlaunch/result.json").read_text()), kept / "rlaunch/attempt_0/0/stderr.log"


def numbers(data: bytes) -> list[int]:
    return [int(line) for line in data.split(b"\n") if len(line) == 63 and line.isdigit()]


@pytest.mark.parametrize("mebibytes", [10, 150])
def test_every_byte_is_shown_kept_or_counted(tmp_path: Path, mebibytes: int) -> None:
    place = TorchPlace(tmp_path)
    lines = mebibytes * MEBI // 64
    place.script(WRITE + f"write(2, 0, {lines})")
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reader:
        with os.fdopen(write, "wb") as full:
            ended = place.run("--console-drain-timeout=1", "train.py", stderr=full)
        shown = reader.read()
    assert ended.status == 0
    result, log = kept_of(place)
    assert log.stat().st_size <= LIMIT_OF_CAPTURE + 16 * MEBI
    assert len(shown) + result["unshown_bytes"] + result["lost_bytes"] == lines * 64
    assert (result["lost_bytes"] > 0) == (mebibytes * MEBI > LIMIT_OF_CAPTURE)
    # Those that are lost are the oldest that were not shown.
    in_log = numbers(log.read_bytes())
    assert in_log == list(range(in_log[0], lines))
    assert numbers(shown) == list(range(len(shown) // 64))


def test_a_reader_that_comes_back_reads_what_is_left(tmp_path: Path) -> None:
    place = TorchPlace(tmp_path)
    lines = 150 * MEBI // 64
    place.script(
        WRITE
        + f"""
write(2, 0, {lines})
tell('written')
await_file('go')
write(2, {lines}, 100)
await_file('end')
"""
    )
    with place.start("--console-drain-timeout=1", "train.py") as launcher:
        assert launcher.stderr is not None
        until((place.folder / "written.0").exists, "the lines")
        (place.folder / "go").touch()
        shown, last = bytearray(), b"%063d\n" % (lines + 99)
        while not shown.endswith(last):
            piece = os.read(launcher.stderr.fileno(), MEBI)
            assert piece, shown[-300:]
            shown += piece
        (place.folder / "end").touch()
        rest = launcher.stderr.read()
        assert place.wait(launcher).status == 0
    found = numbers(bytes(shown))
    assert found == sorted(set(found))
    result, _ = kept_of(place)
    assert result["unshown_bytes"] == 0
    (notice,) = [line for line in rest.splitlines() if b"bytes of the output of rank 0 are lost" in line]
    assert b"%d bytes of" % result["lost_bytes"] in notice
    assert len(shown) + result["lost_bytes"] == (lines + 100) * 64


def test_a_rank_that_is_asked_to_stop_does_not_wait_for_the_reader(tmp_path: Path) -> None:
    place = TorchPlace(tmp_path)
    lines, last = 80 * MEBI // 64, b"%063d\n" % (80 * MEBI // 64 + 99)
    place.script(
        WRITE
        + f"""
def save(*_):
    # In the middle of the write that waits.
    write(2, {lines}, 100)
    tell("saved")
    os._exit(0)

signal.signal(signal.SIGTERM, save)
data = b"".join(b"%063d\\n" % number for number in range({lines}))
tell("ready", os.getpid())
while data:
    data = data[os.write(2, data) :]
"""
    )
    with place.start("--console-drain-timeout=600", "train.py") as launcher:
        assert launcher.stderr is not None
        place.ready(1)
        (log,) = (place.folder / "tmp").glob("torchelastic_*/*/rlaunch/attempt_0/0/stderr.log")
        until(lambda: log.stat().st_size >= LIMIT_OF_CAPTURE, "a full log")
        launcher.send_signal(signal.SIGTERM)
        until((place.folder / "saved.0").exists, "the rank's state")
        shown = launcher.stderr.read()
        place.wait(launcher)
    # After a stop, the console is not waited for long.
    assert last in shown or last in log.read_bytes()


def test_a_reader_that_has_gone_leaves_the_rest_in_the_log(tmp_path: Path) -> None:
    place = TorchPlace(tmp_path)
    place.script(WRITE + "write(2, 0, 10)\nawait_file('go')\nwrite(2, 10, 20000)")
    with place.start("train.py", stdout=subprocess.PIPE) as launcher:
        assert launcher.stderr is not None
        shown = launcher.stderr.read(640)
        launcher.stderr.close()
        launcher.stderr = None
        (place.folder / "go").touch()
        assert place.wait(launcher).status == 0
    assert numbers(shown) == list(range(10))
    result, log = kept_of(place)
    assert (result["unshown_bytes"], result["lost_bytes"]) == (20000 * 64, 0)
    assert numbers(log.read_bytes()) == list(range(20010))


def test_a_stall_does_not_cut_the_report_at_the_end(tmp_path: Path) -> None:
    """A message that was not read, then a failure: the report is longer than the pipe."""
    place = Place(tmp_path)
    place.script("""
        attempt = int(os.environ["RLAUNCH_RANK_KEY"].split("/")[1])
        print("x" * 10000, flush=True)
        tell(f"ready-{attempt}", os.getpid())
        await_file(f"end-{attempt}")
        for line in range(40):
            print(f"line {line}" + "y" * 1000, file=sys.stderr)
        raise RuntimeError("in the end")
    """)
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    with os.fdopen(read, "rb", buffering=0) as reader:
        args = ["--max_restart=1", "--restart_delay=0", "train.py"]
        with place.start(*args, stdout=write, stderr=write) as launcher:

            def await_full_pipe() -> None:
                until(lambda: not select.select([], [write], [], 0)[1], "a full pipe")

            await_full_pipe()
            (place.folder / "end-0").touch()
            # Before the second attempt, the launcher has said that it comes.
            (rank,) = place.ready(1, "ready-1")
            (place.folder / "end-1").touch()
            until(lambda: gone(rank), "the rank's end")
            shown = b""
            while shown.count(b"\nRuntimeError: in the end\n") < 2:
                shown += reader.read(1024)
            # What follows is the report.
            await_full_pipe()
            os.close(write)
            while piece := reader.read(4096):
                shown += piece
            assert launcher.wait() == 1
    assert shown.endswith(b"\nexit status 1 after 1 restart\n"), shown[-300:]
    report = shown.decode().rpartition("rank 0 failed")[2]
    assert "RuntimeError: in the end" in report
    assert f"log: {place.folder}/log/workerlog.0" in report
