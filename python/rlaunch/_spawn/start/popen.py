"""Starts a rank: the object that ``multiprocessing.Process`` calls its Popen, one class a start method.

Only the parent imports this module; ranks do not need the modules that it imports.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import resource
import signal
import sys
from multiprocessing import (
    context,
    forkserver,
    popen_fork,
    popen_forkserver,
    popen_spawn_posix,
    reduction,
    resource_tracker,
    spawn,
    util,
)
from typing import TYPE_CHECKING, Any

from ... import _lib
from ..._preload import fork_request
from ..._process import debugger
from ..._process.signal_mask import blocked_signals
from ..sending.pickling import build_preparation_data
from ..worker import open_log
from .preparation import RunOnUnpickling, add_cell_sources, keep_error_of_main

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..worker import EnvDelta
    from .rank_process import RankProcess
    from .start_spec import StartSpec


# CPython 3.14 and some of 3.13 end a forked process by its exit handlers. Others do so in `_bootstrap`,
# where the handlers of the parent would run too (multiprocessing/popen_fork.py).
_ENDS_BY_ATEXIT = hasattr(popen_fork, "atexit")


class Popen:
    """A running rank, with the methods and attributes that ``multiprocessing.Process`` uses."""

    method: str
    DupFd: Any
    # Whether the rank is forked from a Python process: then /proc shows the environment of that one.
    is_forked = True

    def __init__(self, process_obj: RankProcess) -> None:
        util._flush_std_streams()  # type: ignore[attr-defined]
        self.returncode: int | None = None
        self.finalizer: Any = None
        self._fds: list[int] = []
        spec = process_obj.start_spec
        # The spawner, the ports and the overflow file live as long as the rank, even if the caller
        # drops the context.
        self._kept: tuple[object, ...] = (spec.spawner, spec.leases, spec.env_overflow)
        end = spec.spawner.open_end()
        try:
            spec.lifeline.set_fd(end)
            self._rank = self._launch(process_obj, spec, end)
        finally:
            spec.spawner.close_end(end)
        self.pid = self._rank.pid
        self.sentinel = self._rank.fileno()

    def _launch(self, process_obj: RankProcess, spec: StartSpec, end: int) -> _lib.Rank:
        """Starts the rank. ``end`` is its end of the lifeline."""
        raise NotImplementedError

    @property
    def rank(self) -> _lib.Rank:
        return self._rank

    def duplicate_for_child(self, fd: int) -> int:
        self._fds.append(fd)
        return fd

    def _record_exit(self, code: int | None) -> int | None:
        if code is not None:
            self.returncode = code
            self._kept = ()
        return code

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        return self.returncode if self.returncode is not None else self._record_exit(self._rank.poll())

    def wait(self, timeout: float | None = None) -> int | None:
        return self.returncode if self.returncode is not None else self._record_exit(self._rank.wait(timeout))

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
        self._kept = ()


def _write_payload(file: Any, popen: Any, process_obj: RankProcess, before_main: str | None) -> None:
    """Writes what ``multiprocessing.spawn`` reads in the child: preparation data and the process object.

    ``before_main`` is code that the child runs before it imports the main module.
    """
    data, has_main = build_preparation_data(process_obj.name)
    if before_main is not None:
        # The child unpickles the data before it imports the main module.
        data = {"_rlaunch_first": RunOnUnpickling(before_main), **data}
    add_cell_sources(data)
    keep_error_of_main(data)
    context.set_spawning_popen(popen)
    try:
        reduction.dump(data, file)
        spec = process_obj.start_spec
        spec.call.write(spec.pickler, has_main, popen._fds.clear)
        reduction.dump(process_obj, file)
    finally:
        context.set_spawning_popen(None)


@contextlib.contextmanager
def _without_closed_stderr() -> Iterator[None]:
    """Hides ``sys.stderr`` while its descriptor is closed (``os.close(2)``).

    multiprocessing passes the descriptor to its resource tracker, which then cannot start.
    """
    stderr = sys.stderr
    try:
        os.fstat(stderr.fileno())
    except OSError:
        sys.stderr = None
    except (AttributeError, ValueError):  # No file, or one that Python knows to be closed.
        pass
    try:
        yield
    finally:
        if sys.stderr is None:
            sys.stderr = stderr


def _copy_of_trackers_pipe() -> _lib.Descriptor:
    """Returns a copy of the pipe to the resource tracker, which it starts if need be."""
    with _without_closed_stderr():
        return _lib.Descriptor.copy_of(resource_tracker.getfd())  # type: ignore[arg-type]


def _build_environ(delta: EnvDelta) -> list[bytes]:
    environ = {k: v for k, v in os.environ.items() if k not in delta.unset} | delta.variables
    return [os.fsencode(f"{k}={v}") for k, v in environ.items()]


class SpawnPopen(Popen):
    """Starts a new interpreter."""

    method = "spawn"
    DupFd = popen_spawn_posix._DupFd
    is_forked = False

    def _launch(self, process_obj: RankProcess, spec: StartSpec, end: int) -> _lib.Rank:
        memory = _lib.Descriptor.memory("rlaunch-payload")
        payload = memory.fileno()
        output = -1
        try:
            with open(payload, "wb", closefd=False) as file:
                _write_payload(file, self, process_obj, None)
            # Only now: this starts the resource tracker, which a failed pickle must not.
            # A copy: multiprocessing's own may be in the place of a standard descriptor that is closed here.
            tracker = _copy_of_trackers_pipe()
            os.lseek(payload, 0, os.SEEK_SET)
            # The lifeline is also multiprocessing's sentinel of the parent: EOF when the parent has ended.
            code = (
                f"{debugger.build_code()}\n"
                "import sys; from multiprocessing import resource_tracker, spawn; "
                f"resource_tracker._resource_tracker._fd = {tracker.fileno()}; "
                f"sys.exit(spawn._main({payload}, {end}))"
            )
            python = os.fsencode(spawn.get_executable())
            flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
            argv = [python, *map(os.fsencode, flags), b"-c", code.encode(), b"--multiprocessing-fork"]
            if spec.log is not None:
                output = open_log(spec.log)
            keep = [payload, tracker.fileno(), *dict.fromkeys(self._fds)]
            environ = _build_environ(spec.env_delta)
            return spec.spawner.start(python, argv, environ, keep, output, end)
        finally:
            memory.close()
            if output >= 0:
                os.close(output)


class ForkPopen(Popen):
    """Forks this process."""

    method = "fork"

    def _launch(self, process_obj: RankProcess, spec: StartSpec, end: int) -> _lib.Rank:
        parent = os.getpid()
        try:
            rank = spec.spawner.fork(end)
        except BaseException:
            if os.getpid() != parent:
                # The child must not return into the caller's code.
                os._exit(1)
            raise
        if rank is None:
            code = 1
            try:
                if _ENDS_BY_ATEXIT:
                    atexit._clear()
                    atexit.register(util._exit_function)  # type: ignore[attr-defined]
                code = process_obj._bootstrap(parent_sentinel=end)  # type: ignore[attr-defined]
            finally:
                if _ENDS_BY_ATEXIT:
                    atexit._run_exitfuncs()
                os._exit(code)
        return rank


class ForkServerPopen(Popen):
    """Has multiprocessing's fork server fork the rank."""

    method = "forkserver"
    DupFd = popen_forkserver._DupFd

    def _launch(self, process_obj: RankProcess, spec: StartSpec, end: int) -> _lib.Rank:
        unset, variables = spec.env_delta.unset, spec.env_delta.variables
        code = f"import os; [os.environ.pop(n, None) for n in {unset!r}]; os.environ.update({variables!r})"
        spec.lifeline.is_forked_by_server = True
        payload = io.BytesIO()
        _write_payload(payload, self, process_obj, code)
        with _without_closed_stderr():
            forkserver.ensure_running()
        # The fork server's client leaks descriptors if it runs out of them or is interrupted.
        _lib.need_descriptors(6)
        with blocked_signals():
            return self._request_fork(spec, payload.getbuffer())

    def _request_fork(self, spec: StartSpec, payload: memoryview) -> _lib.Rank:
        status, writer = forkserver.connect_to_new_process(self._fds)
        # A copy of the write end is the child's sentinel of this process.
        sentinel = _lib.Descriptor.copy_of(writer)
        self.finalizer = util.Finalize(self, sentinel.close)
        try:
            with open(writer, "wb") as file:
                file.write(payload)
            pid = forkserver.read_signed(status)
            return spec.spawner.enter_of_fork_server(pid, status)
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


def _is_inherited(fd: int) -> bool:
    """Whether a program that this process starts has this standard stream.

    If this process started without it, another descriptor may have its number, such as one of the pipe of
    multiprocessing's resource tracker.
    """
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


class ZygotePopen(Popen):
    """Has a preload server (zygote) fork the rank, which receives what it would inherit through an exec."""

    method = "spawn"
    DupFd = popen_forkserver._DupFd

    def _launch(self, process_obj: RankProcess, spec: StartSpec, end: int) -> _lib.Rank:
        assert spec.zygote is not None
        memory = _lib.Descriptor.memory("rlaunch-payload")
        status, status_writer = _lib.Descriptor.pipe()
        output = -1
        try:
            with open(memory.fileno(), "wb", closefd=False) as file:
                _write_payload(file, self, process_obj, None)
            tracker = _copy_of_trackers_pipe()
            os.lseek(memory.fileno(), 0, os.SEEK_SET)
            fds = {"lifeline": end, "payload": memory.fileno()}
            fds |= {"status": status_writer.fileno(), "tracker": tracker.fileno()}
            # This process's, which may differ from those that the server was started with.
            fds |= {name: fd for fd, name in enumerate(_STDIO) if _is_inherited(fd)}
            if spec.log is not None:
                output = open_log(spec.log)
                fds |= {"stdout": output, "stderr": output}
            request = [
                *((b"fd", name.encode()) for name in fds),
                *((b"env", line) for line in _build_environ(spec.env_delta)),
                (b"cwd", os.fsencode(os.getcwd())),
                (b"nofile", b"%d" % resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
            ]
            pid = spec.zygote.fork(fork_request.encode(request), [*fds.values(), *self._fds])
            # If an exception comes in between, the rank dies when its lifeline closes.
            return spec.spawner.enter_of_fork_server(pid, status.fileno())
        finally:
            memory.close()
            status.close()
            status_writer.close()
            if output >= 0:
                os.close(output)

    def duplicate_for_child(self, fd: int) -> int:
        self._fds.append(fd)
        return len(self._fds) - 1
