"""Signs of life of a rank that writes nothing: ``heartbeat``."""

import contextlib
import os

from .identity import is_of_rank, open_slot


def heartbeat() -> None:
    """Tells the launcher that this rank works, as a line of output would: for ``--hang_timeout``.

    Costs a system call. The processes that a rank has started, such as the workers of a data loader, may
    call it too. Daemons that it has left (``setsid program &``) are not heard. Does nothing without a
    launcher, in ranks of ``rlaunch.spawn``, and where the launcher is not visible (another PID namespace).
    Raises nothing.
    """
    path = os.environ.get("RLAUNCH_EXCEPTION_FILE")
    if path:
        with contextlib.suppress(OSError, ValueError):
            slot = open_slot()
            if slot is None or is_of_rank(slot):
                os.utime(path)
