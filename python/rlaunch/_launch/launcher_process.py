"""Runs the launcher as a child process: its output, its status pipe, and interrupts of this process."""

from __future__ import annotations

import os
import sys
import time

from .. import _lib
from .._process import debugger
from .outcome import find_result, print_unraised_report
from .status_pipe import VARIABLE

# Seconds after the second request to stop. The launcher takes a signal at once, unless it is stopped or its
# interpreter is still starting (signals are blocked then); it has ended by itself after at most 10.
_TAKES_SIGNAL = 0.5
_ENDS = 15.0
# Seconds within which the same signal is the same request, as in src/run/stop_requests.rs, and within which
# Slurm repeats its SIGTERM, as in src/cli/node/slurm.rs. The launcher knows both too.
_SAME_REQUEST = 1.5
_REPEATS = 5.0
# Seconds between two attempts after several errors.
_PAUSE = 0.05
# Seconds that the launcher's supervisor has to end the job once the launcher was killed.
_SWEEPS = 5.0

TYPE_CHECKING = False  # Importing typing takes longer than this module.
if TYPE_CHECKING:
    from typing import Any, TextIO


def run_launcher(argv: list[bytes], environ: dict[str, str], cwd: Any) -> tuple[bytes, int | None]:
    """Runs the launcher until it ends; returns what it wrote to its status pipe, and its exit status.

    A SIGTERM, SIGHUP or SIGQUIT whose action is the default one is passed on to the launcher, and ends this
    process once the job has ended. A SIGUSR1 or SIGUSR2 is passed on too, and ends nothing.

    Raises:
        OSError: the launcher cannot be started.
        BaseException: an exception that a signal handler raised, once the job has ended.
    """
    with _DeferredSignals() as signals:
        launcher = _Launcher(argv, environ, cwd)
        try:
            launcher.wait(signals)
        finally:
            launcher.end()
    return bytes(launcher.record), launcher.status


class _DeferredSignals:
    """Handlers of signals that would end this process, and with it the job, without a grace period.

    A handler raises only while `wait` can take the exception. The end of the ``with`` block removes the
    handlers, and the first signal received ends this process.
    """

    def __init__(self) -> None:
        self._received: list[int] = []
        self._raised = 0
        self._raises = False
        self._handled: list[int] = []

    def __enter__(self) -> _DeferredSignals:
        import signal
        import threading

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, *_get_notices()):
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._handled.append(number)
                    signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, _frame: Any) -> None:
        self._received.append(number)
        self.check()

    def arm(self) -> None:
        """From now on raises the next signal, at once if it has been received."""
        self._raises = True
        self.check()

    def disarm(self) -> None:
        """From now on only remembers signals."""
        self._raises = False

    def check(self) -> None:
        """Raises a signal that has not been raised: one was swallowed, or came while this was disarmed."""
        if self._raises and self._raised < len(self._received):
            self._raises = False
            number = self._received[self._raised]
            self._raised += 1
            raise _SignalReceived(number)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        import signal

        for number in self._handled:
            signal.signal(number, signal.SIG_DFL)
        for number in self._received:
            if number not in _get_notices():
                os.kill(os.getpid(), number)


def _get_notices() -> tuple[int, ...]:
    """Returns the signals that the launcher forwards to the ranks."""
    import signal

    return signal.SIGUSR1, signal.SIGUSR2


class _SignalReceived(BaseException):
    """Interrupts a wait for the launcher; `run_launcher` does not raise it."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Launcher:
    """The launcher's process, from its start to its end.

    Attributes:
        record: what it has written to the status pipe.
        status: its exit status; None while it runs.
    """

    def __init__(self, argv: list[bytes], environ: dict[str, str], cwd: Any) -> None:
        import threading

        self.record = bytearray()
        self.status: int | None = None
        self._requests = 0
        # When each signal was passed on first (time.monotonic).
        self._first: dict[int, float] = {}
        # When the launcher is checked next, and when it has to have ended (time.monotonic).
        self._deadline: float | None = None
        self._end_at = 0.0
        self._is_killed = False
        self._pipes: list[_Pipe] = []
        self._creator = _lib.Creator()
        # When the spawner's thread ends, at the latest with this process, the kernel kills the launcher.
        self._spawner: _lib.Spawner | None = _lib.Spawner()
        # In this process's group, a Ctrl-C would arrive twice: from the terminal and from `wait`.
        own_group = threading.current_thread() is threading.main_thread()
        try:
            self._status_pipe = self._open_pipe(self.record.extend)
            output = self._open_output(sys.stdout, 1), self._open_output(sys.stderr, 2)
            environ[VARIABLE] = str(self._status_pipe.writer)
            if code := debugger.build_code():
                environ[debugger.VARIABLE] = code
            block = [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in environ.items()]
            folder = None if cwd is None else os.fsencode(cwd)
            self._process = self._spawner.start_launcher(
                argv[0], argv, block, folder, self._status_pipe.writer, output, own_group
            )
            for pipe in self._pipes:
                pipe.close_writer()
        except BaseException:
            self.end()
            raise

    def _open_pipe(self, sink: Any) -> _Pipe:
        pipe = _Pipe(sink)
        self._pipes.append(pipe)
        return pipe

    def _open_output(self, stream: TextIO | None, number: int) -> int:
        """Returns the descriptor for the launcher's stdout or stderr; -1: this process's own."""
        if stream is None:
            return -1
        try:
            stream.flush()
            if stream.fileno() == number:
                return -1
        except (AttributeError, OSError, ValueError):
            pass
        return self._open_pipe(_TextSink(stream)).writer

    def wait(self, signals: _DeferredSignals) -> None:
        """Waits until the launcher has ended. An exception meanwhile stops the job, and is raised then."""
        interrupted: BaseException | None = None
        has_ended = False
        while not has_ended:
            try:
                if not self._enforce_deadline():
                    break
                if self._requests > 2:
                    time.sleep(_PAUSE)  # What fails may go on failing, as for lack of descriptors.
                signals.arm()
                has_ended = self._forward_output(signals)
                signals.disarm()
            except BaseException as error:
                if not self._creator.is_this_process():
                    raise  # A signal handler has forked.
                if isinstance(error, _SignalReceived) and error.number in _get_notices():
                    self._process.signal(error.number)
                    continue
                interrupted = interrupted or error
                self._request_stop(error)
        if interrupted is not None:
            print_unraised_report(bytes(self.record))
            raise interrupted

    def _request_stop(self, error: BaseException) -> None:
        """Passes a request to stop on. The launcher kills the ranks at the same signal again."""
        import signal

        if isinstance(error, _SignalReceived):
            number = error.number
        else:
            number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM
        self._process.signal(number)
        self._requests += 1
        now = time.monotonic()
        if self._deadline is None and self._is_again(number, now):
            self._deadline, self._end_at = now + _TAKES_SIGNAL, now + _ENDS

    def _is_again(self, number: int, now: float) -> bool:
        """Whether this is an earlier signal again, at human speed: the launcher kills the ranks then."""
        import signal

        is_repeated = number == signal.SIGTERM and "SLURM_JOB_ID" in os.environ
        return now - self._first.setdefault(number, now) >= (_REPEATS if is_repeated else _SAME_REQUEST)

    def _enforce_deadline(self) -> bool:
        """Kills a launcher that does not act on the second request; False: its supervisor does not either."""
        import signal

        now = time.monotonic()
        if self._deadline is None or now < self._deadline:
            return True
        if self._is_killed:
            return False
        if now < self._end_at and not _has_pending_stop(self._process.pid):
            self._deadline = self._end_at
            return True
        self._process.signal(signal.SIGKILL)
        self._is_killed, self._deadline = True, now + _SWEEPS
        return True

    def _forward_output(self, signals: _DeferredSignals) -> bool:
        """Returns False at the deadline, True once the launcher has ended."""
        ended = self._process.fileno()
        while self.status is None or not self._has_record():
            signals.check()
            left = None if self._deadline is None else self._deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            readers = {pipe.reader: pipe for pipe in self._pipes if pipe.reader >= 0}
            for fd in _lib.await_readable([*readers, *([ended] if self.status is None else [])], left):
                if fd == ended:
                    self.status = self._process.poll()
                else:
                    readers[fd].forward()
        # The launcher writes the record last, so the rest of the output is in the pipes. Their end may never
        # come: a process that was forked off this one meanwhile may hold a write end.
        for pipe in self._pipes:
            while pipe.reader >= 0 and pipe.forward():
                pass
        return True

    def _has_record(self) -> bool:
        return self._status_pipe.reader < 0 or find_result(bytes(self.record)) is not None

    def end(self) -> None:
        """Kills the launcher if it still runs, and closes all pipes."""
        import signal

        spawner, self._spawner = self._spawner, None
        for process in spawner.ranks() if spawner else []:
            if process.poll() is None:
                process.signal(signal.SIGKILL)
                process.wait(2)
        for pipe in self._pipes:
            pipe.close()


def _has_pending_stop(pid: int) -> bool:
    """Whether a process has not taken a signal that stops it; False if that cannot be read."""
    import signal

    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    pending = next((int(line.split()[1], 16) for line in lines if line.startswith(b"ShdPnd:")), 0)
    stops = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    return any(pending >> number - 1 & 1 for number in stops)


class _Pipe:
    """A pipe that the launcher writes to."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._reader, self._writer = _lib.Descriptor.pipe()
        os.set_blocking(self.reader, False)

    @property
    def reader(self) -> int:
        """The read end; -1 once it has been closed."""
        return self._reader.fileno()

    @property
    def writer(self) -> int:
        """The write end; -1 once it has been closed."""
        return self._writer.fileno()

    def forward(self) -> bool:
        """Passes the available bytes to the sink; returns whether there were any."""
        try:
            data = os.read(self.reader, 1 << 16)
        except BlockingIOError:
            return False
        self._sink(data)
        if not data:
            self._reader.close()
        return bool(data)

    def close_writer(self) -> None:
        self._writer.close()

    def close(self) -> None:
        self._writer.close()
        self._reader.close()


class _TextSink:
    """Writes bytes to a text stream, until a write fails."""

    def __init__(self, stream: TextIO) -> None:
        import codecs

        self._stream: TextIO | None = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __call__(self, data: bytes) -> None:
        if self._stream is None:
            return
        text = self._decoder.decode(data, not data)
        try:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                self._stream.write(text.encode("ascii", "backslashreplace").decode())
            self._stream.flush()
        except (AttributeError, OSError, ValueError):
            # The stream is closed or its reader has ended. The log files hold the output.
            self._stream = None
