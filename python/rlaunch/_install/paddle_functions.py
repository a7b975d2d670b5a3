"""What replaces ``paddle.distributed.spawn`` and ``paddle.distributed.launch``."""

from __future__ import annotations

import os
import sys
from inspect import unwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def run_command() -> None:
    """Runs ``python -m rlaunch`` with this program's arguments, and exits with its exit status.

    The commands ``python -m paddle.distributed.launch`` and ``fleetrun`` become it.
    """
    _run_as("fleetrun", "paddle.distributed.launch")


def run_legacy_command() -> None:
    """As ``run_command``, for Paddle's legacy launcher: ``paddle.distributed.fleet.launch``."""
    _run_as("", "paddle.distributed.fleet.launch", "--legacy", "1")


def _run_as(script: str, module: str, *options: str) -> None:
    from .._launch.launcher_process import run_launcher
    from .._launch.outcome import print_unraised_report
    from .own_command import become_module, get_module_command, is_own_command

    if is_own_command(script, module):
        become_module("rlaunch", *options)
    command = [os.fsencode(word) for word in get_module_command("rlaunch", *options)]
    record, status = run_launcher(command, dict(os.environ), None)
    print_unraised_report(record)
    sys.exit(status)


# These two have the parameters of Paddle's functions, which get their code and have other globals.


def _launch() -> None:
    from rlaunch._install.paddle_functions import run_command

    run_command()


def _spawn(
    func: Callable[..., Any],
    args: Iterable[Any] = (),
    nprocs: int = -1,
    join: bool = True,
    daemon: bool = False,
    **options: Any,
) -> Any:
    from rlaunch._spawn.spawn import spawn

    return spawn(func, args, nprocs, join, daemon, **options)


def replace_legacy(module: Any) -> list[tuple[Any, str, Any]]:
    """Returns the replacement for the function of ``paddle.distributed.fleet.launch``."""
    return [(module, "launch", run_legacy_command)]


def replace(distributed: Any) -> list[tuple[Any, str, Any]]:
    """Returns the replacements for ``paddle.distributed``, its spawn and its launch."""
    from .._spawn.context import MultiprocessContext
    from .._spawn.plan.options import check_option_names
    from .._spawn.plan.paddle_devices import default_nprocs
    from .._spawn.plan.ranks import get_environs
    from .._spawn.spawn import spawn

    replacements = {
        "spawn": spawn,
        "MultiprocessContext": MultiprocessContext,
        "_get_subprocess_env_list": get_environs,
        "_options_valid_check": check_option_names,
        "_get_default_nprocs": default_nprocs,
    }
    # As an attribute of its package, `spawn` is the function; the module is only in sys.modules.
    module = sys.modules["paddle.distributed.spawn"]
    # Other modules may hold the functions themselves. Their own spawn would call the other replacements.
    codes = [
        (unwrap(distributed.spawn), "__code__", _spawn.__code__),
        (sys.modules["paddle.distributed.launch.main"].launch, "__code__", _launch.__code__),
    ]
    targets = [(module, name, value) for name, value in replacements.items()]
    return [*codes, (distributed, "spawn", spawn), *targets]
