"""The rank's side of ``rlaunch.spawn``: code that runs around the user's function."""

from __future__ import annotations

import os
import sys

from .. import _lib
from .._rank.stack_answers import answer_if_unreadable
from .._rank.store_wait import wait_for_stores
from .results import ERROR, EXITED, RESULT, ResultSlot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .sending.call import Call


class EnvDelta:
    """How a rank's environment differs from its parent's.

    Attributes:
        variables: set in the rank.
        unset: names of variables that the rank does not inherit.
    """

    def __init__(self, variables: dict[str, str], unset: Iterable[str] = ()) -> None:
        self.variables = variables
        self.unset = list(unset)

    def with_variables(self, variables: dict[str, str], unset: str) -> EnvDelta:
        """Returns a copy that sets these variables too, and does not inherit ``unset``."""
        return EnvDelta({**self.variables, **variables}, [*self.unset, unset])

    def apply(self) -> None:
        """Applies it to this process. In a rank that was started by exec this changes nothing."""
        for name in self.unset:
            os.environ.pop(name, None)
        os.environ.update(self.variables)


class InheritedFd:
    """A descriptor that a rank receives as an argument, under every start method."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __getstate__(self) -> Any:
        from multiprocessing.reduction import DupFd

        return DupFd(self._fd)

    def __setstate__(self, state: Any) -> None:
        self._fd = state.detach()

    def fileno(self) -> int:
        """Returns the descriptor; in a rank, the rank's own copy."""
        return self._fd


class Lifeline(InheritedFd):
    """The read end of a pipe. When the parent's end closes, as by its death, the kernel kills this rank.

    Attributes:
        is_forked_by_server: whether multiprocessing's fork server forks the rank, which dies with it, too.
    """

    is_forked_by_server = False

    def __getstate__(self) -> Any:
        return super().__getstate__(), self.is_forked_by_server

    def __setstate__(self, state: Any) -> None:
        fd, self.is_forked_by_server = state
        super().__setstate__(fd)

    def set_fd(self, fd: int) -> None:
        """Sets the descriptor that the rank will receive."""
        self._fd = fd

    def arm(self) -> None:
        """Arms it. In a rank that was started by exec it is armed already; this changes nothing then."""
        _lib.arm_lifeline(self._fd)
        if self.is_forked_by_server:
            _lib.die_with_fork_server()


def arm_cleanup(lifeline: Lifeline, env_delta: EnvDelta, result_slot: ResultSlot) -> None:
    """Ties this rank's life to its parent's, marks its memory with its key and records what it forks.

    A rank does this first.
    """
    lifeline.arm()
    result_slot.record_forks()
    _lib.mark_memory(env_delta.variables["RLAUNCH_RANK_KEY"])


def run_rank(
    call: Call,
    backend: str,
    log: str | None,
    result_slot: ResultSlot,
    env_delta: EnvDelta,
    lifeline: Lifeline,
) -> None:
    """Runs the call as a rank; puts its return value or its traceback into the result slot."""
    try:
        arm_cleanup(lifeline, env_delta, result_slot)
        if log is not None:
            _redirect_output(log)
        _set_paddle_device(env_delta.variables, backend)
        _reset_paddle_backup()
        env_delta.apply()
        wait_for_stores()
        answer_if_unreadable()
        try:
            func, args = call.take()
            _put_result(result_slot, func(*args))
        except SystemExit as error:
            if error.code is None or error.code == 0:
                result_slot.put(EXITED, lambda file: None)
            put_exit_text(result_slot, error)
            raise
        except KeyboardInterrupt:
            raise
        except Exception as error:
            put_error(result_slot, _advise(error, env_delta.variables))
            sys.exit(1)
        except BaseException:
            put_error(result_slot)
            raise  # multiprocessing prints it, as in Paddle's ranks.
    except KeyboardInterrupt:
        _die_of_interrupt()


def _put_result(result_slot: ResultSlot, result: Any) -> None:
    from .sending.pickling import Pickler

    pickler = Pickler({"result": result}, "the parent", copies_tensors=True, is_stored=True)
    try:
        result_slot.put(RESULT, lambda file: pickler.dump(result, file))
    except Exception as error:
        from .sending.pickle_diagnosis import trim_traceback

        trim_traceback(error)
        raise error


def put_error(result_slot: ResultSlot, advice: str = "") -> None:
    """Puts the traceback of the exception that is being handled, and what to do about it."""
    import traceback

    text = (traceback.format_exc() + advice).encode("utf-8", "backslashreplace")
    result_slot.put(ERROR, lambda file: file.write(text))


def put_exit_text(result_slot: ResultSlot, error: SystemExit) -> None:
    """Puts the traceback of ``sys.exit("text")``; nothing for an exit status."""
    if error.code is not None and not isinstance(error.code, int):
        put_error(result_slot)


def _advise(error: Exception, variables: dict[str, str]) -> str:
    """Returns the line for a rank that lacks a variable of torch; nothing for other exceptions."""
    import re

    # As torch says it, and os.environ. Not by str(error): a method of the user's may raise.
    text = next(iter(error.args), None)
    pattern = (
        r"(\w+)" if isinstance(error, KeyError) else r".*environment variable (\w+) expected, but not set"
    )
    found = re.fullmatch(pattern, text, re.DOTALL) if isinstance(text, str) else None
    missing = found and found[1]
    if missing in variables or missing not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        return ""
    way_out = 'call it with frameworks="torch", or "paddle,torch"'
    return f"rlaunch.spawn has not set torch's {missing}: {way_out}\n"


def _set_paddle_device(variables: dict[str, str], backend: str) -> None:
    # Paddle reads its flags at import, and the import of the main module may have imported Paddle.
    flag = {"nccl": "FLAGS_selected_gpus", "bkcl": "FLAGS_selected_xpus"}.get(backend)
    paddle = sys.modules.get("paddle")
    if flag is not None and flag in variables and hasattr(paddle, "set_flags"):
        paddle.set_flags({flag: variables[flag]})  # type: ignore[union-attr]


def _reset_paddle_backup() -> None:
    # Paddle reads the backup file once. The process that forked this rank may have read another one.
    reader = sys.modules.get("paddle.distributed.backup_env")
    if reader is not None:
        reader.g_backup_envs = None  # type: ignore[attr-defined]


def open_log(path: str) -> int:
    """Opens a log file for appending, mode 0600. Fails if the path is a symbolic link."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def _redirect_output(log: str) -> None:
    """Points stdout and stderr at the log file, line-buffered."""
    fd = open_log(log)
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is not None:
            stream.flush()
        os.dup2(fd, number)
        if stream is sys.__dict__[f"__{name}__"] and hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
        else:
            # After a fork in a notebook or a test runner, sys.stdout is an object of theirs.
            own = open(number, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, own)
    if fd > 2:  # Otherwise the file took the number of a closed standard stream, and stays there.
        os.close(fd)


def _die_of_interrupt() -> None:
    """Ends this process by SIGINT: no traceback, and no exit status of success."""
    import signal
    from multiprocessing import util

    util._exit_function()  # type: ignore[attr-defined]
    util._flush_std_streams()  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    sys.exit(128 + signal.SIGINT)
