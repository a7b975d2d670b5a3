"""What runs in a rank that ``rlaunch.spawn`` started, around the user's function."""

from __future__ import annotations

import os
import sys

from . import _lib
from ._outbox import ERROR, LEFT, RESULT, Outbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

ENDPOINTS = "PADDLE_TRAINER_ENDPOINTS"
BACKUP = "PADDLE_BACKUP_ENV_PATH"


def taken_away(environ: dict[str, str]) -> list[str]:
    """What a rank that is told ``environ`` does not inherit; the parent's own stay."""
    # Lower-case proxies would carry the traffic between the ranks.
    proxies = ["http_proxy", "https_proxy"]
    # The backup file is looked into only for what is not set.
    return [*proxies, ENDPOINTS] if BACKUP in environ else proxies


class Told:
    """How a rank's environment differs from its parent's.

    Attributes:
        environ: the variables that it is told.
        away: the names of those that it does not inherit.
    """

    def __init__(self, environ: dict[str, str], away: Iterable[str] = ()) -> None:
        self.environ = environ
        self.away = list(away)

    def and_of(self, environ: dict[str, str]) -> Told:
        """This, and these variables too."""
        return Told({**self.environ, **environ}, self.away)

    def take_effect(self) -> None:
        """A rank that was not started by exec has its parent's environment until now."""
        for name in self.away:
            os.environ.pop(name, None)
        os.environ.update(self.environ)


class Handed:
    """A descriptor that is handed to a rank, by any start method of multiprocessing."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __getstate__(self) -> Any:
        from multiprocessing.reduction import DupFd

        return DupFd(self._fd)

    def __setstate__(self, state: Any) -> None:
        self._fd = state.detach()

    def fileno(self) -> int:
        """The descriptor; in a rank, its own."""
        return self._fd


class Lifeline(Handed):
    """A descriptor whose closing at the other end, by the parent's death, kills this rank."""

    def arm(self) -> None:
        """Arms it. A rank that was started by exec is armed already; once more changes nothing."""
        _lib.arm_lifeline(self._fd)


def enter(lifeline: Lifeline, told: Told) -> None:
    """What a rank does first: from here on it dies with its parent, and can be found by its key."""
    lifeline.arm()
    _lib.mark_memory(told.environ["RLAUNCH_RANK_KEY"])


def run(
    func: Callable[..., Any],
    args: Iterable[Any],
    backend: str,
    log: str | None,
    outbox: Outbox,
    told: Told,
    lifeline: Lifeline,
) -> None:
    """Runs ``func(*args)`` as a rank and hands over what it returns or raises."""
    try:
        enter(lifeline, told)
        if log is not None:
            _write_to(log)
        _select_device(told.environ, backend)
        _forget_backup()
        told.take_effect()
        try:
            _put_result(outbox, func(*args))
        except SystemExit as ending:
            if not ending.code:
                outbox.put(LEFT, lambda file: None)
            raise
        except Exception:
            put_error(outbox)
            sys.exit(1)
    except KeyboardInterrupt:
        _die_of_interrupt()


def _put_result(outbox: Outbox, result: Any) -> None:
    from ._sending import Sender

    sender = Sender({"result": result}, "the parent")
    outbox.put(RESULT, lambda file: sender.dump(result, file))


def put_error(outbox: Outbox) -> None:
    """Hands over the traceback of the exception that is being handled."""
    import traceback

    text = traceback.format_exc().encode("utf-8", "backslashreplace")
    outbox.put(ERROR, lambda file: file.write(text))


def _select_device(environ: dict[str, str], backend: str) -> None:
    """Paddle reads its flags when it is imported, which importing the main module may have done."""
    flag = {"nccl": "FLAGS_selected_gpus", "bkcl": "FLAGS_selected_xpus"}.get(backend)
    paddle = sys.modules.get("paddle")
    if flag is not None and flag in environ and hasattr(paddle, "set_flags"):
        paddle.set_flags({flag: environ[flag]})  # type: ignore[union-attr]


def _forget_backup() -> None:
    """Paddle reads the backup file once, which the program that a rank is forked off may have done."""
    reader = sys.modules.get("paddle.distributed.backup_env")
    if reader is not None:
        reader.g_backup_envs = None  # type: ignore[attr-defined]


def open_log(path: str) -> int:
    """Opens a log file for appending: made for its owner alone, no link followed."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def _write_to(log: str) -> None:
    """Points stdout and stderr at the log file, a line at a time."""
    fd = open_log(log)
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is not None:
            stream.flush()
        os.dup2(fd, number)
        if stream is sys.__dict__[f"__{name}__"] and hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
        else:
            # A notebook or a test runner has put its own in place, and a fork has inherited it.
            own = open(number, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, own)
    if fd > 2:  # Else it has taken the place of one that was closed, and is now what it should be.
        os.close(fd)


def _die_of_interrupt() -> None:
    """Ends as SIGINT ends a program: without a traceback, and never as a success."""
    import signal
    from multiprocessing import util

    util._exit_function()  # type: ignore[attr-defined]
    util._flush_std_streams()  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    sys.exit(128 + signal.SIGINT)
