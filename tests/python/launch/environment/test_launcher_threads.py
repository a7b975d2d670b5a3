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


# Of the rank's own threads the one that the library has started, and what it is from.
NAMES = """
names = {open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")}
with open("names", "w") as file:
    print(*names & {"background"}, os.environ["LD_PRELOAD"], sep="\\n", file=file)
"""
PRELOADED = """
#include <pthread.h>
#include <unistd.h>
static void *wait_forever(void *unused) { for (;;) pause(); return unused; }
__attribute__((constructor)) static void start(void) {
    pthread_t thread;
    pthread_create(&thread, 0, wait_forever, 0);
    pthread_setname_np(thread, "background");
}
"""


def test_a_library_with_a_thread_is_left_to_the_ranks(place: Host) -> None:
    """As jemalloc, or a profiler that LD_PRELOAD brings."""
    library = place.folder / "background.so"
    (place.folder / "background.c").write_text("#define _GNU_SOURCE" + PRELOADED)
    command = ["cc", "-shared", "-fPIC", "-pthread", "-o", str(library), str(place.folder / "background.c")]
    subprocess.run(command, check=True)
    (place.folder / "train.py").write_text(COUNT + NAMES)
    place.host("os.execv(sys.executable, [sys.executable, '-m', 'rlaunch', 'train.py'])")
    ended = place.run(env=environment(LD_PRELOAD=str(library)))
    assert ended.status == 0, ended.stderr
    assert place.text("seen") == "1 []\n"
    assert place.text("names").splitlines() == ["background", str(library)]


def test_a_process_with_another_thread_is_not_forked(place: Host) -> None:
    """It hangs at its start, now and then, where the other thread holds a lock at that moment."""
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
    assert (ended.status, "seen" in place.names()) == (71, False), ended.stderr
    (line,) = ended.error_lines()
    assert "cannot start the supervisor process: this process has other threads (exporter)" in line
    assert "sitecustomize" in line
