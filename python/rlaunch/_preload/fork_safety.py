"""Checks whether ranks can be forked off this process after its imports: devices, threads, children."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Device nodes, by prefix, that an initialised driver has open. A fork cannot use its state.
_DEVICES = {
    "/dev/nvidia": "CUDA",
    "/dev/nvhost": "CUDA",  # Jetson, as is the next.
    "/dev/nvmap": "CUDA",
    "/dev/kfd": "ROCm",
    "/dev/dri/": "a GPU's driver",
    "/dev/dxg": "a GPU's driver",  # All GPUs under WSL 2.
    "/dev/iluvatar": "a GPU's driver",
    "/dev/mxcd": "a GPU's driver",  # MetaX.
    "/dev/xpu": "an XPU's driver",
    "/dev/davinci": "an NPU's driver",
    "/dev/cambricon": "an MLU's driver",
    "/dev/gcu": "a GCU's driver",
    "/dev/tcaicard": "an SDAA device's driver",
    "/dev/hl": "an HPU's driver",  # Gaudi before Linux 6.2, which moved it to the next.
    # /dev/accel/accel0 is of the kernel's accel subsystem, /dev/accel0 a TPU up to v4.
    "/dev/accel": "an accelerator's driver",
    "/dev/vfio/": "a device through VFIO",  # TPUs since v5.
    "/dev/neuron": "a Neuron device's driver",
    "/dev/ipu": "an IPU's driver",
}

# Seconds that a joined thread may take to vanish from /proc.
_THREAD_EXIT_SECONDS = 0.5


def find_fork_hazard() -> str | None:
    """Returns why a fork would be unsafe, as a text that follows "importing X"; None if it is safe.

    Raises:
        OSError: the system cannot fork this process, or /proc does not show it.
    """
    if os.readlink("/proc/self") != str(os.getpid()):
        raise OSError("/proc is that of another PID namespace")
    hazard = find_device_hazard(_list_open_files())
    if hazard is not None:
        return hazard
    python_threads = _list_python_threads()
    if not python_threads:
        # A trial fork. OpenBLAS, which numpy imports, stops its threads before a fork and starts them again
        # later. A thread that is left afterwards belongs to a library that does not.
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    native = _locate_native_threads()
    # A thread that was joined (pthread_join(3)) may be listed for a moment more.
    deadline = time.monotonic() + _THREAD_EXIT_SECONDS
    while native and not python_threads and time.monotonic() < deadline:
        time.sleep(0.001)
        native = _locate_native_threads()
    return find_thread_hazard(python_threads, native) or find_child_hazard(_list_children())


def describe_fork_error(error: OSError, root: str = "/") -> str:
    """Describes an error of ``find_fork_hazard``. ``root``: a directory that replaces ``/``."""
    if error.errno not in (errno.EAGAIN, errno.ENOMEM):
        return f"whether ranks can be forked cannot be checked: {error}"
    text = f"the trial fork after the imports failed: {error.strerror} ({errno.errorcode[error.errno]})"
    if error.errno == errno.ENOMEM:
        return f"{text}; free memory, or raise the container's limit"
    if (full := _find_full_cgroup(root)) is not None:
        return f"{text}: {full}; end some of them, or raise that limit"
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft != resource.RLIM_INFINITY and os.getuid() != 0:
        limit = f"user {os.getuid()} may have {soft} processes and threads (RLIMIT_NPROC)"
        return f"{text}: {limit}; end some of them, or raise the limit (ulimit -u)"
    return f"{text}; end processes, or raise kernel.pid_max and kernel.threads-max (sysctl)"


def _find_full_cgroup(root: str) -> str | None:
    """Returns which cgroup has its limit of processes: this process's or an ancestor of that."""
    from pathlib import Path

    with contextlib.suppress(OSError):
        for line in Path(root, "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("pids", ""):
                own = Path(root, "sys/fs/cgroup", controllers, path.strip("/"))
                for folder in (own, *own.parents):
                    with contextlib.suppress(OSError, ValueError):  # No such file, or the limit is "max".
                        most = int((folder / "pids.max").read_text(encoding="ascii"))
                        if int((folder / "pids.current").read_text(encoding="ascii")) >= most:
                            return f"the cgroup {folder} may have {most} processes and threads (pids.max)"
    return None


def find_device_hazard(files: Iterable[str]) -> str | None:
    """Returns which device driver was initialised, judged by the paths of the open files."""
    for file in files:
        for start, what in _DEVICES.items():
            if file.startswith(start):
                return f"has initialised {what} ({file} is open), which a forked process cannot use"
    return None


def find_thread_hazard(python: list[str], native: list[str]) -> str | None:
    """Returns which threads make a fork unsafe.

    Args:
        python: names of Python's threads.
        native: the library that each other thread runs in.
    """
    if python:
        return f"left {_count_threads(len(python))} running ({', '.join(python)}), which a fork would lose"
    if any("gomp" in where for where in native):
        # The next OpenMP region in the fork would wait for these threads without end.
        threads = _count_threads(len(native))
        return f"has run an OpenMP region, whose {threads} a fork would lose, and then hang"
    if native:
        where = ", ".join(sorted(set(native)))
        return f"left {_count_threads(len(native))} running (in {where}), which a fork would lose"
    return None


def find_child_hazard(children: Iterable[str]) -> str | None:
    """Returns which child process is still running: every rank would take it for its own."""
    for child in children:
        return f"left a child process running ({child}), which a forked process has no part in"
    return None


def _count_threads(count: int) -> str:
    return "a thread" if count == 1 else f"{count} threads"


def _list_open_files() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue  # The descriptor of listdir itself.
    return found


def _list_children() -> list[str]:
    """Lists running children, except multiprocessing's resource tracker: each rank gets another one."""
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    tracked = None if tracker is None else tracker._resource_tracker._pid
    found = []
    with contextlib.suppress(OSError):  # Optional in the kernel (proc_pid_tid_children(5)).
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            pids = [int(pid) for pid in file.read().split()]
        for pid in pids:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(")")
            if pid != tracked and rest.split()[0] not in ("Z", "X"):
                found.append(f"{name}, pid {pid}")
    return found


def _list_python_threads() -> list[str]:
    threading = sys.modules.get("threading")
    if threading is None:
        return []
    main = threading.main_thread()
    return [thread.name for thread in threading.enumerate() if thread is not main]


def _locate_native_threads() -> list[str]:
    """Returns the library that each thread other than this one runs in."""
    main = str(os.getpid())
    return [_find_library(tid) for tid in os.listdir("/proc/self/task") if tid != main]


def _find_library(tid: str) -> str:
    try:
        with open(f"/proc/self/task/{tid}/syscall", encoding="ascii") as file:
            # Number, arguments, stack pointer and program counter; or "running" (proc_pid_syscall(5)).
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
