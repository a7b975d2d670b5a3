"""Finds the frame of the test in the stack of a rank, and cuts pytest's frames. Pure: texts in, texts out."""

from __future__ import annotations

import os
import re
from pathlib import PurePath

from .grouping import parse

# Folders of installed packages: not the test's own code.
_INSTALLED = ("site-packages", "dist-packages", "rlaunch")

# Parts of the paths of the files that run tests.
_RUNNER = ("/_pytest/", "/pluggy/", "/rlaunch/_")
_STANDARD_LIBRARY = PurePath(os.__file__).parent

# The innermost frame of pytest. It and the frames outside it, which follow, are not the test's.
_PYTEST = re.compile(r'^  File ".*(?<!/rlaunch)/(?:_pytest|pluggy)/\w+\.py", line ')


def cut_pytest_frames(stacks: str) -> str:
    """Returns the stacks without the frames that called the test or its fixture."""
    kept, is_outside = [], False
    for line in stacks.splitlines(keepends=True):
        is_outside = line.startswith("  ") and (is_outside or bool(_PYTEST.match(line)))
        if not is_outside:
            kept.append(line)
    return "".join(kept)


def find_test_frame(stack: str, root: PurePath) -> str | None:
    """Returns ``file:line in function`` of the main thread's innermost frame below ``root``, or of a library.

    Returns None if the stack has no such frame: pytest or rlaunch was at work itself.
    """
    threads = parse(stack)
    frames = threads[0].frames if threads else ()
    runner = [i for i, frame in enumerate(frames) if any(part in frame.file for part in _RUNNER)]
    # The frames outside the runner's outermost one have started it.
    called = [frame for i, frame in enumerate(frames[: runner[-1]]) if i not in runner] if runner else frames
    own = [frame for frame in called if _is_below(PurePath(frame.file), root)]
    # The runner itself calls the standard library.
    library = [frame for frame in called if not (runner and _is_standard(frame.file))]
    for frame in own or library:
        path = PurePath(frame.file)
        shown = path.relative_to(root) if path.is_relative_to(root) else path
        return f"{shown}:{frame.line} in {frame.function}"
    return None


def _is_standard(file: str) -> bool:
    return file.startswith("<") or _is_below(PurePath(file), _STANDARD_LIBRARY)


def _is_below(path: PurePath, root: PurePath) -> bool:
    return path.is_relative_to(root) and not any(part in _INSTALLED for part in path.relative_to(root).parts)
