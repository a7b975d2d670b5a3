"""``python -m rlaunch.run`` and ``rlaunch-run``: the launcher behind torchrun's command line.

``get_args_parser()``, ``parse_args``, ``run`` and ``main`` are for programs that call those of
``torch.distributed.run``: the same attributes, the same defaults.
"""

from __future__ import annotations

import os
import sys

from . import _lib

TYPE_CHECKING = False  # Importing typing, or argparse, takes longer than all of the launcher's start.
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence
    from typing import Any, NoReturn

__all__ = ["get_args_parser", "main", "parse_args", "run"]


def get_args_parser() -> ArgumentParser:
    """The parser of the command line, with PET_ variables as defaults.

    Its namespace has the attributes of torchrun's, and those of rlaunch's own options that were given.
    ``--dry-run`` and ``--version`` are for the command line alone.

    Raises:
        ValueError: a PET_ variable of a flag is neither a number nor true or false.
    """
    from ._run_parser import make

    return make(_lib.run_options(dict(os.environ)))


def parse_args(args: Sequence[str] | None) -> Namespace:
    """The namespace for these arguments, program name left out; those of this program if None."""
    return get_args_parser().parse_args(args)


def run(args: Namespace) -> None:
    """Runs the job that a namespace asks for, and waits for its end.

    The attributes alone count, not PET_ variables; what is missing has its default. The launcher is a process
    of its own, as with ``rlaunch.launch``: that page says how output, signals and Ctrl-C are passed on.

    Raises:
        ChildFailedError: a rank failed; torch's class too, where its errors have been imported.
        WorkerError: a signal stopped the job, or the loss of node 0's store did. Its ``report`` says all
            about it.
        LaunchError: the launcher could not do what was asked; its ``status`` is the exit status.
        OSError: the launcher could not be started.
    """
    from ._elastic import launched

    launched(_words(args), _name(args))


def main(args: Sequence[str] | None = None) -> None:
    """``run(parse_args(args))``."""
    run(parse_args(args))


def command() -> NoReturn:
    """This process becomes the launcher, with this program's arguments, and ends with its exit status."""
    # Set by `run` and `rlaunch.launch` alone, and not for the ranks.
    descriptor = os.environ.pop("RLAUNCH_RECORD_FD", "")
    record = int(descriptor) if descriptor.isascii() and descriptor.isdigit() and len(descriptor) < 10 else -1
    spelt_out = os.environ.pop("RLAUNCH_RUN_SPELT_OUT", "")
    status = _lib.run_main(sys.argv[1:], sys.executable, record, not spelt_out)
    # Nothing is left to flush or finalize, and finalizing the interpreter takes longer than all the rest.
    os._exit(status)


def _words(args: Namespace) -> list[str]:
    """The command line that gives these attributes."""
    words = []
    for option in _lib.run_options({}):
        value = getattr(args, option["attribute"], None)
        if option["kind"] == "flag":
            words += [f"--{option['name']}"] if value else []
        elif option["kind"] == "list":
            words += [f"--{option['name']}={_joined(value)}"] if value else []
        elif value is not None:
            words.append(f"--{option['name']}={value}")
    # What `torch.distributed.launch` adds to the parser.
    if not getattr(args, "use_env", True):
        words.append("--pass-local-rank")
    return [*words, "--", args.training_script, *map(str, args.training_script_args or [])]


def _name(args: Namespace) -> str:
    """What the ranks run, for people, as torchrun has it."""
    from ._elastic import name_of

    if getattr(args, "run_path", False):
        return "run_script_path"
    if getattr(args, "no_python", False):
        return name_of(args.training_script, args.training_script_args or [])
    return str(args.training_script)


def _joined(value: Any) -> str:
    return value if isinstance(value, str) else ",".join(str(item).replace(",", ",,") for item in value)


if __name__ == "__main__":
    command()
