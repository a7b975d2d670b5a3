"""What ranks of ``spawn`` start, and leave behind, is known by a variable in its environment, and ended."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import sys

from . import _lib

KEY = "RLAUNCH_RANK_KEY"

# Of this process: the beginning of its keys, and the descriptor whose closing is its guardian's sign. Made
# in one step and put here in another: one that is lost in between looks after a key that nobody has.
_own: dict[str, tuple[str, _lib.Descriptor | None]] = {}
_numbers = itertools.count()


def new_key() -> str:
    """A key for the ranks of one more ``spawn``.

    With the first one of this process its guardian is started, which ends whoever carries such a key when
    this process is gone. Where none can be started (no more processes, no interpreter known), ranks have
    their two leashes and nothing more.
    """
    own = _own.get(KEY)
    if own is None:
        # Of two threads one has started a guardian for nothing.
        own = _own.setdefault(KEY, _start())
    return f"{own[0]}/{next(_numbers)}"


def _start() -> tuple[str, _lib.Descriptor | None]:
    key = secrets.token_hex(8)
    end = None
    # With PID 1 the kernel ends its whole namespace (pid_namespaces(7)): nothing is left to guard.
    if sys.executable and os.getpid() != 1:
        # Without a key of its own: whoever is above this process must not take it for a leftover.
        environ = [os.fsencode(f"{k}={v}") for k, v in os.environ.items() if k != KEY]
        with contextlib.suppress(OSError):
            module = os.fsencode(_lib.__file__ or "")
            end = _lib.start_guardian(os.fsencode(sys.executable), module, environ, key)
    return key, end


def of_rank(key: str, rank: int) -> dict[str, str]:
    """What a rank is told, and what it starts after it."""
    return {KEY: f"{key}/0/{rank}"}


def sweep(key: str) -> list[tuple[int, str]]:
    """Ends what the ranks of one ``spawn`` have left: the ids, which are nobody's any more, and the names."""
    return _lib.sweep_leftovers(key)


def told(swept: list[tuple[int, str]]) -> str:
    """What was swept, in a line for people."""
    return f"rlaunch: {_lib.swept_line([name for _, name in swept])}"


# A process forked off this one is not its guardian's to wait for.
os.register_at_fork(after_in_child=_own.clear)
