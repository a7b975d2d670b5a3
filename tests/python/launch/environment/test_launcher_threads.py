"""A ``sitecustomize`` or a .pth file that starts a thread in every Python process, also in the launcher."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from launching import Host, Place, environment

STARTS_A_THREAD = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
# A rank's parent is the supervisor, and that one's the launcher, which has forked it.
COUNT = """
import os, sys
supervisor = os.getppid()
launcher = int(open(f"/proc/{supervisor}/stat").read().rpartition(")")[2].split()[1])
threads = len(os.listdir(f"/proc/{launcher}/task"))
with open("seen", "w") as file:
    print(threads, ascii(sys.argv[1:]), file=file)
"""

RUN = "os.execv(sys.executable, [sys.executable, '-m', 'rlaunch', 'train.py', *sys.argv[1:]])"
WARNING = (
    "the launcher forks with other threads ({}), so the job may hang at its start; "
    "look for the library that starts them in LD_PRELOAD, LD_AUDIT and /etc/ld.so.preload"
)


@pytest.fixture
def place(tmp_path: Path) -> Host:
    place = Host(tmp_path)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(STARTS_A_THREAD)
    (tmp_path / "train.py").write_text(COUNT)
    return place


def with_threads(place: Place) -> dict[str, str]:
    path = [str(place.folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return environment(PYTHONPATH=os.pathsep.join(path))


@pytest.mark.parametrize("module", ["rlaunch", "rlaunch.run"])
def test_the_launcher_forks_with_one_thread(place: Host, module: str) -> None:
    command = f"[sys.executable, '-m', '{module}', '--nproc_per_node=1', 'train.py', *sys.argv[1:]]"
    place.host(f"os.execv(sys.executable, {command})")
    ended = place.run("one", "t\udce4wo", env=with_threads(place))
    assert ended.status == 0, ended.stderr
    assert place.text("seen") == "1 ['one', 't\\udce4wo']\n"


def test_a_launch_from_python_reports_its_end(place: Host) -> None:
    place.host("print(rlaunch.launch('train.py', nproc_per_node=1).outcome)")
    ended = place.run(env=with_threads(place))
    assert (ended.status, ended.stdout) == (0, b"completed\n"), ended.stderr
    assert place.text("seen") == "1 []\n"


# Tells whether the rank has the thread that the library starts, and the rank's LD_PRELOAD.
NAMES = """
names = {open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")}
with open("names", "w") as file:
    print(*names & {"background"}, os.environ["LD_PRELOAD"], sep="\\n", file=file)
"""
PRELOADED = """
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
static void *wait_forever(void *unused) { for (;;) pause(); return unused; }
static void start(void) {
    pthread_t thread;
    pthread_create(&thread, 0, wait_forever, 0);
    pthread_setname_np(thread, "background");
}
"""
AT_ONCE = "__attribute__((constructor)) static void load(void) { start(); }"
# The launcher calls prctl(PR_SET_CHILD_SUBREAPER) just before it forks.
LATER = """
int prctl(int option, ...) {
    unsigned long values[4];
    va_list given;
    va_start(given, option);
    for (int i = 0; i < 4; i++) values[i] = va_arg(given, unsigned long);
    va_end(given);
    static int started;
    if (option == PR_SET_CHILD_SUBREAPER && !started++) start();
    return syscall(SYS_prctl, option, values[0], values[1], values[2], values[3]);
}
"""
# Tells whether the launcher has loaded the library.
LOADED = """
with open("loaded", "w") as file:
    print("preloaded.so" in open(f"/proc/{launcher}/maps").read(), file=file)
"""


def build_library(place: Place, code: str) -> str:
    library, source = place.folder / "preloaded.so", place.folder / "preloaded.c"
    source.write_text("#include <stdarg.h>" + PRELOADED + code)
    subprocess.run(["cc", "-shared", "-fPIC", "-pthread", "-o", str(library), str(source)], check=True)
    return str(library)


def test_a_library_with_a_thread_is_left_to_the_ranks(place: Host) -> None:
    """As jemalloc, or a profiler that LD_PRELOAD brings."""
    library = build_library(place, AT_ONCE)
    (place.folder / "train.py").write_text(COUNT + NAMES + LOADED)
    place.host(RUN)
    ended = place.run("one", "t\udce4wo", env=environment(LD_PRELOAD=library))
    assert ended.status == 0, ended.stderr
    assert place.text("seen") == "1 ['one', 't\\udce4wo']\n"
    assert place.text("names").splitlines() == ["background", library]
    assert place.text("loaded") == "False\n"


def test_a_library_without_a_thread_stays_in_the_launcher(place: Host) -> None:
    """The thread is that of ``sitecustomize``."""
    library = build_library(place, "void *unused(void) { return start; }")
    (place.folder / "train.py").write_text(COUNT + LOADED)
    place.host(RUN)
    ended = place.run(env=with_threads(place) | {"LD_PRELOAD": library})
    assert ended.status == 0, ended.stderr
    assert (place.text("seen"), place.text("loaded")) == ("1 []\n", "True\n")


def test_of_a_thread_that_starts_just_before_the_fork_the_launcher_warns(place: Host) -> None:
    """As a profiler's, whose library starts it in a function that it replaces."""
    library = build_library(place, LATER)
    place.host(RUN)
    ended = place.run(env=environment(LD_PRELOAD=library))
    assert ended.status == 0, ended.stderr
    assert place.text("seen") == "2 []\n"
    (line,) = (line for line in ended.stderr.splitlines() if "other threads" in line)
    assert WARNING.format("background") in line


def test_the_launcher_warns_of_the_threads_that_it_has_when_it_forks(place: Host) -> None:
    place.host("""
        from rlaunch import _lib
        from rlaunch._launch.single_thread import describe_interpreter
        def name_thread():
            with open("/proc/thread-self/comm", "w") as file:
                file.write("exporter")
            named.set()
            time.sleep(600)
        named = threading.Event()
        threading.Thread(target=name_thread, daemon=True).start()
        named.wait()
        os._exit(_lib.main(["train.py"], describe_interpreter(), -1))
    """)
    ended = place.run()
    assert ended.status == 0, ended.stderr
    assert place.text("seen") == "2 []\n"
    (line,) = (line for line in ended.stderr.splitlines() if "other threads" in line)
    assert WARNING.format("exporter") in line
