"""The real parser of torchrun, in a process of its own: lines of JSON in and out.

One thing about it is mended, as in newer Pythons: a name cut short that is the beginning of both spellings
of one option stands for that option.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import Any


def answer(args: list[str], environ: dict[str, str]) -> dict[str, Any] | str:
    """The attributes of the namespace, or how the parser ends the program."""
    from torch.distributed.run import get_args_parser

    os.environ.update(environ)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            parser = get_args_parser()
            found = parser._get_option_tuples
            parser._get_option_tuples = lambda word: list({id(m[0]): m for m in found(word)}.values())
            return vars(parser.parse_args(args))
    except SystemExit as end:
        return "printed" if not end.code else "refused"
    except ValueError:
        return "refused"
    finally:
        for name in environ:
            del os.environ[name]


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), flush=True)
