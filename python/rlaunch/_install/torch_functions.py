"""What replaces the functions of ``torch.distributed.run`` and ``torch.distributed.launcher``."""

from __future__ import annotations

from typing import Any

from .. import run
from .own_command import become_module, is_own_command


def main(args: Any = None) -> None:
    """Replaces ``torch.distributed.run.main``. The command ``torchrun`` becomes ``python -m rlaunch.run``."""
    if args is None and is_own_command("torchrun", "torch.distributed.run"):
        become_module("rlaunch.run")
    run.main(args)


def launch_agent(config: Any, entrypoint: Any, args: Any, health_check_server: Any) -> dict[int, Any]:
    """Replaces ``torch.distributed.launcher.api.launch_agent``, which torch's ``elastic_launch`` calls.

    Raises:
        TypeError: there is a ``health_check_server``.
    """
    from .._elastic.elastic_launch import refuse_health_checks, run_elastic

    refuse_health_checks(health_check_server)
    return run_elastic(config, entrypoint, args)


def _launch_agent(config: Any, entrypoint: Any, args: Any, health_check_server: Any = None) -> Any:
    # The parameters are those of torch's launch_agent, which gets this code and has other globals.
    from rlaunch._install.torch_functions import launch_agent

    return launch_agent(config, entrypoint, args, health_check_server)


def replace_in_run(module: Any) -> list[tuple[Any, str, Any]]:
    """Returns the replacements in ``torch.distributed.run``."""
    own = {"get_args_parser": run.get_args_parser, "parse_args": run.parse_args, "run": run.run, "main": main}
    return [(module, name, value) for name, value in own.items()]


def replace_in_launcher(module: Any) -> list[tuple[Any, str, Any]]:
    """Returns the replacements for ``torch.distributed.launcher.api``."""
    # The code and not the function, which other modules may hold.
    return [(module.launch_agent, "__code__", _launch_agent.__code__)]
