"""What a crash in native code leaves: the Python stack, the path of the core file."""

from __future__ import annotations

import json
from pathlib import Path

from launching import Place, environment

CRASHES = """
import ctypes
def dereference():
    ctypes.string_at(0)
dereference() if rank == 1 else sleep()
"""


def test_the_report_names_the_line_of_a_crash_in_native_code(place: Place) -> None:
    place.script(CRASHES)
    ended = place.run("--nproc_per_node=2", "train.py")
    assert ended.status == 139, ended.stderr
    assert "rank 1 failed: signal SIGSEGV (invalid memory access)" in ended.stderr
    assert "Fatal Python error: Segmentation fault" in ended.stderr
    assert "train.py:" in ended.stderr
    assert " in dereference" in ended.stderr, ended.stderr
    assert "core file" not in ended.stderr


def test_unless_the_user_has_decided(place: Place) -> None:
    place.script("tell('seen', [os.environ['PYTHONFAULTHANDLER']])\n")
    place.run("train.py", env=environment(PYTHONFAULTHANDLER=""))
    assert place.text("seen.0") == str([""])


def test_the_report_names_the_core_file(place: Place) -> None:
    """A job with RLIMIT_CORE, where the kernel writes core files by itself."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    place.script(f"import resource\nresource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30))\n{CRASHES}")
    ended = place.run("--nproc_per_node=2", "train.py")
    if pattern.startswith("|"):
        assert "its core file" in ended.stderr
        return
    (line,) = [line for line in ended.stderr.splitlines() if "its core file: " in line]
    core = Path(line.split(": ", 1)[1])
    assert core.read_bytes()[:4] == b"\x7fELF"


def test_the_flight_recorder_writes_to_the_log_folder(place: Place) -> None:
    names = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    place.script(f"import json\ntell('seen', json.dumps([os.environ.get(name) for name in {names}]))\n")
    place.run("train.py", env=environment(TORCH_FR_BUFFER_SIZE="2000"))
    prefix = str(place.folder / "log/rlaunch/flight_recorder_rank_")
    assert json.loads(place.text("seen.0")) == [prefix, prefix]
    assert Path(prefix).parent.is_dir()
