"""Sweeps in a launcher that is short of descriptors, and signals that arrive while the event loop sweeps."""

from __future__ import annotations

import signal
import subprocess

import psutil
import pytest
from launching import ATTEMPT, Place, environment, marked, until

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
        # The shell, and its child once that is `sleep`.
        until(lambda: "sleep" in [psutil.Process(pid).name() for pid in marked(mark)], "what rank 0 leaves")
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


# A process with the command line of multiprocessing's resource tracker, which gets time to end by itself.
TRACKER = ["sh", "-c", 'trap "" HUP TERM INT; read line <> never', "resource_tracker import main"]

LEAVES = f"""
import subprocess
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
if rank == 0:
    os.mkfifo("never")
    subprocess.Popen({TRACKER!r}, process_group=0)
    subprocess.Popen({TRACKER!r})
    subprocess.Popen(["sleep", "1000"], process_group=0)
tell("ready", os.getpid())
await_file(f"end-{{rank}}")
"""


def test_a_forwarded_signal_during_the_sweep_after_a_rank_leaves_nothing_behind(
    place: Place, mark: str
) -> None:
    place.script(LEAVES)
    journal = place.folder / "log/rlaunch/events.jsonl"
    with place.start("--nproc_per_node=2", "train.py", env=environment(MARK=mark)) as launcher:
        place.ready(2)
        assert len(marked(mark)) == 4 + 3
        (place.folder / "end-0").touch()

        def is_swept() -> bool:
            launcher.send_signal(signal.SIGUSR1)
            return "rank_ended" in journal.read_text()

        until(is_swept, "the sweep after rank 0")
        # The launcher's two processes, rank 1, and the tracker outside the rank's group, which has more time.
        # A process that is killed may still exit.
        until(lambda: len(marked(mark)) == 4, "the end of what rank 0 left")
        (place.folder / "end-1").touch()
        ended = Place.wait(launcher)
    assert (ended.status, marked(mark)) == (0, []), ended.stderr
    assert "swept 2 leftover processes of rank 0 (sh, sleep)" in ended.stderr
    assert "swept 1 leftover process of the job (sh)" in ended.stderr


# In the first pause of the sweep of the job, SIGTERM comes. In the second one, a helper that lives may end.
SIGTERM_IN_A_PAUSE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
static int in_pipes(void) {
    int sum = 0;
    for (int fd = 3; fd < 256; fd++) {
        struct stat file;
        int count;
        if (fstat(fd, &file) == 0 && S_ISFIFO(file.st_mode) && ioctl(fd, FIONREAD, &count) == 0) sum += count;
    }
    return sum;
}
static int tracker(void) {
    int pid = 0;
    FILE *file = fopen("tracker", "r");
    if (file && fscanf(file, "%d", &pid) != 1) pid = 0;
    if (file) fclose(file);
    return pid;
}
int poll(struct pollfd *fds, nfds_t count, int timeout) {
    static int pauses;
    if (count == 0 && access("sweep", F_OK) == 0) {
        pauses++;
        if (pauses == 1) {
            int before = in_pipes();
            kill(access("directly", F_OK) == 0 ? getpid() : getppid(), SIGTERM);
            while (in_pipes() == before) usleep(1000);
        }
        if (pauses == 2) {
            close(open("paused-again", O_CREAT | O_WRONLY, 0600));
            if (write(open("late", O_RDWR | O_NONBLOCK), "\\n", 1) != 1) _exit(99);
            char path[64], state = 0;
            snprintf(path, sizeof path, "/proc/%d/stat", tracker());
            do {
                FILE *file = fopen(path, "r");
                if (!file || fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
                if (file) fclose(file);
                usleep(1000);
            } while (state != 'Z');
        }
    }
    int (*next)(struct pollfd *, nfds_t, int) = dlsym(RTLD_NEXT, "poll");
    return next(fds, count, timeout);
}
"""
# Not recognized as one of the rank: another session, and no key.
FAILS = """
import subprocess
if attempt == 0:
    os.mkfifo("late")
    waits = "exec 3<> late; : > waits; read line <&3; : > cleaned"
    words = ["sh", "-c", waits, "resource_tracker import main"]
    tracker = subprocess.Popen(words, start_new_session=True, env={"PATH": os.environ["PATH"]})
    open("tracker", "w").write(str(tracker.pid))
    await_file("waits")
    open("sweep", "w").close()
    os._exit(4)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("sigterm-in-a-pause")
    (folder / "pause.c").write_text(SIGTERM_IN_A_PAUSE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "pause.so", "pause.c"], cwd=folder, check=True)
    return str(folder / "pause.so")


@pytest.mark.parametrize("route", ["directly", "passed on"])
def test_a_stop_during_the_sweep_between_attempts_is_not_lost_and_ends_its_patience(
    place: Place, library: str, route: str
) -> None:
    place.script(ATTEMPT + FAILS)
    (place.folder / route).touch()
    options = ["--max_restart=1", "--restart_delay=0", "train.py"]
    with place.start(*options, env=environment(LD_PRELOAD=library)) as launcher:
        ended = Place.wait(launcher)
    assert ended.status == 143, ended.stderr
    attempts = [event["attempt"] for event in place.events() if event["event"] == "rank_started"]
    assert attempts == [0]
    assert "paused-again" in place.names(), "the helper was waited for once"
    assert "cleaned" not in place.names()
