"""Programs that are themselves a launcher's command, such as ``torchrun``: they become rlaunch's command."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def is_own_command(script: str, module: str) -> bool:
    """Whether this process was started as the script, or by ``python -m`` with the module."""
    arguments = sys.argv[1:]
    words = sys.orig_argv[: len(sys.orig_argv) - len(arguments)]
    if sys.orig_argv[len(words) :] != arguments:
        return False
    is_module = words[-2:] == ["-m", module] or words[-1:] == [f"-m{module}"]
    return is_module or (len(words) > 1 and os.path.basename(words[-1]) == script)


def get_module_command(module: str, *options: str) -> list[str]:
    """Returns ``python -m`` with the module, these options and this program's arguments."""
    return [sys.executable, "-m", module, *options, *sys.argv[1:]]


def become_module(module: str, *options: str) -> NoReturn:
    """Replaces this program: signals and the exit status are then rlaunch's own."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, get_module_command(module, *options))
