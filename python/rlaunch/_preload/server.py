"""The preload server (zygote): imports the modules that all ranks need, and forks ranks on request.

Command line: ``PYTHON -c COMMAND NAME=VALUE...``. COMMAND calls ``main``. The names:

* ``socket``: the descriptor of the server's end of a socket pair (``AF_UNIX``, ``SOCK_SEQPACKET``);
* ``lifeline``: the descriptor of the server's own lifeline;
* ``module``, any number of them: modules to import;
* ``first``: the entry to put first into ``sys.path``;
* ``limit`` and ``stacks``: how many seconds the imports may take, and a descriptor. After that time the
  stacks of all threads are written there, and the server ends with status 1.

docs/architecture/preload.md describes the messages on the socket.
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

from . import child, fork_safety
from .captured_output import CapturedOutput
from .fork_request import ForkRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

# Descriptors in one message at most (unix(7), SCM_MAX_FD).
_MAX_FDS = 253


def main(path: list[str] | None = None) -> None:
    """Imports the modules and serves requests. In each forked process it runs the rank.

    Args:
        path: the new ``sys.path``; None: Python's own, after ``first``.
    """
    words = [word.partition("=") for word in sys.argv[1:]]
    modules = [value for name, _, value in words if name == "module"]
    setup = {name: value for name, _, value in words}
    link = socket.socket(fileno=int(setup["socket"]))
    link.set_inheritable(False)
    del sys.argv[1:]  # Imported modules must not see them.
    # Opens the standard descriptors that are closed, so that those of requests are above 2.
    while (fd := os.open("/dev/null", os.O_RDWR)) <= 2:
        pass
    os.close(fd)
    # A terminal's signals reach this process too. They are meant for the ranks, which get the mask of before.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    name = child.set_process_name("rlaunch-zygote")
    _set_path(path, setup.get("first"))
    environ = dict(os.environ)
    with CapturedOutput() as output:
        with _limited(setup):
            reply = _import_modules(modules)
        # With SIGCHLD ignored, the kernel reaps children and discards their exit status (waitpid(2)).
        sigchld_ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        if sigchld_ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            reason = fork_safety.find_fork_hazard() if "ready" in reply else None
            if reason is not None:
                reply = {"refused": f"importing {abbreviate(modules)} {reason}"}
        except OSError as error:
            reply = {"refused": fork_safety.describe_fork_error(error)}
    if "ready" not in reply:
        output.write()  # Before the reply: the receiver may kill this process.
    _send_reply(link, reply)
    if "ready" not in reply:
        os._exit(1)
    state = child.ImportedState(environ, mask, name, setup.get("first"))
    request = _Zygote(link, int(setup["lifeline"])).serve()
    if request is None:
        os._exit(0)  # Without exit handlers: those of the imported modules are for the ranks to run.
    if sigchld_ignored:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    output.write()
    sys.exit(child.run_rank(request, state))


# Never blocked: the result is undefined if they are generated while blocked (sigprocmask(2)).
_FAULTS = {signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}


def _set_path(path: list[str] | None, first: str | None) -> None:
    if path is not None:
        sys.path[:] = path
    elif not getattr(sys.flags, "safe_path", False):  # Python 3.11.
        # `python -c` has put "" into it.
        sys.path[:] = [*([] if first is None else [first]), *filter(None, sys.path)]


@contextlib.contextmanager
def _limited(setup: Mapping[str, str]) -> Iterator[None]:
    """Ends this process if the block takes too long, even if an import holds the GIL."""
    if "limit" not in setup:
        yield
        return
    import faulthandler

    fd = int(setup["stacks"])
    faulthandler.dump_traceback_later(float(setup["limit"]), exit=True, file=fd)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        os.close(fd)


def abbreviate(modules: list[str]) -> str:
    """Returns the first three names: pytest's plugin adds all modules of pytest."""
    more = len(modules) - 3
    return ", ".join(modules[:3]) + (f" and {more} more" if more > 0 else "")


def _import_modules(modules: list[str]) -> dict[str, Any]:
    """Imports the modules; returns the reply that reports it."""
    import importlib

    start = time.monotonic()
    for module in modules:
        try:
            importlib.import_module(module)
        except BaseException as error:
            import traceback

            lines = traceback.format_exception_only(type(error), error)
            # The reply has to fit into one message, and JSON takes up to six bytes a character.
            frames = "".join(traceback.format_tb(error.__traceback__))[-6000:]
            # If the module itself does not exist, all frames are those of the import.
            is_absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
            return {
                "failed": f"import {module}: {lines[-1].strip()}"[:1500],
                "traceback": "" if is_absent else f"{frames}{''.join(lines)[:2000]}",
            }
    return {"ready": True, "seconds": round(time.monotonic() - start, 3), "imported": modules}


def _send_reply(link: socket.socket, reply: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # The client has closed its end; `serve` sees that next.
        link.send(json.dumps(reply).encode())


class _Zygote:
    """Forks ranks on request."""

    def __init__(self, link: socket.socket, lifeline: int) -> None:
        self._link = link
        self._lifeline = lifeline
        # Ranks whose exit status the client wants: pid and status pipe, by pidfd.
        self._children: dict[int, tuple[int, int]] = {}

    def serve(self) -> ForkRequest | None:
        """Serves until the client closes the socket and all ranks have ended; then returns None.

        In each forked process it returns the request.
        """
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        connected = True
        while connected or self._children:
            for fd, _ in poll.poll():
                if fd != self._link.fileno():
                    poll.unregister(fd)
                    self._reap(fd)
                    continue
                try:
                    request = self._receive()
                    if request is None:
                        # The ranks run on. Each is tied to the client by its own lifeline.
                        connected = False
                        poll.unregister(self._link)
                    elif self._fork(request, poll):
                        return request
                except OSError as error:
                    self._reply(f"-{error.errno} {error.strerror}")
        return None

    def _receive(self) -> ForkRequest | None:
        try:
            message, fds, flags, _ = socket.recv_fds(self._link, 16, _MAX_FDS)
        except ConnectionError:
            return None
        if flags & socket.MSG_CTRUNC:  # This process is out of descriptors.
            _close(fds)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if not message or not fds:
            return None
        try:
            with open(fds.pop(0), "rb") as file:
                file.seek(0)
                return ForkRequest(file.read(), fds)
        except (OSError, ValueError) as error:
            _close(fds)
            raise OSError(getattr(error, "errno", None) or errno.EINVAL, str(error)) from error

    def _fork(self, request: ForkRequest, poll: select.poll) -> bool:
        """Forks a rank and replies. Returns True in the rank, once that is set up."""
        reader = writer = -1
        try:
            reader, writer = os.pipe()
            pid = os.fork() if request.parent is None else _fork_orphan()
        except OSError:
            if reader >= 0:
                os.close(reader)
                os.close(writer)
            request.close()
            raise
        if pid == 0:
            os.close(reader)
            child.set_up(request, writer, self._close_fds)
            return True
        os.close(writer)
        # Nothing to read: the rank was killed.
        reply = os.read(reader, 4096).decode() or f"-{errno.ECHILD} fork: it was killed at once"
        os.close(reader)
        try:
            if reply == "ok":
                reply = str(pid)
                if request.parent is None:
                    self._watch(pid, request.fd("status"), poll)
            elif request.parent is None:
                os.waitpid(pid, 0)
        finally:
            request.close()
        self._reply(reply)
        return False

    def _watch(self, pid: int, status: int, poll: select.poll) -> None:
        """Has the rank's exit status written to ``status`` when it ends."""
        pidfd = -1
        try:
            # Not reaped yet, so the pid cannot be another process's.
            pidfd = os.pidfd_open(pid)
            self._children[pidfd] = (pid, os.dup(status))
        except OSError:
            if pidfd >= 0:
                os.close(pidfd)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        poll.register(pidfd, select.POLLIN)

    def _reply(self, reply: str) -> None:
        with contextlib.suppress(OSError):  # The client has closed its end.
            self._link.send(reply.encode())

    def _reap(self, pidfd: int) -> None:
        """Reaps a rank, and writes its exit code in the format of multiprocessing's fork server."""
        pid, status = self._children.pop(pidfd)
        _, wait_status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):  # The reader has closed its end.
            os.write(status, struct.pack("q", os.waitstatus_to_exitcode(wait_status)))
        os.close(status)
        os.close(pidfd)

    def _close_fds(self) -> None:
        """In a rank: closes the zygote's descriptors."""
        self._link.close()
        os.close(self._lifeline)
        for pidfd, (_, status) in self._children.items():
            os.close(pidfd)
            os.close(status)
        self._children.clear()


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _fork_orphan() -> int:
    """Forks a process whose parent is the nearest subreaper. In that process, returns once that is so.

    It forks twice. clone(2) with CLONE_PARENT would do it in one step, but skips the handlers of
    pthread_atfork(3), by which libraries stop their threads.
    """
    pid_reader, pid_writer = os.pipe()
    gate_reader, gate_writer = os.pipe()
    intermediate = os.fork()
    if intermediate == 0:
        try:
            pid = os.fork()
        except OSError as error:
            os.write(pid_writer, str(-(error.errno or 1)).encode())
            os._exit(1)
        if pid > 0:
            os.write(pid_writer, str(pid).encode())
            os._exit(0)
        for fd in (pid_reader, pid_writer, gate_writer):
            os.close(fd)
        # Waits until the intermediate process has ended and been reaped: the subreaper is the parent then.
        os.read(gate_reader, 1)
        os.close(gate_reader)
        return 0
    os.close(pid_writer)
    os.close(gate_reader)
    os.waitpid(intermediate, 0)
    pid = int(os.read(pid_reader, 32) or b"-1")
    os.close(pid_reader)
    os.close(gate_writer)
    if pid < 0:
        raise OSError(-pid, os.strerror(-pid))
    return pid
