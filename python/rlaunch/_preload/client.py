"""A preload server (zygote) as seen from the program that has ranks forked off it."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from multiprocessing import spawn, util
from typing import TYPE_CHECKING

from .. import _lib
from .._process.signal_mask import blocked_signals
from .._process.spawners import new_spawner
from ..errors import ZygoteError
from . import server

if TYPE_CHECKING:
    from collections.abc import Iterable

# With this program's path, so that it imports the same rlaunch. "" is last meanwhile: a file of the working
# folder must not hide a module of Python's own.
_COMMAND = (
    "import sys; path = {!r}; sys.path[:] = sorted(path, key=bool, reverse=True); "
    "from rlaunch._preload.server import main; main(path)"
)

# Seconds for the fork of one rank, on a machine under heavy load.
_FORK_TIMEOUT = 60.0
# Seconds for the end of a process that has nothing left to do.
_EXIT_TIMEOUT = 5.0


def _escape(path: str | None) -> str:
    """Returns a path as faulthandler writes it: in ASCII, other characters as escapes."""
    return (path or "").encode("ascii", "backslashreplace").decode("ascii")


# Parts of a line of faulthandler's for a frame that only imports.
_IMPORT_FRAMES = (
    *('"<frozen importlib', f'"{_escape(importlib.__file__)}"', f'"{_escape(server.__file__)}"'),
    'File "<string>", line 1 in <module>',
)

# Zygotes that end when their ranks have ended. They are kept because dropping one kills it and its ranks.
_ending: list[Zygote] = []


class Zygote:
    """A process that has imported modules, and forks ranks on request."""

    def __init__(self, modules: list[str], import_limit: tuple[float, str] | None = None) -> None:
        """Starts it, and waits until it has imported the modules.

        Args:
            import_limit: seconds that the imports may take, and the name of the setting; None: no limit.

        Raises:
            ZygoteError: a module cannot be imported or takes too long, or a fork would be unsafe afterwards.
            OSError: the system cannot start it.
        """
        self._modules = server.abbreviate(modules)
        self._import_limit = import_limit
        # Where it writes its stacks if the imports take too long.
        self._stacks = _lib.Descriptor.memory("rlaunch-stacks")
        self._process: _lib.Rank | None = None
        self._closed = False
        self._pending_replies = 0
        self._spawner = new_spawner()
        self._lock = threading.Lock()
        self._link, peer = map(_above_stdio, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        end = self._spawner.open_end()
        try:
            with peer:
                setup = [f"socket={peer.fileno()}", f"lifeline={end}"]
                fds = [peer.fileno()]
                if import_limit is not None:
                    setup += [f"limit={import_limit[0]}", f"stacks={self._stacks.fileno()}"]
                    fds.append(self._stacks.fileno())
                python = os.fsencode(spawn.get_executable())
                flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
                words = [*flags, "-c", _COMMAND.format(sys.path), *setup, *(f"module={m}" for m in modules)]
                argv = [python, *map(os.fsencode, words)]
                environ = [os.fsencode(f"{k}={v}") for k, v in os.environ.items() if k != "RLAUNCH_RANK_KEY"]
                try:
                    self._process = self._spawner.start(python, argv, environ, fds, -1, end)
                except OSError as error:
                    text = f"the zygote cannot be started: {error.strerror or error}"
                    raise OSError(error.errno, text) from error
            self._wait_until_ready()
        except BaseException:
            self._link.close()
            for process in self._spawner.ranks():
                process.signal(signal.SIGKILL)
                process.wait(_EXIT_TIMEOUT)
            raise
        finally:
            self._stacks.close()
            self._spawner.close_end(end)

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def _wait_until_ready(self) -> None:
        message = self._link.recv(1 << 16)
        if message:
            reply = json.loads(message)
        else:
            doing = f"importing {self._modules}"
            reply = {"failed": self._describe_late_import(doing) or self._describe_death(doing)}
        if "refused" in reply:
            raise ZygoteError(f"no preload server: {reply['refused']}")
        if "failed" in reply:
            error = ZygoteError(f"no preload server: {reply['failed']}")
            if reply.get("traceback") and hasattr(error, "add_note"):  # Python 3.11.
                error.add_note(reply["traceback"].rstrip())
            raise error

    def _describe_late_import(self, doing: str) -> str:
        """Returns where it was when the imports had taken too long; "" if they had not."""
        fd = self._stacks.fileno()
        stacks = os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace").strip()
        if self._import_limit is None or not stacks:
            return ""
        seconds, setting = self._import_limit
        # The first line says that it is a timeout.
        frames = [
            line for line in stacks.splitlines()[1:] if not any(part in line for part in _IMPORT_FRAMES)
        ]
        text = "\n".join(frames)
        return f"{doing} had not ended after {seconds:g} s ({setting}); it was here:\n{text}"

    def _describe_death(self, doing: str) -> str:
        code = self.wait(_EXIT_TIMEOUT)
        if code is None:
            return f"{doing}: it does not answer"
        return f"{doing}: it was killed by signal {-code}" if code < 0 else f"{doing}: it ended with {code}"

    def can_fork(self) -> bool:
        """Returns whether it runs and has not been closed."""
        return not self._closed and self.wait(0) is None

    def wait(self, timeout: float) -> int | None:
        """Waits until it has ended, at most ``timeout`` seconds; returns its exit code, None if it runs."""
        assert self._process is not None
        return self._process.wait(timeout)

    def fork(self, request: bytes, fds: Iterable[int]) -> int:
        """Forks a rank and returns its process id.

        Args:
            request: an encoded ``ForkRequest``.
            fds: its descriptors.

        Raises:
            ZygoteError: the zygote has ended or does not answer.
            OSError: the system cannot fork the rank.
        """
        memory = _lib.Descriptor.memory("rlaunch-request")
        try:
            with open(memory.fileno(), "wb", closefd=False) as file:
                file.write(request)
            with self._lock:
                if self._closed:
                    raise ZygoteError(f"the zygote (pid {self.pid}) has been ended")
                assert self._process is not None
                self._process.signal(signal.SIGCONT)  # In case a SIGSTOP has reached it.
                try:
                    # Replies that interrupted calls left unread. Their ranks die when the lifelines close.
                    while self._pending_replies:
                        self._read_reply()
                    with blocked_signals():
                        socket.send_fds(self._link, [b"F"], [memory.fileno(), *fds])
                        self._pending_replies += 1
                    reply = self._read_reply()
                except ConnectionError:
                    reply = ""
        finally:
            memory.close()
        if not reply:
            death = self._describe_death("forking a rank")
            raise ZygoteError(f"the zygote (pid {self.pid}) is gone: {death}")
        pid, _, step = reply.partition(" ")
        if int(pid) < 0:
            raise OSError(-int(pid), step or os.strerror(-int(pid)))
        return int(pid)

    def _read_reply(self) -> str:
        """Reads the next reply. After an interrupt it is either still unread, or read and lost."""
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        if not poll.poll(_FORK_TIMEOUT * 1000):
            assert self._process is not None
            self._process.signal(signal.SIGKILL)
            raise ZygoteError(f"the zygote (pid {self.pid}) has not answered for {_FORK_TIMEOUT:g} s")
        with blocked_signals():
            reply = self._link.recv(4096)
            self._pending_replies -= 1
        return reply.decode()

    def close(self) -> None:
        """Accepts no more requests. The zygote ends when its ranks have ended."""
        with self._lock:
            self.close_unlocked()

    def close_unlocked(self) -> None:
        """Like ``close``, for a process or thread that shares this object with no other thread."""
        if not self._closed:
            self._closed = True
            self._link.close()
            _ending.append(self)


def _above_stdio(end: socket.socket) -> socket.socket:
    """Returns the socket with a number above 2, which a host with closed standard descriptors hands out."""
    if end.fileno() > 2:
        return end
    with end:
        return socket.socket(fileno=fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def reap_closed(timeout: float) -> None:
    """Reaps closed zygotes that have ended; waits for them at most ``timeout`` seconds in all."""
    deadline = time.monotonic() + timeout
    _ending[:] = [z for z in _ending if z.wait(max(0.0, deadline - time.monotonic())) is None]


def forget_closed() -> None:
    """In a process forked off this one: drops the parent's zygotes."""
    _ending.clear()
