"""Signs of life of a rank that writes nothing: ``heartbeat``."""

import contextlib
import os


def heartbeat() -> None:
    """Tells the launcher that this rank works, as a line of output would: for ``--hang_timeout``.

    Costs a system call. The processes that a rank has started, such as the workers of a data loader, may
    call it too. Does nothing without a launcher, in ranks of ``rlaunch.spawn``, and where the launcher is not
    visible (another PID namespace). Raises nothing.
    """
    path = os.environ.get("RLAUNCH_EXCEPTION_FILE")
    if path:
        with contextlib.suppress(OSError):
            os.utime(path)
