"""Devices that tests share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rlaunch._pytest.marker import read_marker
from rlaunch._pytest.resources import device_locks, devices


def test_claimed_devices_are_exclusive(tmp_path: Path) -> None:
    folder = str(tmp_path)
    with device_locks.claim("0123", 2, folder) as mine:
        assert mine == ["0", "1"]
        with device_locks.claim("0123", 2, folder) as others:
            assert others == ["2", "3"]
            with pytest.raises(TimeoutError, match="1 of the devices 0, 1, 2, 3 were not free"):
                device_locks.claim("0123", 1, folder, timeout=0.0).__enter__()
    with device_locks.claim("0123", 4, folder) as all_of_them:
        assert all_of_them == ["0", "1", "2", "3"]


def test_a_claim_for_more_devices_than_there_are_fails_at_once(tmp_path: Path) -> None:
    with pytest.raises(device_locks.TooFewDevices, match="3 devices are wanted, and there are only 2"):
        device_locks.claim("01", 3, str(tmp_path)).__enter__()
    with pytest.raises(device_locks.TooFewDevices, match="1 devices are wanted, and there are none"):
        device_locks.claim([], 1, str(tmp_path)).__enter__()


@pytest.mark.parametrize(
    ("wanted", "visible", "error"),
    [
        (["0", "1"], "0,1,2", None),
        (["0", "3"], "0,1,2", "devices 0, 3 are wanted, and there are only 0, 1, 2"),
        (["0", "1"], "", "devices 0, 1 are wanted, and there are none"),
        # Which of these a number is, or which number a UUID, only the driver knows.
        (["0", "1"], "GPU-3f,GPU-a0", None),
        (["GPU-3f"], "0,1", None),
        (["GPU-3f"], "", "devices GPU-3f are wanted, and there are none"),
    ],
)
def test_devices_are_claimed_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wanted: list[str], visible: str, error: str | None
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(device_locks, "_make_own_folder", lambda: str(tmp_path))
    marker = read_marker(pytest.mark.ranks(len(wanted), gpus=wanted).mark)
    if error is None:
        with devices.claim_gpus(marker) as claimed:
            assert claimed == wanted
    else:
        with pytest.raises(device_locks.TooFewDevices, match=error):
            devices.claim_gpus(marker).__enter__()


HOLDS = """
import sys
from rlaunch._pytest.resources import device_locks
with device_locks.claim("01", int(sys.argv[2]), sys.argv[1]) as mine:
    print(*mine, flush=True)
    sys.stdin.read()
"""


def holder(folder: Path, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDS, str(folder), str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    with holder(tmp_path, 2) as first, holder(tmp_path, 1) as second:
        lines = {first: "", second: ""}
        assert first.stdout is not None
        assert second.stdout is not None
        # One of the two waits for the other: the one that has got some is killed.
        import select

        ready, _, _ = select.select([first.stdout, second.stdout], [], [], 60)
        has = first if first.stdout in ready else second
        assert has.stdout is not None
        lines[has] = has.stdout.readline()
        waits = second if has is first else first
        has.kill()
        assert waits.stdout is not None
        lines[waits] = waits.stdout.readline()
        waits.kill()
    assert lines[first].split() == ["0", "1"]
    assert lines[second].split() == ["0"]
