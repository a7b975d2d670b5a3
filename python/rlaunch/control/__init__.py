"""``rlaunch`` and ``python -m rlaunch.control``: looks into running jobs, and starts them.

``rlaunch launch`` is ``python -m rlaunch``, ``rlaunch run`` is ``python -m rlaunch.run``, and ``rlaunch
doctor`` checks this machine. The other commands talk to the launchers of this user on this machine,
through their control sockets.
"""

from __future__ import annotations

import signal
import sys

from .. import _lib

TYPE_CHECKING = False  # Importing typing takes longer than the launcher's start.
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["command"]


def command() -> NoReturn:
    """Runs the command of this program's arguments and exits with its exit status."""
    if sys.argv[1:2] in (["launch"], ["run"]):
        _launch(sys.argv.pop(1))
    # Ctrl-C and a reader that has gone end it, as they end other commands.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    from .._launch.single_thread import describe_interpreter

    sys.exit(_lib.control_main(sys.argv[1:], *describe_interpreter()))


def _launch(kind: str) -> NoReturn:
    if kind == "run":
        from ..run import command as run_command

        run_command()
    from .._launch.single_thread import run_launcher_function
    from .._launch.status_pipe import take_descriptor

    run_launcher_function("main", take_descriptor())
