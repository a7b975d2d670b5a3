"""``python -m rlaunch.torch PROGRAM ARGS``: runs a Python program with rlaunch in place of torchrun.

Example: ``python -m rlaunch.torch accelerate launch --multi_gpu --num_processes 2 train.py``
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

from .torchrun import install

_USAGE = """\
usage: python -m rlaunch.torch PROGRAM [ARGS]...

Runs PROGRAM with rlaunch.run in the place of torch.distributed.run. PROGRAM is
the name of a command that a Python package has installed, such as accelerate."""


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
    install()
    sys.exit(entry_point.load()())
