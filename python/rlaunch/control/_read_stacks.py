"""The process that reads the Python stacks of ranks: a request comes on stdin, the answer goes to stdout."""

from __future__ import annotations

import os
import sys

from .. import _lib


def main() -> None:
    """Answers one request. JSON, as in ``src/run/stacks/look.rs``."""
    sys.stdout.buffer.write(_lib.read_stacks(sys.stdin.buffer.read()))
    sys.stdout.buffer.flush()
    # The launcher waits for the end, and there is nothing to clean up.
    os._exit(0)
