"""A rank writes its stacks when it is asked to, where no other process may read its memory.

The reader of stacks (``src/probe/stack_answers.rs``) finds the file among the rank's descriptors.
"""

from __future__ import annotations

import os

from .. import _lib


def answer_if_unreadable() -> None:
    """Has faulthandler write the stacks of this process at a signal, if Yama or seccomp bars a reader.

    Processes that this one forks answer too; programs that it starts do not.
    """
    if _lib.is_readable():
        return
    import faulthandler
    import fcntl
    import signal

    # It stays open. The reader empties it.
    memory = _lib.Descriptor.memory("rlaunch-stacks")
    file = os.dup(memory.fileno())
    fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
    faulthandler.register(signal.SIGRTMIN + 7, file, all_threads=True, chain=False)
