"""Reports of ranks of a zygote about their process, and the modules that the zygote imports before them."""

from __future__ import annotations

import faulthandler
import gc
import logging
import multiprocessing
import os
import random
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import warnings
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

# Imported by the zygote, or by each rank: `preloaded` is as people write modules.
PRELOADED = """
import atexit, logging, os, random, signal, sys, tempfile, warnings, weakref
COUNT = os.environ.get("COUNT_FILE")
if COUNT:
    with open(COUNT, "a") as file:
        file.write("imported\\n")
ARGV = list(sys.argv[1:])
print("out of the import")
print("err of the import", file=sys.stderr)
os.environ["SET_BY_IMPORT"] = "1"
os.environ.setdefault("DEFAULT_BY_IMPORT", "of the import")
os.environ.pop("TAKEN_BY_IMPORT", None)
warnings.filterwarnings("error", "never mind")
log = logging.getLogger("preloaded")
log.addHandler(logging.StreamHandler(sys.stdout))
log.setLevel(logging.INFO)
signal.signal(signal.SIGUSR1, lambda *_: None)
FOLDER = tempfile.gettempdir()
class Thing: pass
thing = Thing()
weakref.finalize(thing, os.write, 1, b"finalized\\n")
atexit.register(os.write, 1, b"atexit of the import\\n")
KEPT = os.environ.get("KEPT_FILE") and open(os.environ["KEPT_FILE"], "a")
"""


def lines(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def kind(fd: int) -> str:
    """The target of a descriptor, without its number."""
    return os.readlink(f"/proc/self/fd/{fd}").partition("[")[0]


def stream(name: str) -> list[Any]:
    file = getattr(sys, name)
    names = ("encoding", "errors", "line_buffering", "write_through", "mode", "newlines")
    # multiprocessing's stdin has the number of the descriptor that was free.
    called = file.name if isinstance(file.name, str) else type(file.name)
    return [called, *(getattr(file, n) for n in names), file.isatty(), min(file.fileno(), 3)]


def status(*names: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in lines("/proc/self/status"))
    return {name: value.strip() for name, _, value in pairs if name in names}


def about() -> dict[str, Any]:
    """All that a rank can report about its process, but for values that differ between processes."""
    main = sys.modules["__main__"]
    process, parent = multiprocessing.current_process(), multiprocessing.parent_process()
    assert parent is not None
    own = ("PADDLE_CURRENT_ENDPOINT", "PADDLE_TRAINER_ENDPOINTS", "RLAUNCH_RANK_KEY", "PYTEST_CURRENT_TEST")
    return {
        "environ": {k: v for k, v in os.environ.items() if k not in own},
        "environ of C": subprocess.run(["env"], capture_output=True, check=True).stdout.count(b"\n"),
        "cwd": os.getcwd(),
        "argv": sys.argv,
        "path": sys.path,
        "flags": str(sys.flags),
        "options": [sys.warnoptions, str(sys._xoptions), sys.executable, sys.dont_write_bytecode],
        "main": [
            main.__name__,
            getattr(main, "__file__", None),
            "__mp_main__" in sys.modules,
            sys.modules.get("__mp_main__") is main,
        ],
        "streams": {name: stream(name) for name in ("stdin", "stdout", "stderr")},
        "same files": [os.fstat(fd)[:2] for fd in (1, 2)],
        "stdin": sys.stdin.read(),
        "filters": [str(f[:3]) for f in warnings.filters],
        "handlers": [type(h).__name__ for h in logging.getLogger("preloaded").handlers],
        "signals": {
            s.name: str(signal.getsignal(s)).partition(" at ")[0]
            for s in signal.Signals
            if s not in (signal.SIGKILL, signal.SIGSTOP)
        },
        "kernel's view": status("SigBlk", "SigIgn", "SigCgt", "Umask", "Cpus_allowed", "Threads"),
        "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        "places": [os.getpgrp(), os.getsid(0), os.nice(0), stat.S_IMODE(os.stat(".").st_mode)],
        "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if "RLIMIT_" in n},
        "threads": [t.name for t in threading.enumerate()],
        "native id": threading.main_thread().native_id == os.getpid(),
        "process": [process.name.partition("-")[2] != "", process.daemon, process.authkey.hex()],
        "parent": [parent.name, parent.pid, parent.is_alive()],
        "children": [len(multiprocessing.active_children()), multiprocessing.get_start_method()],
        "tracker": [resource_tracker._resource_tracker._pid is None, resource_tracker.getfd() > 2],
        "faulthandler": faulthandler.is_enabled(),
        "gc": [gc.isenabled(), gc.get_threshold()],
        "tempfile": [tempfile.gettempdir(), tempfile.template],
        "time zone": [time.tzname, time.timezone],
        "recursion": sys.getrecursionlimit(),
        "name": lines("/proc/self/comm"),
    }


def descriptors() -> list[str]:
    found = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            found.append(kind(fd))
        except OSError:
            continue  # The one that lists them.
    return sorted(found)


def leaving(how: str) -> Any:
    """Ends in many ways."""
    if how == "thread":
        threading.Thread(target=lambda: (time.sleep(0.2), os.write(1, b"thread\n"))).start()
        return "returned"
    if how == "file":
        import preloaded

        preloaded.KEPT.write("kept\n")
        global _open
        _open = open(os.environ["OPEN_FILE"], "w", encoding="utf-8")  # noqa: SIM115
        _open.write("open\n")
        print("no end of line", end="")
        return None
    if how == "atexit":
        import atexit

        import preloaded

        atexit.register(os.write, 1, b"atexit of the rank\n")
        return None
    if how == "raising atexit":
        import atexit

        atexit.register(lambda: 1 // 0)
        return None
    if how == "exit":
        sys.exit(7)
    if how == "exit text":
        sys.exit("so long")
    if how == "raise":
        raise ValueError("why")
    if how == "interrupt":
        raise KeyboardInterrupt
    number = {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "term": signal.SIGTERM}[how]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), number)
    time.sleep(600)
    return None


def use_all(lock: Any, queue: Any, pipe: Any, array: Any, event: Any) -> str:
    """Everything of multiprocessing's as an argument."""
    rank = int(os.environ["PADDLE_TRAINER_ID"])
    with lock:
        array[rank] += rank + 1
    queue.put(rank)
    pipe.send(rank)
    event.wait(30)
    return Path("/proc/self/comm").read_text().strip()


def big(size: int) -> bytes:
    return bytes(size)


def numbers() -> list[Any]:
    """Unseeded."""
    drawn: list[Any] = [random.random(), tempfile.mktemp()]
    if "numpy" in sys.modules:
        import numpy

        drawn.append(float(numpy.random.random()))
    return drawn


def seen_by_import() -> list[Any]:
    import preloaded

    return [preloaded.ARGV, preloaded.FOLDER]


def pids() -> tuple[int, int]:
    return os.getpid(), os.getppid()


def log_a_line() -> None:
    import preloaded

    preloaded.log.info("a line of rank %s", os.environ["PADDLE_TRAINER_ID"])


def child_of_rank() -> int:
    """A rank's own child is started by spawn, and by fork, and a program too."""
    for method in ("spawn", "fork"):
        process = multiprocessing.get_context(method).Process(target=os.getpid)
        process.start()
        process.join()
        assert process.exitcode == 0
    return subprocess.run(["true"], check=True).returncode


def module(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(textwrap.dedent(text))


def script(body: str) -> str:
    """A program that runs it as its own."""
    head = "import json, os, signal, sys, time, warnings\nimport rlaunch, preload_ranks\n"
    quiet = "warnings.simplefilter('ignore')\nif __name__ == '__main__':\n"
    return head + quiet + textwrap.indent(textwrap.dedent(body), "    ")


def importing(data: bytes) -> bytes:
    return data


def write_into(memory: Any) -> None:
    memory.buf[:4] = b"rank"
    memory.close()


def wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.005)


def say_and_wait(path: str) -> None:
    """Says that it is there, and does not end."""
    Path(path).touch()
    time.sleep(600)


def put_parent(index: int, queue: Any) -> None:
    queue.put((index, os.getppid()))
