"""Whether ranks may be forked off this process: what was imported may have begun what a fork cuts in two."""

from __future__ import annotations

import contextlib
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# What a driver opens when it is initialised, and cannot use in a fork: its state is tied to the process.
_DEVICES = {
    "/dev/nvidia": "CUDA",
    "/dev/kfd": "ROCm",
    "/dev/dri/": "a GPU's driver",
    "/dev/xpu": "an XPU's driver",
    "/dev/davinci": "an NPU's driver",
}


# Seconds.
_MOMENT = 0.5


def refusal() -> str | None:
    """Why a fork would be unsafe, as it goes on after "importing X"; None if it is safe."""
    device = initialised(_open_files())
    if device is not None:
        return device
    own = _python_threads()
    if not own:
        # OpenBLAS, which numpy begins with, ends its threads before a fork and has them again when it needs
        # them. Who is left after one does not.
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    native = _native_threads()
    # One that has been waited for (pthread_join(3)) may be on the list for a moment more.
    deadline = time.monotonic() + _MOMENT
    while native and not own and time.monotonic() < deadline:
        time.sleep(0.001)
        native = _native_threads()
    return left_running(own, native) or left_below(_children())


def initialised(files: Iterable[str]) -> str | None:
    """What of a process's open files says that a device's driver has been initialised."""
    for file in files:
        for start, what in _DEVICES.items():
            if file.startswith(start):
                return f"has initialised {what} ({file} is open), which a forked process cannot use"
    return None


def left_running(python: list[str], native: list[str]) -> str | None:
    """What of these threads, by their names and by where they are, makes a fork unsafe."""
    if python:
        return f"left {_threads(len(python))} running ({', '.join(python)}), which a fork would lose"
    if any("gomp" in where for where in native):
        # libgomp waits for its threads in the next region, for ever.
        return f"has run an OpenMP region, whose {_threads(len(native))} a fork would lose, and then hang"
    if native:
        where = ", ".join(sorted(set(native)))
        return f"left {_threads(len(native))} running (in {where}), which a fork would lose"
    return None


def left_below(children: Iterable[str]) -> str | None:
    """What of these children, by their names, all ranks would take for their own."""
    for child in children:
        return f"left a child process running ({child}), which a forked process has no part in"
    return None


def _threads(count: int) -> str:
    return "a thread" if count == 1 else f"{count} threads"


def _open_files() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue  # The one that lists them.
    return found


def _children() -> list[str]:
    """Those that live, but for multiprocessing's tracker, of which each rank is told another."""
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    tracked = None if tracker is None else tracker._resource_tracker._pid
    found = []
    with contextlib.suppress(OSError):  # Not every kernel has the list (proc_pid_tid_children(5)).
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            pids = [int(pid) for pid in file.read().split()]
        for pid in pids:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(")")
            if pid != tracked and rest.split()[0] not in ("Z", "X"):
                found.append(f"{name}, pid {pid}")
    return found


def _python_threads() -> list[str]:
    threading = sys.modules.get("threading")
    if threading is None:
        return []
    main = threading.main_thread()
    return [thread.name for thread in threading.enumerate() if thread is not main]


def _native_threads() -> list[str]:
    """Of each thread but this one, the library that it is in."""
    own = str(os.getpid())
    return [_library_of(tid) for tid in os.listdir("/proc/self/task") if tid != own]


def _library_of(tid: str) -> str:
    try:
        with open(f"/proc/self/task/{tid}/syscall", encoding="ascii") as file:
            # The number, its arguments, stack and program counter (proc_pid_syscall(5)); or "running".
            counter = int(file.read().split()[-1], 16)
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                span, _, _, _, _, *path = line.split(maxsplit=5)
                low, high = (int(end, 16) for end in span.split("-"))
                if low <= counter < high and path:
                    return os.path.basename(path[0].strip())
    except (OSError, ValueError):
        pass
    return "native code"
