"""A program that runs without stdin, stdout or stderr (``2>&-``) starts ranks as any other does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from effort import each

HOST = Path(__file__).with_name("closed_stdio_host.py")


def run_host(closed: tuple[int, ...], what: str, folder: Path, *closing: str) -> object:
    """What the program reports; it has no way to say so on the descriptors that are closed."""
    read, write = os.pipe()
    # Not the first free number, so that pass_fds leaves the standard ones alone.
    with open(read, "rb") as report, open(write, "wb") as end:
        command = [sys.executable, str(HOST), str(end.fileno()), what, str(folder / "log"), *closing]
        host = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[end.fileno()],
            preexec_fn=lambda: [os.close(fd) for fd in closed] and None,
        )
        end.close()
        text = report.read()
        assert host.wait(60) == 0
    return json.loads(text)


@pytest.mark.parametrize("closed", [(2,), (0, 1, 2)])
@each("method", ["spawn", "fork", "forkserver", "zygote"])
def test_ranks_of_a_program_without_standard_descriptors(
    tmp_path: Path, closed: tuple[int, ...], method: str
) -> None:
    assert run_host(closed, method, tmp_path) == [["0", "1"], True]
    logs = sorted((tmp_path / "log").iterdir())
    assert [log.read_text() for log in logs if log.is_file()] == ["from a library\n"] * 2, logs


@pytest.mark.parametrize(
    "closing", ["os.close(0)", "os.close(1)", "os.close(2)", "sys.stderr.close()", "sys.stdout = None"]
)
@each("method", ["spawn", "fork", "forkserver", "zygote"])
def test_ranks_of_a_program_that_closes_a_stream(tmp_path: Path, closing: str, method: str) -> None:
    assert run_host((), method, tmp_path, closing) == [0, 0]


def test_a_launch_of_a_program_without_standard_descriptors(tmp_path: Path) -> None:
    """The launcher does not write its messages into the pipe on which it reports the job's end."""
    assert run_host((1, 2), "launch", tmp_path) == ["completed", True]
    assert (tmp_path / "log/workerlog.0").read_text() == "/dev/null\n"


def test_a_forked_rank_does_not_write_into_the_pipe_of_the_resource_tracker(tmp_path: Path) -> None:
    """Which has taken a number of the program's standard descriptors."""
    assert run_host((0, 1, 2), "streams", tmp_path) == [["/dev/null", "/dev/null"]]
