"""The zygote: one process that imports the modules that all ranks need, and that ranks are forked from.

``PYTHON -c COMMAND FD SETUP``. ``FD``: its end of a pair of sockets
(``AF_UNIX``, ``SOCK_SEQPACKET``). ``SETUP``: JSON: ``modules`` to import; ``path`` (``sys.path``, or null),
``first`` (what ``sys.path[0]`` becomes, or null) and ``lifeline`` (its own, or null). docs/architecture.md
tells what goes over the socket.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import struct
import sys
import time

from . import _fork_safety, _newborn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What lies in the working folder, "", is no module of Python's own.
COMMAND = "import sys; sys.path.sort(key=bool, reverse=True); from rlaunch._zygote import main; main()"

# So many descriptors go with one message (unix(7), SCM_MAX_FD).
_MOST_FDS = 253


def main() -> None:
    """Imports, serves, and, in each process that is forked off, runs the rank."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    setup = json.loads(sys.argv[2])
    del sys.argv[1:]  # They are nothing to what is imported.
    while (number := os.open("/dev/null", os.O_RDWR)) <= 2:
        pass  # The first three are open from here on: what comes along with a request is above them.
    os.close(number)
    # They are for the ranks: what is typed at a terminal comes here too. Ranks get the mask as it was.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    name = _newborn.rename("rlaunch-zygote")
    _set_path(setup["path"], setup["first"])
    environ = dict(os.environ)
    with _Imports() as imports:
        answer = _import_all(setup["modules"])
        # A kernel that collects children itself tells nobody how they ended (waitpid(2)).
        robbed = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        if robbed:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        refusal = _fork_safety.refusal() if "ready" in answer else None
        if refusal is not None:
            answer = {"refused": f"importing {_in_short(setup['modules'])} {refusal}"}
    if "ready" not in answer:
        imports.show()  # Who is told may end this process.
    _tell(link, answer)
    if "ready" not in answer:
        os._exit(1)
    shared = _newborn.Shared(environ, mask, name, setup["first"])
    birth = _Zygote(link, setup.get("lifeline")).serve()
    if birth is None:
        os._exit(0)  # What the imports have registered for the end of a program is for the ranks to run.
    if robbed:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    imports.show()
    sys.exit(_newborn.live(birth, shared))


# The process's own; to block them changes nothing but how it dies (sigprocmask(2)).
_FAULTS = {signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}


def _set_path(path: list[str] | None, first: str | None) -> None:
    if path is not None:
        sys.path[:] = path
    elif not getattr(sys.flags, "safe_path", False):  # Python 3.11.
        # `python -c` has put "" there.
        sys.path[:] = [*([] if first is None else [first]), *filter(None, sys.path)]


def _in_short(modules: list[str]) -> str:
    """The first of them: a test session adds all that pytest itself consists of."""
    more = len(modules) - 3
    return ", ".join(modules[:3]) + (f" and {more} more" if more > 0 else "")


def _import_all(modules: list[str]) -> dict[str, Any]:
    """Imports them; what is to be told of it."""
    import importlib

    start = time.monotonic()
    for module in modules:
        try:
            importlib.import_module(module)
        except BaseException as error:
            import traceback

            said = traceback.format_exception_only(type(error), error)
            # In JSON a character takes six bytes at most, and all has to go into one message.
            frames = "".join(traceback.format_tb(error.__traceback__))[-6000:]
            return {
                "failed": f"import {module}: {said[-1].strip()}"[:1500],
                "traceback": f"{frames}{''.join(said)[:2000]}",
            }
    return {"ready": True, "seconds": round(time.monotonic() - start, 3), "imported": modules}


def _tell(link: socket.socket, answer: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # Nobody listens: the end of the socket comes next.
        link.send(json.dumps(answer).encode())


class _Imports:
    """What is written while modules are imported: kept, for each rank to write as its own."""

    def __init__(self) -> None:
        self._texts = {1: b"", 2: b""}
        self._kept: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> _Imports:
        for number in self._texts:
            memory = os.memfd_create("rlaunch-imports")
            with contextlib.suppress(OSError):  # It is closed: what is written there is lost, as in a rank.
                self._kept[number] = (os.dup(number), memory)
                os.dup2(memory, number)
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        for number, (before, memory) in self._kept.items():
            with open(memory, "rb") as file:
                file.seek(0)
                self._texts[number] = file.read()
            os.dup2(before, number)
            os.close(before)

    def show(self) -> None:
        """Writes it to this process's own stdout and stderr."""
        for number, text in self._texts.items():
            with contextlib.suppress(OSError):
                while text:
                    text = text[os.write(number, text) :]


class _Zygote:
    """Forks ranks on request."""

    def __init__(self, link: socket.socket, lifeline: int | None) -> None:
        self._link = link
        self._lifeline = lifeline
        # Those whose end is to be told: by pidfd, the number and where it is written to.
        self._children: dict[int, tuple[int, int]] = {}

    def serve(self) -> _newborn.Birth | None:
        """Returns in each forked process, with what it is to be; and None here, when nobody asks any more."""
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        asked = True
        while asked or self._children:
            for fd, _ in poll.poll():
                if fd != self._link.fileno():
                    poll.unregister(fd)
                    self._collect(fd)
                    continue
                try:
                    birth = self._receive()
                    if birth is None:
                        # Its ranks live on; they die with whoever has asked for them, by their lifelines.
                        asked = False
                        poll.unregister(self._link)
                    elif self._bear(birth, poll):
                        return birth
                except OSError as error:
                    self._reply(f"-{error.errno} {error.strerror}")
        return None

    def _receive(self) -> _newborn.Birth | None:
        try:
            word, fds, flags, _ = socket.recv_fds(self._link, 16, _MOST_FDS, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            return None
        if flags & socket.MSG_CTRUNC:  # For want of descriptors here.
            for fd in fds:
                os.close(fd)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if not word or not fds:
            return None
        with open(fds[0], "rb", closefd=False) as file:
            file.seek(0)
            return _newborn.Birth(json.load(file), fds)

    def _bear(self, birth: _newborn.Birth, poll: select.poll) -> bool:
        """Forks it and answers; True in the rank, which has taken its place."""
        heard = tell = -1
        try:
            heard, tell = os.pipe()
            pid = _fork_orphan() if birth.orphan else os.fork()
        except OSError:
            if heard >= 0:
                os.close(heard)
                os.close(tell)
            birth.close()
            raise
        if pid == 0:
            os.close(heard)
            birth.settle(tell, self._forget)
            return True
        os.close(tell)
        # Nothing at all: it has been killed.
        word = os.read(heard, 4096).decode() or f"-{errno.ECHILD} fork: it was killed at once"
        os.close(heard)
        try:
            if word == "ok":
                word = str(pid)
                if not birth.orphan:
                    self._watch(pid, birth.fd("status"), poll)
            elif not birth.orphan:
                os.waitpid(pid, 0)
        finally:
            birth.close()
        self._reply(word)
        return False

    def _watch(self, pid: int, status: int, poll: select.poll) -> None:
        """Its end will be told."""
        pidfd = -1
        try:
            # Not collected yet, so the number is its own.
            pidfd = os.pidfd_open(pid)
            self._children[pidfd] = (pid, os.dup(status))
        except OSError:
            if pidfd >= 0:
                os.close(pidfd)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        poll.register(pidfd, select.POLLIN)

    def _reply(self, word: str) -> None:
        with contextlib.suppress(OSError):  # Nobody waits for it any more.
            self._link.send(word.encode())

    def _collect(self, pidfd: int) -> None:
        """A rank has ended: tells how, as multiprocessing's fork server does."""
        pid, status = self._children.pop(pidfd)
        _, how = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):  # Nobody wants to know.
            os.write(status, struct.pack("q", os.waitstatus_to_exitcode(how)))
        os.close(status)
        os.close(pidfd)

    def _forget(self) -> None:
        """In a rank: what is the zygote's is not its own."""
        self._link.close()
        if self._lifeline is not None:
            os.close(self._lifeline)
        for pidfd, (_, status) in self._children.items():
            os.close(pidfd)
            os.close(status)
        self._children.clear()


def _fork_orphan() -> int:
    """Forks a process that is the child of the nearest subreaper above, and already is when it goes on.

    No other way to it runs the handlers of pthread_atfork(3), by which libraries end their threads: clone(2)
    with CLONE_PARENT is not the C library's fork.
    """
    heard, tell = os.pipe()
    gate, opener = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            pid = os.fork()
        except OSError as error:
            os.write(tell, str(-(error.errno or 1)).encode())
            os._exit(1)
        if pid > 0:
            os.write(tell, str(pid).encode())
            os._exit(0)
        for fd in (heard, tell, opener):
            os.close(fd)
        # Until the one in between has been collected, which is when the subreaper is the parent.
        os.read(gate, 1)
        os.close(gate)
        return 0
    os.close(tell)
    os.close(gate)
    os.waitpid(between, 0)
    pid = int(os.read(heard, 32) or b"-1")
    os.close(heard)
    os.close(opener)
    if pid < 0:
        raise OSError(-pid, os.strerror(-pid))
    return pid
