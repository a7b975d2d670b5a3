"""Starting a rank: what ``Process`` calls a Popen, one for each start method.

Imported by the parent alone; a rank does without all that this module needs.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import weakref
from multiprocessing import (
    context,
    forkserver,
    popen_forkserver,
    popen_spawn_posix,
    reduction,
    resource_tracker,
    spawn,
    util,
)
from typing import TYPE_CHECKING, Any

from . import _lib
from ._sending import preparation
from ._worker import open_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ._process import Birth, RankProcess
    from ._worker import Told

_nurseries: weakref.WeakSet[_lib.Nursery] = weakref.WeakSet()
_leases: weakref.WeakSet[_lib.PortLeases] = weakref.WeakSet()


def new_nursery() -> _lib.Nursery:
    """A nursery that processes forked off this one let go of."""
    nursery = _lib.Nursery()
    _nurseries.add(nursery)
    return nursery


def hold(leases: _lib.PortLeases) -> None:
    """Leases that processes forked off this one let go of."""
    _leases.add(leases)


def _abandon_all() -> None:
    for nursery in list(_nurseries):
        nursery.abandon()
    for leases in list(_leases):
        leases.release()


os.register_at_fork(after_in_child=_abandon_all)


class _RunFirst:
    """Unpickles by running code: the environment has to be there when the main module is imported."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, (self._code,)


class Popen:
    """What ``Process`` wants of the thing that runs it."""

    method: str
    DupFd: Any

    def __init__(self, process_obj: RankProcess) -> None:
        util._flush_std_streams()  # type: ignore[attr-defined]
        self.returncode: int | None = None
        self.finalizer: Any = None
        self._fds: list[int] = []
        birth = process_obj.birth
        # The nursery lives as long as a rank that may still need it.
        self._nursery: _lib.Nursery | None = birth.nursery
        # And so do the ports, also when nobody keeps the context, and the backup file.
        self._leases: _lib.PortLeases | None = birth.leases
        self._backup: _lib.Descriptor | None = birth.backup
        end = birth.nursery.open_end()
        try:
            birth.lifeline._fd = end
            self._rank = self._launch(process_obj, birth, end)
        finally:
            birth.nursery.close_end(end)
        self.pid = self._rank.pid
        self.sentinel = self._rank.fileno()

    def _launch(self, process_obj: RankProcess, birth: Birth, end: int) -> _lib.Rank:
        raise NotImplementedError

    @property
    def rank(self) -> _lib.Rank:
        return self._rank

    def duplicate_for_child(self, fd: int) -> int:
        self._fds.append(fd)
        return fd

    def _settle(self, code: int | None) -> int | None:
        if code is not None:
            self.returncode = code
            self._nursery = self._leases = self._backup = None
        return code

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        return self.returncode if self.returncode is not None else self._settle(self._rank.poll())

    def wait(self, timeout: float | None = None) -> int | None:
        return self.returncode if self.returncode is not None else self._settle(self._rank.wait(timeout))

    def _send_signal(self, sig: int) -> None:
        if self.returncode is None:
            self._rank.signal(sig)

    def interrupt(self) -> None:
        self._send_signal(signal.SIGINT)

    def terminate(self) -> None:
        self._send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._send_signal(signal.SIGKILL)

    def close(self) -> None:
        self._nursery = self._leases = self._backup = None


def _pickled_to(file: Any, popen: Any, process_obj: RankProcess, before_main: str | None) -> None:
    """What ``multiprocessing.spawn`` reads in the child: how to prepare, and the process object."""
    data, main = preparation(process_obj.name)
    if before_main is not None:
        # Unpickled before the child prepares, hence before it imports the main module.
        data = {"_rlaunch_first": _RunFirst(before_main), **data}
    context.set_spawning_popen(popen)
    try:
        reduction.dump(data, file)
        process_obj.birth.sender.dump(process_obj, file, main, popen._fds.clear)
    finally:
        context.set_spawning_popen(None)


class SpawnPopen(Popen):
    method = "spawn"
    DupFd = popen_spawn_posix._DupFd

    def _launch(self, process_obj: RankProcess, birth: Birth, end: int) -> _lib.Rank:
        memory = _lib.Descriptor.memory("rlaunch-payload")
        payload = memory.fileno()
        output = -1
        try:
            with open(payload, "wb", closefd=False) as file:
                _pickled_to(file, self, process_obj, None)
            # A process, so not before it is clear that there is something to send.
            tracker: int = resource_tracker.getfd()  # type: ignore[assignment]
            os.lseek(payload, 0, os.SEEK_SET)
            # The lifeline doubles as multiprocessing's sentinel of the parent: at its end, EOF.
            code = (
                "import sys; from multiprocessing import resource_tracker, spawn; "
                f"resource_tracker._resource_tracker._fd = {tracker}; "
                f"sys.exit(spawn._main({payload}, {end}))"
            )
            python = os.fsencode(spawn.get_executable())
            flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
            argv = [python, *map(os.fsencode, flags), b"-c", code.encode(), b"--multiprocessing-fork"]
            if birth.log is not None:
                output = open_log(birth.log)
            keep = [payload, tracker, *self._fds]
            environ = _exec_environ(birth.told)
            return birth.nursery.start(python, argv, environ, keep, output, end)
        finally:
            memory.close()
            if output >= 0:
                os.close(output)


def _exec_environ(told: Told) -> list[bytes]:
    environ = {k: v for k, v in os.environ.items() if k not in told.away} | told.environ
    return [os.fsencode(f"{k}={v}") for k, v in environ.items()]


class ForkPopen(Popen):
    method = "fork"

    def _launch(self, process_obj: RankProcess, birth: Birth, end: int) -> _lib.Rank:
        parent = os.getpid()
        try:
            rank = birth.nursery.fork(end)
        except BaseException:
            if os.getpid() != parent:
                # The user's code above is the parent's to leave.
                os._exit(1)
            raise
        if rank is None:
            code = 1
            try:
                code = process_obj._bootstrap(parent_sentinel=end)  # type: ignore[attr-defined]
            finally:
                os._exit(code)
        return rank


@contextlib.contextmanager
def signals_held(signals: Iterable[int] | None = None) -> Iterator[None]:
    """Lets signals wait, all of them by default: what is begun in the block is ended."""
    # On its own: blocking them may raise, by one that came just before.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() if signals is None else signals)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ForkServerPopen(Popen):
    method = "forkserver"
    DupFd = popen_forkserver._DupFd

    def _launch(self, process_obj: RankProcess, birth: Birth, end: int) -> _lib.Rank:
        import io

        away, changes = birth.told.away, birth.told.environ
        code = f"import os; [os.environ.pop(n, None) for n in {away!r}]; os.environ.update({changes!r})"
        payload = io.BytesIO()
        _pickled_to(payload, self, process_obj, code)
        forkserver.ensure_running()
        # The fork server's client leaks descriptors if it cannot get all it needs, or is interrupted.
        _lib.need_descriptors(6)
        with signals_held():
            return self._connect(birth, payload.getbuffer())

    def _connect(self, birth: Birth, payload: memoryview) -> _lib.Rank:
        status, writer = forkserver.connect_to_new_process(self._fds)
        # A copy of the write end is the child's sentinel of this process.
        sentinel = os.dup(writer)
        self.finalizer = util.Finalize(self, os.close, (sentinel,))
        try:
            with open(writer, "wb") as file:
                file.write(payload)
            pid = forkserver.read_signed(status)
            return birth.nursery.enter_of_fork_server(pid, status)
        finally:
            os.close(status)

    def duplicate_for_child(self, fd: int) -> int:
        self._fds.append(fd)
        return len(self._fds) - 1

    def close(self) -> None:
        super().close()
        if self.finalizer is not None:
            self.finalizer()


_STDIO = ("stdin", "stdout", "stderr")


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


class ZygotePopen(Popen):
    """Forked off a process that has imported what ranks need; told all that an exec would have told it."""

    method = "spawn"
    DupFd = popen_forkserver._DupFd

    def _launch(self, process_obj: RankProcess, birth: Birth, end: int) -> _lib.Rank:
        assert birth.zygote is not None
        memory = _lib.Descriptor.memory("rlaunch-payload")
        status, theirs = os.pipe()
        output = -1
        try:
            with open(memory.fileno(), "wb", closefd=False) as file:
                _pickled_to(file, self, process_obj, None)
            tracker: int = resource_tracker.getfd()  # type: ignore[assignment]
            os.lseek(memory.fileno(), 0, os.SEEK_SET)
            fds = {"lifeline": end, "status": theirs, "payload": memory.fileno(), "tracker": tracker}
            # Not what they were when the zygote was started.
            fds |= {name: number for number, name in enumerate(_STDIO) if _is_open(number)}
            if birth.log is not None:
                output = open_log(birth.log)
                fds |= {"stdout": output, "stderr": output}
            request = {
                "argv": [],
                "env": [line.decode("latin-1") for line in _exec_environ(birth.told)],
                "cwd": os.fsencode(os.getcwd()).decode("latin-1"),
                "fds": {name: number for number, name in enumerate(fds, 1)},
                "session": False,
                "scope": "process",
                "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                "cpus": None,
                "orphan": False,
                "payload": {"first_fd": len(fds) + 1},
            }
            pid = birth.zygote.fork(request, [*fds.values(), *self._fds])
            # If an exception comes in between, it dies of its lifeline, like one that was not told of.
            return birth.nursery.enter_of_fork_server(pid, status)
        finally:
            memory.close()
            os.close(status)
            os.close(theirs)
            if output >= 0:
                os.close(output)

    def duplicate_for_child(self, fd: int) -> int:
        self._fds.append(fd)
        return len(self._fds) - 1
