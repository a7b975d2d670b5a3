"""Messages to the user on stderr."""

from __future__ import annotations

import contextlib
import sys


def print_message(line: str) -> None:
    """Prints a line to stderr."""
    print(line, file=sys.stderr, flush=True)


def print_if_possible(line: str) -> None:
    """Prints a line to stderr; does nothing if stderr is closed, missing or broken."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print_message(line)
