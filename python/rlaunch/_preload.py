"""The zygotes of a program: each has imported something, and is there until the program ends."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from multiprocessing import spawn, util
from typing import TYPE_CHECKING, Any

from . import _lib, _zygote
from ._popen import new_nursery, signals_held
from .errors import ZygoteError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Read when a library is loaded, and not again: another value needs another zygote.
_READ_BY_IMPORTS = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "LD_", "GLIBC_", "MALLOC_", "PYTHON"),
    *("LANG", "LC_", "FLAGS_", "TORCH", "PYTORCH_", "XLA_", "JAX_"),
)


def asked(preload: Any, framework: str) -> tuple[list[str], bool]:
    """What ``preload`` names: the modules, and whether a start without a zygote will do as well.

    ``preload``: names joined by commas, or a list of them; "auto" among them says the latter. None, and
    "auto" alone: ``framework``.

    Raises:
        ValueError: it names no module.
        TypeError: it is something else.
    """
    words = [] if preload is None else preload.split(",") if isinstance(preload, str) else list(preload)
    for word in words:
        if not isinstance(word, str):
            raise TypeError(f"preload must be names of modules, as in 'torch,my.models', but got {preload!r}")
    return _lib.preload_modules(words, framework)


class Zygote:
    """A process that has imported modules, seen from the program that wants ranks forked off it."""

    def __init__(self, modules: list[str]) -> None:
        """Starts it, and waits until it has imported them.

        Raises:
            ZygoteError: they cannot be imported, or a fork would be unsafe afterwards.
            OSError: the system would not.
        """
        self._modules = ", ".join(modules)
        self._process: _lib.Rank | None = None
        self._over = False
        self._owed = 0  # Answers that are to come.
        self._nursery = new_nursery()
        self._lock = threading.Lock()
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end = self._nursery.open_end()
        try:
            with theirs:
                setup = json.dumps({"modules": modules, "path": sys.path, "first": None, "lifeline": end})
                python = os.fsencode(spawn.get_executable())
                flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
                # rlaunch is where this program has found it.
                code = f"import sys; sys.path[:] = {sys.path!r}; {_zygote.COMMAND}"
                words = [*flags, "-c", code, str(theirs.fileno()), setup]
                argv = [python, *map(os.fsencode, words)]
                environ = [os.fsencode(f"{k}={v}") for k, v in os.environ.items() if k != "RLAUNCH_RANK_KEY"]
                try:
                    self._process = self._nursery.start(python, argv, environ, [theirs.fileno()], -1, end)
                except OSError as error:
                    text = f"the zygote cannot be started: {error.strerror or error}"
                    raise OSError(error.errno, text) from error
            self._hear()
        except BaseException:
            self._link.close()
            for process in self._nursery.ranks():
                process.signal(signal.SIGKILL)
                process.wait(_SOON)
            raise
        finally:
            self._nursery.close_end(end)

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def _hear(self) -> None:
        word = self._link.recv(1 << 16)
        answer = json.loads(word) if word else {"failed": self._death("importing " + self._modules)}
        if "refused" in answer:
            raise ZygoteError(f"no zygote: {answer['refused']}")
        if "failed" in answer:
            error = ZygoteError(f"no zygote: {answer['failed']}")
            if "traceback" in answer and hasattr(error, "add_note"):  # Python 3.11.
                error.add_note(answer["traceback"].rstrip())
            raise error

    def _death(self, doing: str) -> str:
        code = self.wait(_SOON)
        if code is None:
            return f"{doing}: it does not answer"
        return f"{doing}: it was killed by signal {-code}" if code < 0 else f"{doing}: it ended with {code}"

    def lives(self) -> bool:
        """Whether it can be asked for ranks."""
        return not self._over and self.wait(0) is None

    def wait(self, timeout: float) -> int | None:
        """Waits for its end, so many seconds at most; its exit code, or None."""
        assert self._process is not None
        return self._process.wait(timeout)

    def fork(self, request: Mapping[str, Any], fds: Iterable[int]) -> int:
        """Forks a rank off it; the number of its process. ``fds``: those that the request names, from 1 on.

        Raises:
            ZygoteError: it is gone.
            OSError: the system would not.
        """
        memory = _lib.Descriptor.memory("rlaunch-request")
        try:
            with open(memory.fileno(), "w", closefd=False, encoding="utf-8") as file:
                json.dump(request, file)
            with self._lock:
                if self._over:
                    raise ZygoteError(f"the zygote (pid {self.pid}) has been ended")
                assert self._process is not None
                self._process.signal(signal.SIGCONT)  # Stopped, it is of no use to anybody.
                try:
                    while self._owed:
                        self._answer()  # Of ranks that have died of their lifelines.
                    with signals_held():
                        socket.send_fds(self._link, [b"F"], [memory.fileno(), *fds])
                        self._owed += 1
                    word = self._answer()
                except ConnectionError:
                    word = ""
        finally:
            memory.close()
        if not word:
            raise ZygoteError(f"the zygote (pid {self.pid}) is gone: {self._death('forking a rank')}")
        pid, _, step = word.partition(" ")
        if int(pid) < 0:
            raise OSError(-int(pid), step or os.strerror(-int(pid)))
        return int(pid)

    def _answer(self) -> str:
        """The next answer; if an exception comes in between, it is owed still, or has been taken."""
        answered = select.poll()
        answered.register(self._link, select.POLLIN)
        if not answered.poll(_PATIENCE * 1000):
            assert self._process is not None
            self._process.signal(signal.SIGKILL)  # Whatever it does, it forks no more ranks.
            raise ZygoteError(f"the zygote (pid {self.pid}) has not answered for {_PATIENCE:g} s")
        with signals_held():
            word = self._link.recv(4096)
            self._owed -= 1
        return word.decode()

    def end(self) -> None:
        """Asks for nothing more. It ends when its ranks have, and is kept here until then."""
        with self._lock:
            self.abandon()

    def abandon(self) -> None:
        """``end``, for whoever is alone with it."""
        if not self._over:
            self._over = True
            self._link.close()
            _ending.append(self)


# Seconds within which a rank is forked, on a machine that is very busy.
_PATIENCE = 60.0
# Seconds that a process takes to end which has nothing left to do.
_SOON = 5.0

# By what they have imported, and by what they have of this process: its environment, as far as they read it
# while they did, and what else processes have of whoever starts them.
_zygotes: dict[tuple[Any, ...], Zygote] = {}
# So many, since each has hundreds of megabytes.
_MOST = 4
# Those that end when their ranks do, who would be killed with them.
_ending: list[Zygote] = []
# Of two threads one starts a zygote, and the other has it too.
_starting = threading.Lock()


def zygote_of(modules: list[str]) -> Zygote:
    """The zygote that has imported these; started if there is none.

    Raises:
        ZygoteError, OSError: as ``Zygote`` does.
    """
    read = tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith(_READ_BY_IMPORTS)))
    key = (tuple(modules), spawn.get_executable(), read, _inherited())
    with _starting:
        _collect(0)
        zygote = _zygotes.get(key)
        if zygote is not None and not zygote.lives():
            zygote.end()
            zygote = None
        if zygote is None:
            zygote = Zygote(modules)
        _zygotes.pop(key, None)
        _zygotes[key] = zygote  # The last, so that the first is who was not asked for the longest time.
        while len(_zygotes) > _MOST:
            _zygotes.pop(next(iter(_zygotes))).end()
        return zygote


# Lines of /proc/PID/status: session and group, who it is and what it may, the mask of new files, the signals
# that it blocks and ignores, the CPUs that it may run on.
_INHERITED = (
    *("NSpgid", "NSsid", "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "CapPrm", "Umask"),
    *("SigBlk", "SigIgn", "Cpus_allowed"),
)


# How many files is told: rlaunch itself raises it for many ranks.
_LIMITS = [
    name for name in dir(resource) if name.startswith("RLIMIT_") and name[7:] not in ("NOFILE", "OFILE")
]


def _inherited() -> tuple[Any, ...]:
    """What processes have of whoever starts them, and no rank is told."""
    with open("/proc/thread-self/status", encoding="utf-8", errors="surrogateescape") as file:
        status = tuple(line for line in file if line.partition(":")[0] in _INHERITED)
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in _LIMITS}
    return (*status, *limits.items(), os.getpriority(os.PRIO_PROCESS, 0))


def _collect(patience: float) -> None:
    """Those that have ended are no zombies any more. ``patience``: seconds for all of them."""
    deadline = time.monotonic() + patience
    _ending[:] = [z for z in _ending if z.wait(max(0.0, deadline - time.monotonic())) is None]


def end_zygotes() -> None:
    """Ends the processes that ``spawn(start_method="zygote")`` keeps for later calls.

    A later call starts another. Each has the memory of what it has imported (350 MB for torch), and ends with
    this program otherwise. One with ranks that still run ends after them. Waits for the others, one second
    at most.
    """
    with _starting:
        while _zygotes:
            _zygotes.popitem()[1].end()
        _collect(1.0)


def _abandon_all() -> None:
    while _zygotes:
        with contextlib.suppress(KeyError):
            _zygotes.popitem()[1].abandon()


def _abandon() -> None:
    """In a process forked off this one: they are the parent's."""
    global _starting
    _starting = threading.Lock()
    _abandon_all()
    _ending.clear()


atexit.register(_abandon_all)
os.register_at_fork(after_in_child=_abandon)
