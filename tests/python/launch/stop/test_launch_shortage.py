"""Sweeps in a launcher that is short of descriptors."""

from __future__ import annotations

import subprocess

import pytest
from launching import Place, environment, marked, until

# As at EMFILE, while the file is there: of epoll sets, or of what a list of processes takes.
SHORTAGE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>
int epoll_create1(int flags) {
    if (access("no-epoll", F_OK) == 0) { errno = EMFILE; return -1; }
    return syscall(SYS_epoll_create1, flags);
}
int open64(const char *path, int flags, int mode) {
    if (strcmp(path, "/proc/self/stat") == 0 && access("no-list", F_OK) == 0) { errno = EMFILE; return -1; }
    return syscall(SYS_openat, -100, path, flags, mode);
}
"""
LEAVE = """
import subprocess
if rank == 0:
    subprocess.Popen(["sh", "-c", "trap : TERM HUP INT; sleep 600 & wait; wait"], start_new_session=True)
tell("ready", os.getpid())
await_file(f"end-{rank}")
"""
SAID = "cannot look for processes that ranks leave behind: Too many open files (os error 24)"


@pytest.mark.parametrize("shortage", ["no-epoll", "no-list"])
def test_what_a_sweep_has_killed_is_named_in_a_shortage(place: Place, mark: str, shortage: str) -> None:
    source, library = place.folder / "shortage.c", place.folder / "shortage.so"
    source.write_text(SHORTAGE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    place.script(LEAVE)
    journal = place.folder / "log/rlaunch/events.jsonl"
    env = environment(MARK=mark, LD_PRELOAD=str(library))
    with place.start("--nproc_per_node=2", "train.py", env=env) as launcher:
        place.ready(2)
        until(lambda: len(marked(mark)) == 4 + 2, "what rank 0 leaves")
        (place.folder / shortage).touch()
        (place.folder / "end-0").touch()
        until(lambda: "rank_ended" in journal.read_text(), "the sweep after rank 0")
        (place.folder / shortage).unlink()
        (place.folder / "end-1").touch()
        ended = Place.wait(launcher)
    assert (ended.status, marked(mark)) == (0, []), ended.stderr
    assert "swept 2 leftover processes of rank 0 (sh, sleep)" in ended.stderr
    # A wait needs no descriptor; a list does.
    assert ended.stderr.count(SAID) == (shortage == "no-list")
