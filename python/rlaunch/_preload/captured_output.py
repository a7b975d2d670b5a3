"""Captures what imports write to stdout and stderr, at the level of descriptors."""

from __future__ import annotations

import contextlib
import os
import sys

from .. import _lib


class CapturedOutput:
    """Captures output in a ``with`` block, for each rank to write as its own."""

    def __init__(self) -> None:
        self._texts = {1: b"", 2: b""}
        # By descriptor: a copy of the original, and the memory that replaces it.
        self._replaced: dict[int, tuple[int, _lib.Descriptor]] = {}

    def __enter__(self) -> CapturedOutput:
        for fd in self._texts:
            memory = _lib.Descriptor.memory("rlaunch-imports")
            with contextlib.suppress(OSError):  # A closed descriptor: its output is lost, as in any process.
                self._replaced[fd] = (os.dup(fd), memory)
                os.dup2(memory.fileno(), fd)
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        for fd, (original, memory) in self._replaced.items():
            with open(memory.fileno(), "rb", closefd=False) as file:
                file.seek(0)
                self._texts[fd] = file.read()
            memory.close()
            os.dup2(original, fd)
            os.close(original)

    def write(self) -> None:
        """Writes the captured output to this process's stdout and stderr."""
        for fd, text in self._texts.items():
            with contextlib.suppress(OSError):
                while text:
                    text = text[os.write(fd, text) :]
