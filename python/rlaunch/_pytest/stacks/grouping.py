"""Parses stacks that faulthandler wrote, and groups those of ranks: equal ones together, the odd one last.

Pure: texts in, texts out.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

# faulthandler's format. Python 3.14 adds the thread's name.
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+(?: \[(.*)\])? \(most recent call first\):$")
_NEXT_SIGNAL = re.compile(r"(?<=[^\n]\n)(?=(?:Current thread|Thread) 0x)")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
# faulthandler writes ASCII: other characters as escapes.
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})")
# Functions in which a rank waits for other ranks.
_WAITS = re.compile(
    r"(^|_)(all_?reduce|all_?gather|all_?to_?all|reduce_?scatter|broadcast|barrier|gather|scatter|reduce|wait|recv|"
    r"synchronize|store_based_barrier|monitored_barrier|init_process_group|init_parallel_env|rendezvous)",
    re.IGNORECASE,
)
# Number of innermost frames to check for them.
_INNERMOST = 6


class Frame(NamedTuple):
    """A stack frame: its file, line number and function."""

    file: str
    line: str
    function: str


class Thread(NamedTuple):
    """The frames of a thread, innermost first."""

    name: str
    frames: tuple[Frame, ...]


def cut_after_first(text: str) -> str:
    """Returns what faulthandler wrote at the first of several signals.

    It separates the threads of one signal by an empty line, and nothing separates two signals.
    """
    return _NEXT_SIGNAL.split(text, maxsplit=1)[0]


def parse(text: str) -> list[Thread]:
    """Returns the threads that faulthandler wrote, the main thread first: faulthandler writes that last.

    Lines of another form are ignored, and the frames of the import system, of which there are six an import.
    """
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        head, frame = _THREAD.match(line), _FRAME.match(line)
        if head:
            threads.append((head[1] or "", []))
        elif frame and threads and not frame[1].startswith("<frozen importlib."):
            threads[-1][1].append(Frame(_unescape(frame[1]), frame[2], _unescape(frame[3])))
    return [Thread(name, tuple(frames)) for name, frames in reversed(threads)]


def _unescape(name: str) -> str:
    """Replaces faulthandler's escapes, but for lone surrogates, which cannot be printed."""

    def character(match: re.Match[str]) -> str:
        number = int(match[1] or match[2] or match[3], 16)
        return match[0] if 0xD800 <= number <= 0xDFFF else chr(number)

    return _ESCAPE.sub(character, name)


def group_stacks(stacks: dict[int, str], outer: tuple[str, ...] = (), inner: str = "/rlaunch/_") -> str:
    """Formats the stacks of ranks: equal ones together, the odd one last and with all its threads.

    Args:
        stacks: what faulthandler wrote, by rank.
        outer: parts of the paths of a test runner's files. Its frames, and frames outside them, are left out.
        inner: part of the paths of internal files. Of the innermost frames in them only the outermost is
            shown.
    """
    threads = {rank: parse(text) for rank, text in stacks.items()}
    alike: dict[tuple[Frame, ...], list[int]] = {}
    for rank in sorted(threads):
        frames = threads[rank][0].frames if threads[rank] else ()
        alike.setdefault(frames, []).append(rank)
    odd = find_odd_one(alike)
    blocks = []
    for frames, ranks in sorted(alike.items(), key=lambda item: (item[0] == odd, item[1])):
        note = (
            ", the odd one"
            if frames == odd and len(ranks) == 1
            else ", the odd ones"
            if frames == odd
            else ""
        )
        blocks.append(f"{format_ranks(ranks)}{note}:\n{_format_frames(frames, outer, inner)}")
        # A single rank is odd, too: all others have ended.
        shows_threads = frames == odd or len(threads) == 1
        others = [thread for thread in threads[ranks[0]][1:] if thread.frames] if shows_threads else []
        for thread in others:
            title = f"{format_ranks(ranks)}, thread {thread.name or 'beside it'}"
            blocks.append(f"{title}:\n{_format_frames(thread.frames, outer, inner)}")
    return "\n".join(blocks)


def find_odd_one(alike: dict[tuple[Frame, ...], list[int]]) -> tuple[Frame, ...] | None:
    """Returns the stack that the other ranks wait for; None if it cannot be determined.

    It is the only one that does not wait, otherwise the one of the fewest ranks.

    Args:
        alike: the ranks that have each stack.
    """
    if len(alike) < 2:
        return None
    busy = [frames for frames in alike if not any(_WAITS.search(f.function) for f in frames[:_INNERMOST])]
    if len(busy) == 1:
        return busy[0]
    count, ranks = (
        Counter(len(ranks) for ranks in alike.values()),
        min(len(ranks) for ranks in alike.values()),
    )
    if count[ranks] > 1:
        return None
    return next(frames for frames in alike if len(alike[frames]) == ranks)


def format_ranks(ranks: list[int]) -> str:
    """Formats sorted numbers: ``rank 3``, ``ranks 0, 2-5``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    texts = [", ".join(map(str, span)) if len(span) < 3 else f"{span[0]}-{span[-1]}" for span in spans]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(texts)}"


def _cut_start(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Returns the frames of the rank itself: a forked one also has those of its parent."""
    for at, frame in enumerate(frames):
        if frame.function == "run_rank" and frame.file.endswith("/rlaunch/_spawn/worker.py"):
            return frames[:at]
    return frames


def _format_frames(frames: tuple[Frame, ...], outer: tuple[str, ...], inner: str) -> str:
    frames = _cut_start(frames)
    shown = list(frames)
    while len(shown) > 1 and inner in shown[0].file and inner in shown[1].file:
        del shown[0]
    runner = [any(part in frame.file for part in outer) for frame in shown]
    if True in runner:
        del shown[len(runner) - runner[::-1].index(True) :]
    while shown and runner[len(shown) - 1]:
        shown.pop()
    lines = [
        f"    {frame.file}:{frame.line} in {frame.function}" for frame in reversed(shown or list(frames))
    ]
    return "\n".join(lines) or "    no Python code runs, or it cannot answer"
