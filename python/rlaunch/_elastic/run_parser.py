"""The argparse parser of ``rlaunch.run``, built from the launcher's table of options."""

from __future__ import annotations

from argparse import REMAINDER, SUPPRESS, Action, ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from .. import _lib

# Not in the parser: its value can only follow `=`, which argparse does not support.
_COMMAND_LINE_ONLY = ("dry_run",)


class _Parser(ArgumentParser):
    """Accepts an abbreviation that fits both spellings of one option, and prefers torchrun's options.

    Attributes:
        own_options: the attributes that only rlaunch has.
    """

    own_options: frozenset[str] = frozenset()

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        found: dict[str, Any] = {}
        for match in super()._get_option_tuples(option_string):
            found.setdefault(match[0].dest, match)
        torchruns = [match for match in found.values() if match[0].dest not in self.own_options]
        return torchruns or list(found.values())


class _PrintCompletion(Action):
    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None
    ) -> None:
        print(_lib.run_completion(values), end="")
        parser.exit()


def build_parser(options: Sequence[dict[str, Any]]) -> ArgumentParser:
    """Returns the parser with these options, in the form of ``_lib.run_options``."""
    parser = _Parser(
        prog="rlaunch-run", description="Starts and supervises the processes of a distributed training job."
    )
    types = {"text": str, "int": int, "seconds": float, "list": _split_list}
    for option in options:
        if option["attribute"] in _COMMAND_LINE_ONLY:
            continue
        dashed = f"--{option['name']}"
        names = dict.fromkeys([dashed, f"--{option['attribute']}"])
        short = [f"-{option['short']}"] if option["short"] else []
        keywords: dict[str, Any] = {"default": SUPPRESS if option["ours"] else option["default"]}
        if option["kind"] == "flag":
            keywords["action"] = "store_true"
        else:
            keywords["type"] = types[option["kind"]]
            keywords["choices"] = option["choices"] or None
        if option["kind"] == "list" and keywords["default"] is None:
            keywords["default"] = []
        if option["attribute"] == "print_completion":
            keywords = {"action": _PrintCompletion, "choices": option["choices"]}
        parser.add_argument(*short, *names, help=option["help"].replace("%", "%%"), **keywords)
    parser.own_options = frozenset(option["attribute"] for option in options if option["ours"])
    parser.add_argument("training_script", help="what each rank runs")
    parser.add_argument("training_script_args", nargs=REMAINDER, help="its arguments")
    return parser


def _split_list(text: str) -> list[str]:
    return [item.replace("\0", ",") for item in text.replace(",,", "\0").split(",")]
