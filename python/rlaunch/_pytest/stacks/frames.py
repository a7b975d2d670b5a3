"""Finds the frame of the test in the stack of a rank, and cuts pytest's frames. Pure: texts in, texts out."""

from __future__ import annotations

import re
from pathlib import PurePath

from .grouping import parse

# Folders of installed packages: not the test's own code.
_INSTALLED = ("site-packages", "dist-packages", "rlaunch")

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
    """Returns ``file:line in function`` of the main thread's innermost frame below ``root``.

    If there is none, returns its innermost frame outside rlaunch; None if there is none either.
    """
    threads = parse(stack)
    frames = (
        [frame for frame in threads[0].frames if "/rlaunch/_pytest/" not in frame.file] if threads else []
    )
    own = [frame for frame in frames if _is_own(PurePath(frame.file), root)]
    for frame in own or frames:
        path = PurePath(frame.file)
        shown = path.relative_to(root) if path.is_relative_to(root) else path
        return f"{shown}:{frame.line} in {frame.function}"
    return None


def _is_own(path: PurePath, root: PurePath) -> bool:
    return path.is_relative_to(root) and not any(part in _INSTALLED for part in path.relative_to(root).parts)
