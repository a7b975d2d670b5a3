"""The zygotes of a program: each has imported something, and is there until the program ends."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import sys
import threading
from multiprocessing import spawn, util
from typing import TYPE_CHECKING, Any

from . import _lib, _zygote
from .errors import ZygoteError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Read when a library is loaded, and not again: another value needs another zygote.
_READ_BY_IMPORTS = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "LD_", "PYTHON"),
    *("FLAGS_", "TORCH_", "XLA_", "JAX_"),
)
_AUTO = "auto"


def asked(preload: Any, default: str) -> tuple[list[str], bool]:
    """What ``preload`` names: the modules, and whether a start without a zygote will do as well.

    ``preload``: names joined by commas, or a list of them; "auto" among them says the latter. None, and
    "auto" alone: ``default``.

    Raises:
        ValueError: it names no module.
    """
    names = (
        [default] if preload is None else preload.split(",") if isinstance(preload, str) else list(preload)
    )
    names = [name.strip() if isinstance(name, str) else name for name in names]
    for name in names:
        if not (isinstance(name, str) and name and all(part.isidentifier() for part in name.split("."))):
            raise ValueError(
                f"preload must name modules to import, as in 'torch,my.models', but got {preload!r}"
            )
    modules = [name for name in dict.fromkeys(names) if name != _AUTO]
    return modules or [default], _AUTO in names


class Zygote:
    """A process that has imported modules, seen from the program that wants ranks forked off it."""

    def __init__(self, modules: list[str]) -> None:
        """Starts it, and waits until it has imported them.

        Raises:
            ZygoteError: they cannot be imported, or a fork would be unsafe afterwards.
            OSError: the system would not.
        """
        from ._popen import new_nursery

        self._modules = ", ".join(modules)
        self._nursery = new_nursery()
        self._lock = threading.Lock()
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end = self._nursery.open_end()
        try:
            with theirs:
                setup = json.dumps({"modules": modules, "path": sys.path, "first": None, "lifeline": end})
                python = os.fsencode(spawn.get_executable())
                flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
                words = [*flags, "-c", _zygote.COMMAND, str(theirs.fileno()), setup]
                argv = [python, *map(os.fsencode, words)]
                environ = [os.fsencode(f"{k}={v}") for k, v in os.environ.items() if k != "RLAUNCH_RANK_KEY"]
                self._process = self._nursery.start(python, argv, environ, [theirs.fileno()], -1, end)
            self._hear()
        except BaseException:
            self.end()
            raise
        finally:
            self._nursery.close_end(end)

    @property
    def pid(self) -> int:
        """Its process id."""
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
        code = self._process.wait(5.0)
        if code is None:
            return f"{doing}: it does not answer"
        return f"{doing}: it was killed by signal {-code}" if code < 0 else f"{doing}: it ended with {code}"

    def lives(self) -> bool:
        """Whether it can be asked for ranks."""
        return self._process.poll() is None

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
                try:
                    socket.send_fds(self._link, [b"F"], [memory.fileno(), *fds])
                    word = self._link.recv(4096).decode()
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

    def end(self) -> None:
        """Asks for nothing more. It ends when its ranks have."""
        self._link.close()


# By what they have imported, and by what they read of the environment while they did.
_zygotes: dict[tuple[Any, ...], Zygote] = {}


def zygote_of(modules: list[str]) -> Zygote:
    """The zygote that has imported these; started if there is none.

    Raises:
        ZygoteError, OSError: as ``Zygote`` does.
    """
    read = tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith(_READ_BY_IMPORTS)))
    key = (tuple(modules), spawn.get_executable(), read)
    zygote = _zygotes.get(key)
    if zygote is None or not zygote.lives():
        zygote = _zygotes[key] = Zygote(modules)
    return zygote


def end_all() -> None:
    """Ends all zygotes of this process, once their ranks have ended. A later start has new ones."""
    while _zygotes:
        with contextlib.suppress(KeyError):
            _zygotes.popitem()[1].end()


atexit.register(end_all)
# They are the parent's.
os.register_at_fork(after_in_child=end_all)
