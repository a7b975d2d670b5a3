"""The argparse parser of ``rlaunch.run``, made from the launcher's table of options."""

from __future__ import annotations

from argparse import REMAINDER, SUPPRESS, Action, ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from . import _lib

# A value behind `=` alone, which argparse has not.
_ON_THE_COMMAND_LINE_ALONE = ("dry_run",)


class _Parser(ArgumentParser):
    """Finds one option, not two, where a name cut short is the beginning of both of its spellings."""

    ours: frozenset[str] = frozenset()

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        found = {id(match[0]): match for match in super()._get_option_tuples(option_string)}
        theirs = [match for match in found.values() if match[0].dest not in self.ours]
        return theirs or list(found.values())


class _PrintCompletion(Action):
    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None
    ) -> None:
        print(_lib.run_completion(values), end="")
        parser.exit()


def make(options: Sequence[dict[str, Any]]) -> ArgumentParser:
    """The parser with these options, as ``_lib.run_options`` has them."""
    parser = _Parser(
        prog="rlaunch-run", description="Starts and supervises the processes of a distributed training job."
    )
    types = {"text": str, "int": int, "seconds": float, "list": _list}
    for option in options:
        if option["attribute"] in _ON_THE_COMMAND_LINE_ALONE:
            continue
        dashed = f"--{option['name']}"
        names = dict.fromkeys([dashed, f"--{option['attribute']}"])
        short = [f"-{option['short']}"] if option["short"] else []
        more: dict[str, Any] = {"default": SUPPRESS if option["ours"] else option["default"]}
        if option["kind"] == "flag":
            more["action"] = "store_true"
        else:
            more["type"] = types[option["kind"]]
            more["choices"] = option["choices"] or None
        if option["kind"] == "list" and more["default"] is None:
            more["default"] = []
        if option["attribute"] == "print_completion":
            more = {"action": _PrintCompletion, "choices": option["choices"]}
        parser.add_argument(*short, *names, help=option["help"].replace("%", "%%"), **more)
    parser.ours = frozenset(option["attribute"] for option in options if option["ours"])
    parser.add_argument("training_script", help="what each rank runs")
    parser.add_argument("training_script_args", nargs=REMAINDER, help="its arguments")
    return parser


def _list(text: str) -> list[str]:
    return [item.replace("\0", ",") for item in text.replace(",,", "\0").split(",")]
