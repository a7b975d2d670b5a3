"""A cgroup with few processes and threads: errors and failure reports name pids.max."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import LIMIT, Place, until


def pids_folders() -> Iterator[Path]:
    """Where a cgroup with pids.max may be created (versions 1 and 2): below this process's, or below all."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        tops = {"pids": "/sys/fs/cgroup/pids", "": "/sys/fs/cgroup"}
        if controllers in tops:
            yield from (Path(tops[controllers] + path), Path(tops[controllers]))


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[tuple[Place, Path]]:
    """A folder to launch in, and a cgroup whose pids.max can be set."""
    for folder in pids_folders():
        own = folder / f"rlaunch-test-{uuid.uuid4().hex}"
        try:
            own.mkdir()
        except OSError:
            continue
        if (own / "pids.max").exists():
            break
        own.rmdir()
    else:
        pytest.skip("only root may create a cgroup with pids.max here")
    yield Place(tmp_path), own
    # Threads that have ended are counted for a moment more.
    until(lambda: not (own / "cgroup.procs").read_text(), "the end of all processes", LIMIT)
    own.rmdir()


def enter(own: Path) -> dict[str, Any]:
    return {"preexec_fn": lambda: (own / "cgroup.procs").write_text(str(os.getpid())) and None}


def test_a_rank_that_cannot_be_started_names_the_limit(limited: tuple[Place, Path]) -> None:
    place, own = limited
    (own / "pids.max").write_text("16")
    place.script("sleep()")
    ended = place.run("--nproc_per_node=20", "train.py", **enter(own))
    assert ended.status == 71, ended
    (error,) = (line for line in ended.error_lines() if "cannot start" in line or "supervisor" in line)
    assert f"{own} " in error, error
    assert "pids.max" in error, error


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_rank_that_is_refused_a_thread_names_the_limit(
    limited: tuple[Place, Path], is_refused: bool
) -> None:
    place, own = limited
    (own / "pids.max").write_text("60" if is_refused else "max")
    place.script(
        f"""
        import threading
        for _ in range({80 if is_refused else 0}):
            threading.Thread(target=sleep, daemon=True).start()
        raise RuntimeError("can't start new thread")
        """
    )
    ended = place.run("--nproc_per_node=1", "train.py", **enter(own))
    assert ended.status == 1, ended
    report = " ".join(ended.stderr.split())
    assert (f"the cgroup {own} reached its limit of 60" in report) == is_refused, ended.stderr
