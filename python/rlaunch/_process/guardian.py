"""Finds and ends the processes that ranks leave behind, by an environment variable that they inherit."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import sys
import threading
from multiprocessing import spawn

from .. import _lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# The variable: KEY=<program>/<call of spawn>/0/<rank>.
KEY = "RLAUNCH_RANK_KEY"
# The variable that spares a process from the sweep, if its value is 1. No rank inherits it.
NO_SWEEP = "RLAUNCH_NO_SWEEP"

# This process's key, and its guardian. This is the only reference for longer than a moment: a fork of this
# process drops it, so that the guardian does not wait for the fork. An entry is set in one step: if an
# exception comes between the guardian's start and that, the guardian watches for a key that no process has.
_own: dict[str, tuple[str, _lib.Guardian | None]] = {}
# Reentrant, because a signal handler may call `spawn`.
_starting = threading.RLock()
_numbers = itertools.count()


def new_key() -> str:
    """Returns a key for the ranks of one more ``spawn``.

    The first call in a process starts its guardian: a process that outlives this one, and then ends every
    process that carries one of its keys. If none can start (no more processes, no interpreter known), ranks
    still die with this process.
    """
    with _starting:
        own = _own.get(KEY)
        if own is None or own[1] is None:
            own = _own[KEY] = _start_guardian()
        keep_guardian(own[0])
        return f"{own[0]}/{next(_numbers)}"


def find_guardian(key: str) -> _lib.Guardian | None:
    """Returns the guardian of a key of ``new_key``; None if there is none."""
    own, guardian = _own.get(KEY, ("", None))
    return guardian if own == key.partition("/")[0] else None


def keep_guardian(key: str) -> int:
    """Replaces the guardian of a key if it has ended, as by the OOM killer.

    Returns:
        The number of a descriptor that has POLLERR once the guardian has ended; -1 if none runs.
    """
    guardian = find_guardian(key)
    return guardian.fileno() if guardian is not None and guardian.replace_if_ended() else -1


def _start_guardian() -> tuple[str, _lib.Guardian | None]:
    key = secrets.token_hex(8)
    guardian = None
    # If PID 1 ends, the kernel ends its whole PID namespace (pid_namespaces(7)).
    python = _find_interpreter()
    if python and os.getpid() != 1:
        # Without an inherited key: a guardian of a process above would end this one as a leftover.
        environ = [os.fsencode(f"{k}={v}") for k, v in os.environ.items() if k != KEY]
        with contextlib.suppress(OSError):
            module = os.fsencode(_lib.__file__ or "")
            guardian = _lib.Guardian(python, module, environ, key)
    return key, guardian


def _find_interpreter() -> bytes:
    """Returns the path of the interpreter that multiprocessing starts; empty if there is none.

    In a frozen program, and in one that embeds Python, the executable is the program itself, which would
    run a second time. ``multiprocessing.set_executable`` may name an interpreter there.
    """
    python = os.fsencode(spawn.get_executable() or "")
    # An embedded interpreter has no command line.
    is_program = getattr(sys, "frozen", False) or not sys.orig_argv
    return b"" if is_program and python == os.fsencode(sys.executable or "") else python


def key_variable(key: str, rank: int) -> dict[str, str]:
    """Returns the variable that marks a rank, and every process that inherits its environment."""
    return {KEY: f"{key}/0/{rank}"}


def sweep_leftovers(
    key: str, failed: Iterable[int] = (), forked: bool = True
) -> tuple[list[tuple[int, str]], list[tuple[int, str]], list[tuple[str, int]]]:
    """Ends the processes that the ranks of one ``spawn`` left, and removes the shared memory of Paddle.

    Args:
        failed: the pids of ranks that have failed, whose shared memory is removed too. That of a rank which
            exited successfully stays: the caller may read it from a queue yet.
        forked: whether ranks may have been forked without an execve. It takes longer to find what these left.

    Returns:
        The pid and name of each process that was ended, and of each that ``NO_SWEEP`` spares; the name and
        size of each removed file in /dev/shm.
    """
    return _lib.sweep_leftovers(key, list(failed), forked)


def swept_message(swept: list[tuple[int, str]], left: list[tuple[int, str]]) -> str:
    """Returns the lines that report swept processes, and those left running; empty if there is none."""
    lines = [_lib.swept_line([name for _, name in swept])] if swept else []
    lines += [_lib.left_line(left)] if left else []
    return "\n".join(f"rlaunch: {line}" for line in lines)


def _forget() -> None:
    """In a process forked off this one: the guardian is the parent's, and its threads may hold the lock."""
    global _starting
    _starting = threading.RLock()
    _own.clear()


os.register_at_fork(after_in_child=_forget)
