"""``python -m rlaunch.run`` and ``rlaunch-run``: the launcher with torchrun's command line.

``get_args_parser()``, ``parse_args``, ``run`` and ``main`` replace those of ``torch.distributed.run`` in
programs that call them: the attributes and defaults are the same.
"""

from __future__ import annotations

import os

from . import _lib

TYPE_CHECKING = False  # Importing typing or argparse takes longer than the launcher's start.
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence
    from typing import Any, NoReturn

__all__ = ["get_args_parser", "main", "parse_args", "run"]


def get_args_parser() -> ArgumentParser:
    """Returns the parser of the command line, with PET_ variables as defaults.

    Its namespace has the attributes of torchrun's, and those of rlaunch's own options that were given.
    ``--dry-run`` and ``--version`` work only on the command line.

    Raises:
        ValueError: the PET_ variable of a flag is neither a number nor true or false.
    """
    from ._elastic.run_parser import build_parser

    return build_parser(_lib.run_options(dict(os.environ)))


def parse_args(args: Sequence[str] | None) -> Namespace:
    """Returns the namespace for these arguments (without a program name); None: this program's own."""
    return get_args_parser().parse_args(args)


def run(args: Namespace) -> None:
    """Runs the job that a namespace describes, and waits for its end.

    Only the attributes count, not PET_ variables; a missing attribute has its default. The launcher runs in a
    process of its own; ``rlaunch.launch`` documents how output, signals and Ctrl-C pass through.

    Raises:
        ChildFailedError: a rank failed. The text is the failure report, which is not printed besides. Also an
            instance of torch's class, if torch's errors are imported.
        WorkerError: a signal stopped the job, or node 0's store was lost. Its ``report`` has the details.
        LaunchError: the launcher could not start the job; its ``status`` is the exit status. It is also a
            ValueError if an option's value is invalid.
        OSError: the launcher cannot be started.
    """
    from ._elastic.launcher_job import run_job

    run_job(_build_arguments(args), _get_name(args))


def main(args: Sequence[str] | None = None) -> None:
    """Calls ``run(parse_args(args))``."""
    run(parse_args(args))


def command() -> NoReturn:
    """Becomes the launcher: runs it with this program's arguments and exits with its exit status."""
    from ._launch.single_thread import run_launcher_function
    from ._launch.status_pipe import take_descriptor

    descriptor = take_descriptor()
    # `run_job` sets it: the command line is complete, and PET_ variables have no effect.
    is_complete = os.environ.pop("RLAUNCH_RUN_SPELT_OUT", "")
    run_launcher_function("run_main", descriptor, not is_complete)


def _build_arguments(args: Namespace) -> list[str]:
    """Returns the command line that has these attributes."""
    arguments = []
    for option in _lib.run_options({}):
        value = getattr(args, option["attribute"], None)
        if option["kind"] == "flag":
            arguments += [f"--{option['name']}"] if value else []
        elif option["kind"] == "list":
            arguments += [f"--{option['name']}={_join(value)}"] if value else []
        elif value is not None:
            arguments.append(f"--{option['name']}={value}")
    # An attribute that `torch.distributed.launch` adds to the parser.
    if not getattr(args, "use_env", True):
        arguments.append("--pass-local-rank")
    return [*arguments, "--", args.training_script, *map(str, args.training_script_args or [])]


def _get_name(args: Namespace) -> str:
    """Returns the name of what the ranks run, as torchrun has it."""
    from ._elastic.launcher_job import get_entrypoint_name

    if getattr(args, "run_path", False):
        return "run_script_path"
    if getattr(args, "no_python", False):
        return get_entrypoint_name(args.training_script, args.training_script_args or [])
    return str(args.training_script)


def _join(value: Any) -> str:
    return value if isinstance(value, str) else ",".join(str(item).replace(",", ",,") for item in value)


if __name__ == "__main__":
    command()
