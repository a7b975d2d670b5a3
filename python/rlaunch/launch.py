"""``rlaunch.launch``: ``python -m rlaunch`` from a Python program."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # Importing typing for this name would double the time of `import rlaunch`.
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TextIO

    from . import _lib
    from .report import Report

__all__ = ["launch"]


def launch(
    script: str | bytes | os.PathLike[Any],
    *args: Any,
    env: Mapping[str, str] | None = None,
    cwd: str | bytes | os.PathLike[Any] | None = None,
    **options: Any,
) -> Report:
    """Runs a script on several ranks, and waits for the end: ``python -m rlaunch OPTIONS script ARGS``.

    The launcher is a process of its own: this one is not forked, and its children, signal handlers and
    threads are left alone. When this process ends, by SIGKILL too, the job ends with it.

    What the ranks and the launcher print goes to this program's stdout and stderr: straight to the
    descriptors where ``sys.stdout`` and ``sys.stderr`` stand for 1 and 2, else (in a notebook, or
    captured by pytest) through those objects.

    Ctrl-C asks the ranks to stop, a second one kills them; the KeyboardInterrupt comes when all have
    ended. Any other exception that a signal handler raises does the same. That is so in the main thread,
    where Python handles signals; a call in another thread is in the terminal's process group and stops
    with the terminal's Ctrl-C alone. From a coroutine, call it through ``asyncio.to_thread``.

    With ``nnodes=2, master="10.0.0.1:6768"`` and the like it runs this node's share of a job of several
    nodes: each of them calls it, ``ranks`` of the report are this node's own, and ``job_end`` says how the
    whole job has ended. Ranks that end badly on another node are a WorkerError here, too.

    Args:
        script: what each rank runs: a Python script, or with ``module=True`` a module, or with
            ``no_python=True`` a program.
        *args: its arguments, each turned into text.
        env: further variables for the launcher and the ranks.
        cwd: the folder to run in. The script and ``log_dir`` are looked for from there.
        **options: the command line's options by name (``nproc_per_node``, ``devices``, ``log_dir``,
            ``grace``, ``max_restart``, ...), with its defaults and overriding variables. True and False
            may be given where it wants ``true`` and ``false``, a list where it wants commas, and None for
            an option that is not given.

    Returns:
        How it ended, if every rank ended well.

    Raises:
        WorkerError: a rank failed, a signal stopped the job, or another node was lost. Its ``report`` says
            all about it.
        LaunchError: the launcher could not do what was asked; its ``status`` is the exit status: 73 where
            the nodes did not find each other, or this one was not let in.
        TypeError: an option that does not exist.
        OSError: the launcher could not be started.
    """
    argv = [sys.executable, "-m", "rlaunch", *_flags(options), script, *args]
    # Without the job itself: whoever keeps an exception keeps what its frames hold.
    return _report(*_run([_bytes(word) for word in argv], {**os.environ, **(env or {})}, cwd))


# --- The command line -------------------------------------------------------------------------------------


def _flags(options: dict[str, Any]) -> list[bytes]:
    from . import _lib

    known = _lib.launch_options()
    flags = []
    for name, value in options.items():
        if name not in known or name == "dry_run":
            raise TypeError(_unknown(name, known))
        if value is None:
            continue
        if known[name]:
            flags += [b"--" + name.encode()] if value else []
        else:
            flags.append(b"--" + name.encode() + b"=" + _value(value))
    return flags


def _unknown(name: str, known: dict[str, bool]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known.keys() - {name}, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"launch() has no option {name!r}{hint}"


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, (list, tuple)):
        return b",".join(map(_bytes, value))
    return _bytes(value)


def _bytes(word: Any) -> bytes:
    return os.fsencode(word if isinstance(word, (str, bytes, os.PathLike)) else str(word))


# --- The launcher's process -------------------------------------------------------------------------------


def _run(argv: list[bytes], environ: dict[str, str], cwd: Any) -> tuple[bytes, int | None]:
    """Runs the launcher to its end; its record and its exit status."""
    job = _Job(argv, environ, cwd)
    try:
        job.wait()
    finally:
        job.end()
    return bytes(job.record), job.status


class _Job:
    """A launcher, from its start to its end."""

    def __init__(self, argv: list[bytes], environ: dict[str, str], cwd: Any) -> None:
        import threading

        from . import _lib

        self.record = bytearray()
        self.status: int | None = None
        self._pipes: list[_Pipe] = []
        # The kernel kills the launcher when the thread in here ends: with this process at the latest.
        self._nursery: _lib.Nursery | None = _lib.Nursery()
        # In this process's group a Ctrl-C would come twice, from the terminal and from us.
        own_group = threading.current_thread() is threading.main_thread()
        try:
            self._record = self._pipe(self.record.extend)
            output = self._output(sys.stdout, 1), self._output(sys.stderr, 2)
            environ["RLAUNCH_RECORD_FD"] = str(self._record.theirs)
            block = [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in environ.items()]
            folder = None if cwd is None else os.fsencode(cwd)
            self._process = self._nursery.start_launcher(
                argv[0], argv, block, folder, self._record.theirs, output, own_group
            )
            for pipe in self._pipes:
                pipe.close_theirs()
        except BaseException:
            self.end()
            raise

    def _pipe(self, sink: Any) -> _Pipe:
        pipe = _Pipe(sink)
        self._pipes.append(pipe)
        return pipe

    def _output(self, stream: TextIO | None, number: int) -> int:
        """What the launcher gets as stdout or stderr; -1 for ours."""
        if stream is None:
            return -1
        try:
            stream.flush()
            if stream.fileno() == number:
                return -1
        except (AttributeError, OSError, ValueError):
            pass
        return self._pipe(_Screen(stream)).theirs

    def wait(self) -> None:
        """Waits for the end. An exception that comes meanwhile stops the job, and is raised at its end."""
        import signal

        interrupted: BaseException | None = None
        others = 0
        while True:
            try:
                self._run()
                break
            except KeyboardInterrupt as error:
                interrupted = interrupted or error
                self._process.signal(signal.SIGINT)
            except BaseException as error:
                interrupted = interrupted or error
                others += 1
                if others > 2:
                    break
                self._process.signal(signal.SIGTERM)
        if interrupted is not None:
            raise interrupted

    def _run(self) -> None:
        from . import _lib

        ended = self._process.fileno()
        while self.status is None or not self._is_recorded():
            reading = {pipe.ours: pipe for pipe in self._pipes if pipe.ours >= 0}
            for fd in _lib.await_readable([*reading, *([ended] if self.status is None else [])]):
                if fd == ended:
                    self.status = self._process.poll()
                else:
                    reading[fd].read()
        # The record is written last. Not until the pipes' ends: a process that was forked off this one at
        # the wrong moment may hold them for ever.
        for pipe in self._pipes:
            while pipe.ours >= 0 and pipe.read():
                pass

    def _is_recorded(self) -> bool:
        return self.record.endswith(b"\n") or self._record.ours < 0

    def end(self) -> None:
        """Kills the launcher, if it still lives, and lets go of everything."""
        import signal

        nursery, self._nursery = self._nursery, None
        for process in nursery.ranks() if nursery else []:
            if process.poll() is None:
                process.signal(signal.SIGKILL)
                process.wait(2)
        for pipe in self._pipes:
            pipe.close()


class _Pipe:
    """A pipe that the launcher writes to."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.ours, self.theirs = os.pipe()
        os.set_blocking(self.ours, False)

    def read(self) -> bool:
        """Passes on what is there; false if that is nothing."""
        try:
            data = os.read(self.ours, 1 << 16)
        except BlockingIOError:
            return False
        self._sink(data)
        if not data:
            os.close(self.ours)
            self.ours = -1
        return bool(data)

    def close_theirs(self) -> None:
        if self.theirs >= 0:
            os.close(self.theirs)
            self.theirs = -1

    def close(self) -> None:
        self.close_theirs()
        if self.ours >= 0:
            os.close(self.ours)
            self.ours = -1


class _Screen:
    """Shows bytes on a text stream, for as long as that takes them."""

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
            # Closed, or its reader is gone: the logs have it all.
            self._stream = None


def _report(text: bytes, ended: int | None) -> Report:
    import json

    from .errors import LaunchError, WorkerError

    record = json.loads(text or b"{}")
    if "outcome" not in record:
        status = record.get("exit_status", ended)
        silent = f"the launcher ended with {status} and has not said why"
        raise LaunchError(record.get("error", silent), status)
    from .report import report_of

    report = report_of(record)
    if report.outcome == "completed":
        return report
    if report.outcome == "not_started":
        why = next((rank.why for rank in report.ranks if rank.why), "")
        raise LaunchError(f"cannot start {why}", report.exit_status)
    if report.outcome in ("too_few_nodes", "refused"):
        raise LaunchError(report.job_end or report.outcome, report.exit_status)
    raise WorkerError(report.verdict or report.job_end or f"the job ended with {report.outcome}", report)
