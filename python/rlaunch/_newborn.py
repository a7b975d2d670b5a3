"""A rank that was forked off a zygote, before its program runs: it becomes what one with an exec would be."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys

from . import _lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, NoReturn

KEY = "RLAUNCH_RANK_KEY"


class Birth:
    """What a rank is to be: the request, and the descriptors that came with it."""

    def __init__(self, request: dict[str, Any], fds: list[int]) -> None:
        self.request = request
        self.orphan: bool = request["orphan"]
        self._fds = fds

    def fd(self, name: str) -> int:
        """A descriptor by its name in the request; -1 if there is none."""
        index = self.request["fds"].get(name)
        return -1 if index is None else self._fds[index]

    def rest(self, start: int) -> list[int]:
        """The descriptors from this one on."""
        return self._fds[start:]

    def close(self) -> None:
        """For the zygote: all of them are the rank's."""
        for fd in self._fds:
            os.close(fd)

    def keep_only(self, *names: str) -> None:
        """For the rank: lets go of the request and of the descriptors that have other names."""
        for fd in [self._fds[0], *map(self.fd, self.request["fds"].keys() - set(names))]:
            os.close(fd)

    def settle(self, tell: int, forget: Callable[[], None]) -> None:
        """In the rank: takes its place in the system, and says whether that could be done.

        ``forget``: lets go of what is the zygote's.
        """
        request = self.request
        try:
            forget()
            self._enter_cgroup()
            _lib.settle_rank(
                (self.fd("stdin"), self.fd("stdout"), self.fd("stderr")),
                request["session"],
                self.fd("lifeline"),
                request["scope"] == "group",
                request.get("parent") or os.getppid(),
                None if request["cwd"] is None else request["cwd"].encode("latin-1"),
                request["nofile"],
                request["cpus"],
            )
        except OSError as error:
            os.write(tell, f"-{error.errno} {error.strerror}".encode())
            os._exit(127)
        except BaseException as error:
            os.write(tell, f"-{_EINVAL} {type(error).__name__}: {error}"[:4000].encode())
            os._exit(127)
        os.write(tell, b"ok")
        os.close(tell)

    def _enter_cgroup(self) -> None:
        if self.fd("cgroup") >= 0:
            # As far as it goes, like a start by clone3.
            with contextlib.suppress(OSError):
                procs = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self.fd("cgroup"))
                with open(procs, "wb", buffering=0) as file:
                    file.write(b"0")


_EINVAL = 22


def rename(name: str) -> str:
    """Gives this process a name for ``ps``; the one that it had."""
    with (
        contextlib.suppress(OSError),
        open("/proc/self/comm", "r+", encoding="utf-8", errors="replace") as file,
    ):
        before = file.read().strip()
        file.seek(0)
        file.write(name)
        return before
    return name


class Shared:
    """What ranks have from the time of the imports.

    Made when these are done. ``environ``: what was there before them; ``mask`` and ``name``: of signals, and
    of the process, as a rank is to have them; ``first``: what ``sys.path`` began with, if told.
    """

    def __init__(self, environ: Mapping[str, str], mask: Iterable[int], name: str, first: str | None) -> None:
        import gc

        self.environ = environ
        self.mask = mask
        self.name = name
        self.first = first
        gc.collect()
        # What has been written to them is not in the file yet.
        self.files = _files(gc.get_objects())
        # Memory is shared by all ranks for as long as nobody writes to it: the collector would.
        gc.freeze()


def _files(objects: Iterable[object]) -> list[io.IOBase]:
    # By their types: to ask an object itself may run any code.
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    return [file for file in objects if issubclass(type(file), kinds)]  # type: ignore[misc]


def live(birth: Birth, shared: Shared) -> Any:
    """Runs the rank. What ``sys.exit`` takes; or what the program raises."""
    rename(shared.name)
    environ = as_imported(_environment(birth.request["env"]), shared.environ, os.environ)
    if KEY in environ:
        _lib.mark_memory(environ[KEY])
    _take_environment(environ)
    _reset_streams()
    _reset_modules()
    renew_seeds()
    signal.pthread_sigmask(signal.SIG_SETMASK, shared.mask)
    if birth.request["payload"] is not None:
        _run_payload(birth, birth.request["payload"], shared.files)
    from . import _program

    argv = [os.fsdecode(arg.encode("latin-1")) for arg in birth.request["argv"]]
    for fd in birth.rest(0):
        if fd > 2 and fd != birth.fd("lifeline"):
            os.close(fd)
    return _program.run(argv, shared.first)


def _environment(lines: list[str]) -> dict[str, str]:
    pairs = (os.fsdecode(line.encode("latin-1")).partition("=") for line in lines)
    return {name: value for name, _, value in pairs}


def as_imported(
    told: Mapping[str, str], before: Mapping[str, str], after: Mapping[str, str]
) -> dict[str, str]:
    """A rank's environment once it would have imported for itself.

    ``told``: as it would have begun; ``before`` and ``after``: around the imports of the zygote. What these
    have changed they would have changed there too, unless the rank is told something else than the zygote.
    """
    environ = dict(told)
    for name in before.keys() | after.keys():
        if before.get(name) != after.get(name) and told.get(name) == before.get(name):
            if name in after:
                environ[name] = after[name]
            else:
                del environ[name]
    return environ


def _take_environment(environ: dict[str, str]) -> None:
    before = dict(os.environ)
    for name in before.keys() - environ.keys():
        del os.environ[name]
    for name, value in environ.items():
        if before.get(name) != value:
            os.environ[name] = value
    if environ.get("TZ") != before.get("TZ"):
        import time

        time.tzset()
    # Paddle reads its flags when it is imported.
    paddle = sys.modules.get("paddle")
    if hasattr(paddle, "set_flags"):
        for name, value in environ.items():
            if name.startswith("FLAGS_") and before.get(name) != value:
                with contextlib.suppress(ValueError):  # No flag of this Paddle.
                    paddle.set_flags({name: value})  # type: ignore[union-attr]


def _reset_streams() -> None:
    """They were made for other files."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=os.isatty(1))


def _reset_modules() -> None:
    """What modules of Python's own have taken from the process that they were imported in."""
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # type: ignore[attr-defined] # It was made of TMPDIR.
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
        process._children = set()  # type: ignore[attr-defined] # They are the zygote's.
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    if tracker is not None:
        own = tracker._resource_tracker
        if own._fd is not None:
            os.close(own._fd)  # It is the zygote's child.
        own._fd = own._pid = None


def renew_seeds() -> None:
    """Random numbers differ between ranks as they do in processes that were started one by one.

    Python's own ``random`` sees to that itself (``os.register_at_fork``).
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


def _run_payload(birth: Birth, payload: dict[str, Any], files: list[io.IOBase]) -> NoReturn:
    """Runs a process object of multiprocessing's, and ends as those of its fork server do."""
    from multiprocessing import forkserver, resource_tracker, spawn

    resource_tracker._resource_tracker._fd = birth.fd("tracker")  # type: ignore[attr-defined]
    # Where they are taken from when it is unpickled.
    forkserver._forkserver._inherited_fds = birth.rest(payload["first_fd"])  # type: ignore[attr-defined]
    birth.keep_only("payload", "lifeline", "tracker")
    _leave(spawn._main(birth.fd("payload"), birth.fd("lifeline")), files)


def _forgo_deregistration() -> None:
    """Nobody asks torch for an operator any more, and to take each out of its tables takes 40 ms."""
    weakref = sys.modules.get("weakref")
    for finalizer in list(getattr(getattr(weakref, "finalize", None), "_registry", ())):
        alive = finalizer.peek()
        if alive is not None and getattr(alive[1], "__module__", None) == "torch.library":
            finalizer.atexit = False


def _leave(code: int, files: list[io.IOBase]) -> NoReturn:
    """Ends without taking the interpreter apart, which would copy all that is shared with the zygote.

    What is registered for the end is run, and what was written reaches its file, as in a rank of its own.
    """
    import atexit
    import gc

    _forgo_deregistration()
    atexit._run_exitfuncs()
    # What the imports have made is frozen, and not among all objects.
    for file in [*files, *_files(gc.get_objects()), sys.stdout, sys.stderr]:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            file.flush()
    os._exit(code)
