"""A full folder for temporary files ends no rank whose user asked for no log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launching import LIMIT, Ended
from torch_launching import RANK, TorchPlace

# 300 kB, after rank 0 has left no space in the folder for temporary files.
SPEAKS_MUCH = """
if rank == 0:
    with open(os.environ["TMPDIR"] + "/ballast", "wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            pass
    tell("full")
await_file("full.0")
for number in range(3000):
    print(f"warning {number} {'y' * 90}", file=sys.stderr)
print("finished")
"""


@pytest.fixture
def place(tmp_path: Path) -> TorchPlace:
    return TorchPlace(tmp_path)


def run_with_temporary_files_on(size: str, place: TorchPlace, limit: str = "") -> Ended:
    """Runs two ranks whose TMPDIR is a file system of this size."""
    (place.folder / "train.py").write_text(RANK + SPEAKS_MUCH)
    inside = f'mount -t tmpfs -o size={size},mode=700 none tmp && {limit} exec "$@"'
    command = [sys.executable, "-m", "rlaunch.run", "--nproc-per-node=2", "train.py"]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside, "sh", *command],
        cwd=place.folder, env=place.environment(), capture_output=True, timeout=LIMIT,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr.decode())


@pytest.mark.parametrize(("size", "said"), [("64k", 1), ("8m", 0)])
def test_a_full_folder_for_temporary_files(place: TorchPlace, size: str, said: int) -> None:
    """Captured stderr has its part of the disk from the start, or is not captured."""
    ended = run_with_temporary_files_on(size, place)
    assert (ended.status, ended.stdout.split()) == (0, [b"finished"] * 2), ended.stderr[-2000:]
    assert ended.stderr.count("warning ") == 6000
    assert ended.stderr.count("No space left on device; stderr is shown, but no failure report") == said


def test_a_limit_of_the_size_of_files(place: TorchPlace) -> None:
    """Captured stderr would meet it."""
    ended = run_with_temporary_files_on("8m", place, "ulimit -f 40;")
    assert (ended.status, ended.stdout.split()) == (0, [b"finished"] * 2), ended.stderr[-2000:]
    assert ended.stderr.count("warning ") == 6000
    assert ended.stderr.count("File too large; stderr is shown, but no failure report") == 1
