"""A rank that was forked off a preload server (zygote): makes it like a rank that was started by exec."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys

from .. import _lib
from .._rank.stack_answers import answer_if_unreadable
from .._rank.store_wait import wait_for_stores

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, NoReturn

    from .fork_request import ForkRequest

KEY = "RLAUNCH_RANK_KEY"


def set_process_name(name: str) -> str:
    """Sets the name that ``ps`` shows for this process; returns the previous one."""
    with (
        contextlib.suppress(OSError),
        open("/proc/self/comm", "r+", encoding="utf-8", errors="replace") as file,
    ):
        before = file.read().strip()
        file.seek(0)
        file.write(name)
        return before
    return name


class ImportedState:
    """The state that ranks share with the zygote. Create it right after the imports.

    Attributes:
        environ: the environment before the imports.
        mask: the signals that ranks block.
        name: the process name of ranks.
        first: the entry of ``sys.path`` that stands for the program's folder; None if there is none.
        files: open files, whose buffers may hold data.
    """

    def __init__(self, environ: Mapping[str, str], mask: Iterable[int], name: str, first: str | None) -> None:
        import gc

        self.environ = environ
        self.mask = mask
        self.name = name
        self.first = first
        gc.collect()
        self.files = _find_files(gc.get_objects())
        # Ranks share memory until a process writes to it, and the garbage collector would.
        gc.freeze()


def _find_files(objects: Iterable[object]) -> list[io.IOBase]:
    # By type: isinstance may run code of the object.
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    return [file for file in objects if issubclass(type(file), kinds)]  # type: ignore[misc]


def set_up(request: ForkRequest, reply: int, close_zygotes_fds: Callable[[], None]) -> None:
    """Sets up cgroup, stdio, session, lifeline, limits and CPUs as an exec would.

    Writes ``ok`` or the error to the descriptor ``reply``. After an error it ends this process with status
    127.
    """
    try:
        close_zygotes_fds()
        if (cgroup := request.fd("cgroup")) >= 0:
            # A failure is ignored, as for a rank that is started by clone3.
            with contextlib.suppress(OSError):
                procs = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=cgroup)
                with open(procs, "wb", buffering=0) as file:
                    file.write(b"0")
        _lib.set_up_rank_process(
            (request.fd("stdin"), request.fd("stdout"), request.fd("stderr")),
            request.parent is not None,
            request.fd("lifeline"),
            request.parent or os.getppid(),
            request.cwd,
            request.nofile,
            request.cpus,
        )
    except OSError as error:
        os.write(reply, f"-{error.errno} {error.strerror}".encode())
        os._exit(127)
    except BaseException as error:
        os.write(reply, f"-{errno.EINVAL} {type(error).__name__}: {error}"[:4000].encode())
        os._exit(127)
    os.write(reply, b"ok")
    os.close(reply)


def run_rank(request: ForkRequest, state: ImportedState) -> Any:
    """Runs the rank's program. Returns an argument for ``sys.exit``, or raises what the program raises."""
    set_process_name(state.name)
    environ = merge_environ(_read_environ(request.env), state.environ, os.environ)
    if KEY in environ:
        _lib.mark_memory(environ[KEY])
    _set_environ(environ)
    _reset_stdout()
    _reset_modules()
    reseed_generators()
    wait_for_stores()
    signal.pthread_sigmask(signal.SIG_SETMASK, state.mask)
    if request.fd("payload") >= 0:
        _run_payload(request, state.files)
    from . import program

    answer_if_unreadable()
    request.close(request.fd("lifeline"))
    # Not there if the package was not installed but only found.
    with contextlib.suppress(ImportError):
        import rlaunch_rank

        rlaunch_rank.note_exceptions()
    return program.run([*map(os.fsdecode, request.argv)], state.first)


def _read_environ(lines: list[bytes]) -> dict[str, str]:
    pairs = (os.fsdecode(line).partition("=") for line in lines)
    return {name: value for name, _, value in pairs}


def merge_environ(
    requested: Mapping[str, str], before: Mapping[str, str], after: Mapping[str, str]
) -> dict[str, str]:
    """Returns the environment that the rank would have after imports of its own.

    A change that the zygote's imports made applies to the rank too, unless the rank's value differed from the
    zygote's already before.

    Args:
        requested: the rank's environment as requested.
        before, after: the zygote's environment before and after its imports.
    """
    environ = dict(requested)
    for name in before.keys() | after.keys():
        if before.get(name) != after.get(name) and requested.get(name) == before.get(name):
            if name in after:
                environ[name] = after[name]
            else:
                del environ[name]
    return environ


def _set_environ(environ: dict[str, str]) -> None:
    before = dict(os.environ)
    for name in before.keys() - environ.keys():
        del os.environ[name]
    for name, value in environ.items():
        if before.get(name) != value:
            os.environ[name] = value
    if environ.get("TZ") != before.get("TZ"):
        import time

        time.tzset()
    # Paddle reads its flags at import.
    paddle = sys.modules.get("paddle")
    if hasattr(paddle, "set_flags"):
        for name, value in environ.items():
            if name.startswith("FLAGS_") and before.get(name) != value:
                with contextlib.suppress(ValueError):  # This Paddle has no such flag.
                    paddle.set_flags({name: value})  # type: ignore[union-attr]


def _reset_stdout() -> None:
    # Whether Python buffers lines depends on the file, and the zygote's was another one.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=os.isatty(1))


def _reset_modules() -> None:
    """Resets state of the standard library that belongs to the zygote's process."""
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # type: ignore[attr-defined] # Computed from the zygote's TMPDIR.
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
        process._children = set()  # type: ignore[attr-defined] # The zygote's children.
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    if tracker is not None:
        own = tracker._resource_tracker
        if own._fd is not None:
            os.close(own._fd)  # The tracker is the zygote's child.
        own._fd = own._pid = None


def reseed_generators() -> None:
    """Reseeds numpy, torch and Paddle: otherwise all ranks would draw the same random numbers.

    Python reseeds its own ``random`` after a fork (``os.register_at_fork``).
    """
    numpy = sys.modules.get("numpy.random")
    if hasattr(numpy, "seed"):
        numpy.seed()  # type: ignore[union-attr]
    torch = sys.modules.get("torch")
    if hasattr(torch, "default_generator"):
        torch.default_generator.seed()  # type: ignore[union-attr]
    core = sys.modules.get("paddle.base.core")
    if hasattr(core, "default_cpu_generator"):
        core.default_cpu_generator().seed()  # type: ignore[union-attr]


def _run_payload(request: ForkRequest, files: list[io.IOBase]) -> NoReturn:
    """Runs a pickled process object of multiprocessing's, as a child of its fork server does."""
    from multiprocessing import forkserver, resource_tracker, spawn

    payload, lifeline, tracker = map(request.fd, ("payload", "lifeline", "tracker"))
    resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined]
    # Unpickling takes inherited descriptors from this list.
    forkserver._forkserver._inherited_fds = request.unnamed  # type: ignore[attr-defined]
    request.close(payload, lifeline, tracker, *request.unnamed)
    _exit_without_teardown(spawn._main(payload, lifeline), files)


def _skip_torch_deregistration() -> None:
    # torch's finalizers take every operator out of its tables, which takes 40 ms and has no effect here.
    weakref = sys.modules.get("weakref")
    for finalizer in list(getattr(getattr(weakref, "finalize", None), "_registry", ())):
        alive = finalizer.peek()
        if alive is not None and getattr(alive[1], "__module__", None) == "torch.library":
            finalizer.atexit = False


def _exit_without_teardown(code: int, files: list[io.IOBase]) -> NoReturn:
    """Runs exit handlers, flushes files, and ends this process without finalizing the interpreter.

    Finalizing would write to, and so copy, all memory that is shared with the zygote.
    """
    import atexit
    import gc

    _skip_torch_deregistration()
    atexit._run_exitfuncs()
    # gc.get_objects() leaves out what the zygote has frozen; `files` has those.
    for file in [*files, *_find_files(gc.get_objects()), sys.stdout, sys.stderr]:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            file.flush()
    os._exit(code)
