"""Where ranks were when they were stopped, as people read it. Pure: texts in, texts out."""

from __future__ import annotations

import re
from pathlib import PurePath

from ._stacks import parse

# Of no interest to who asks where a test stood.
_PLUMBING = ("site-packages", "dist-packages", "rlaunch")


# Below it, innermost frames first, a stack is pytest's, until the thread's end.
_PYTEST = re.compile(r'^  File ".*/(?:_pytest|pluggy)/\w+\.py", line ')


def without_pytest(stacks: str) -> str:
    """Stacks without what called the test, or its fixture."""
    kept, below = [], False
    for line in stacks.splitlines(keepends=True):
        below = line.startswith("  ") and (below or bool(_PYTEST.match(line)))
        if not below:
            kept.append(line)
    return "".join(kept)


def place(stack: str, root: PurePath) -> str | None:
    """``file:line in function`` of the test's own code: the innermost frame below ``root`` of the main
    thread; else its innermost that is not rlaunch's. None if there is none.
    """
    threads = parse(stack)
    frames = (
        [frame for frame in threads[0].frames if "/rlaunch/_pytest_" not in frame.file] if threads else []
    )
    own = [frame for frame in frames if _is_own(PurePath(frame.file), root)]
    for frame in own or frames:
        path = PurePath(frame.file)
        shown = path.relative_to(root) if path.is_relative_to(root) else path
        return f"{shown}:{frame.line} in {frame.function}"
    return None


def _is_own(path: PurePath, root: PurePath) -> bool:
    return path.is_relative_to(root) and not any(part in _PLUMBING for part in path.relative_to(root).parts)
