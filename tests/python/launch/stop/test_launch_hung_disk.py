"""A log folder whose disk hangs: the supervisor process waits in a write that only SIGKILL ends."""

from __future__ import annotations

import signal
import subprocess

from launching import Place, environment, marked, supervisor_of, until

# A write to the journal does not return while the file is there.
HANGS = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
ssize_t write(int fd, const void *bytes, size_t count) {
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int hangs = access("hang", F_OK) == 0 && readlink(link, path, sizeof path - 1) > 0;
    if (hangs && strstr(path, "events.jsonl")) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, 0);
        close(open("hangs", O_CREAT | O_WRONLY, 0600));
        for (;;) pause();
    }
    return syscall(SYS_write, fd, bytes, count);
}
"""


def test_a_stop_reaches_ranks_before_the_journal_and_ends_though_that_hangs(place: Place, mark: str) -> None:
    source, library = place.folder / "hangs.c", place.folder / "hangs.so"
    source.write_text(HANGS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    place.script("""
        signal.signal(signal.SIGTERM, lambda *_: tell("asked"))
        tell("ready", os.getpid())
        sleep()
    """)
    env = environment(MARK=mark, LD_PRELOAD=str(library))
    with place.start("--grace_period=0.5", "--nproc_per_node=2", "train.py", env=env) as launcher:
        place.ready(2)
        supervisor = supervisor_of(launcher)
        (place.folder / "hang").touch()
        launcher.send_signal(signal.SIGTERM)
        until(lambda: {"asked.0", "asked.1", "hangs"} <= place.names(), "the signal, and the journal's write")
        assert supervisor.is_running()
        ended = Place.wait(launcher)
    assert ended.status == 72, ended.stderr
    assert "supervisor process did not stop in time and was killed" in ended.error_lines()[0]
    assert marked(mark) == []
    assert place.result()["outcome"] == "supervisor_lost"
