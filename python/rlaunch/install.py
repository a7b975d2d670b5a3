"""``python -m rlaunch.install``: makes all Python programs of this environment read RLAUNCH_INSTALL."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ._install import pth_file
from ._install.pth_file import InstallError, PthFile

if TYPE_CHECKING:
    from collections.abc import Sequence

_DESCRIPTION = """\
Existing programs run on rlaunch where the variable RLAUNCH_INSTALL is set:
torchrun, accelerate launch, paddle.distributed.launch and spawn, and programs
that call these, in this environment and in its subprocesses. This command
writes or removes the file that makes Python read the variable."""

_EPILOG = """\
RLAUNCH_INSTALL=1 stands for torch and Paddle, RLAUNCH_INSTALL=torch or
RLAUNCH_INSTALL=paddle for one. Without the variable the file has no effect."""


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m rlaunch.install",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("enable", "write the file into site-packages"),
        ("disable", "remove it"),
        ("status", "print whether the file is there, and what the variable says"),
    ):
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name != "status":
            text = "in the user's site-packages, not this environment's"
            command.add_argument("--user", action="store_true", help=text)
    chosen = parser.parse_args(args)
    try:
        return _run(chosen.command, getattr(chosen, "user", False))
    except InstallError as error:
        print(f"rlaunch: error: {error}", file=sys.stderr)
        return 1


def _run(command: str, is_user: bool) -> int:
    files = {"this environment": pth_file.find_environment_file(), "the user": pth_file.find_user_file()}
    file = files["the user" if is_user else "this environment"]
    if command == "status":
        for whose, one in files.items():
            print(f"for {whose}: {_describe(one)}")
        print(pth_file.describe_variable())
        print(f"rlaunch: {pth_file.describe_rlaunch()}")
    elif command == "enable":
        _enable(file, is_user)
    elif file.disable():
        print(f"removed {file.path}")
    else:
        print(f"{file.path} does not exist: it is not enabled")
    return 0


def _enable(file: PthFile, is_user: bool) -> None:
    if is_user and not pth_file.is_user_site_read():
        why = "this interpreter does not read it, as in a virtual environment; leave --user out"
        raise InstallError(f"{file.folder}: {why}")
    try:
        file.enable()
    except InstallError as error:
        hint = "use a virtual environment" if is_user else "use --user, or a virtual environment"
        raise InstallError(f"{error}; {hint}") from None
    print(f"wrote {file.path}")
    print("RLAUNCH_INSTALL=1 COMMAND runs a command on rlaunch")


def _describe(file: PthFile) -> str:
    if not file.is_enabled:
        return f"disabled ({file.path} does not exist)"
    if not file.is_current:
        return f"enabled by another version of rlaunch ({file.path}); enable it again"
    return f"enabled ({file.path})"


if __name__ == "__main__":
    sys.exit(main())
