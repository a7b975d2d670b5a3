"""``python -m rlaunch.torch PROGRAM ARGS``: runs a Python program with rlaunch in place of torchrun.

Example: ``python -m rlaunch.torch accelerate launch --multi_gpu --num_processes 2 train.py``
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from itertools import pairwise
from typing import Any

from . import pth_file
from .excepthook import show_reports_without_traceback
from .import_hook import VARIABLE, read_variable
from .installed import install

_USAGE = """\
usage: python -m rlaunch.torch PROGRAM [ARGS]...

Runs PROGRAM with rlaunch.run in the place of torch.distributed.run. PROGRAM is
the name of a command that a Python package has installed, such as accelerate.
Launchers that it starts as subprocesses run on rlaunch too after
python -m rlaunch.install enable."""

# Commands and modules that run torchrun's functions.
_COMMANDS = ("torchrun", "accelerate", "accelerate-launch")
_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


def main() -> None:
    """Runs the program that ``sys.argv[1]`` names.

    Raises:
        SystemExit: when the program has ended, or there is none of that name.
    """
    if len(sys.argv) < 2:
        print(_USAGE, file=sys.stderr)
        raise SystemExit(2)
    if sys.argv[1] in ("-h", "--help"):
        print(_USAGE)
        raise SystemExit(0)
    del sys.argv[0]
    name = sys.argv[0]
    (*_, entry_point) = (None, *entry_points(group="console_scripts", name=name))
    if entry_point is None:
        why = "no installed Python package has a program of that name; check it, or install the package"
        raise SystemExit(f"rlaunch: error: {name}: {why}")
    _reach_subprocesses()
    install("torch")
    show_reports_without_traceback()
    sys.exit(entry_point.load()())


def _reach_subprocesses() -> None:
    """Passes the installation on by RLAUNCH_INSTALL, or warns where that has no effect."""
    if pth_file.is_enabled():
        try:
            names = read_variable()
        except ValueError as error:
            raise SystemExit(f"rlaunch: error: {error}") from None
        os.environ[VARIABLE] = ",".join(sorted({*names, "torch"}))
    else:
        sys.addaudithook(_warn_of_launcher)


def _warn_of_launcher(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: says that a launcher that is being started is not rlaunch."""
    if event != "subprocess.Popen":
        return
    words = arguments[1] if isinstance(arguments[1], (list, tuple)) else ()
    texts = [os.fsdecode(word) for word in words if isinstance(word, (str, bytes, os.PathLike))]
    programs = [os.path.basename(text) for text in texts[:2]]
    modules = [text for option, text in pairwise(texts) if option == "-m"]
    found = [name for name in programs if name in _COMMANDS] + [name for name in modules if name in _MODULES]
    if found:
        hint = "to change that, run `python -m rlaunch.install enable` once"
        print(f"rlaunch: {found[0]} runs as a subprocess, and not on rlaunch; {hint}", file=sys.stderr)
