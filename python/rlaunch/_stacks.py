"""Where all ranks are, told in one screen: like stacks together, and the odd one named. Pure."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

# As faulthandler writes them (Python 3.14 has the thread's name, too).
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+(?: \[(.*)\])? \(most recent call first\):$")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
# Whoever is in one of these waits for somebody else.
_WAITS = re.compile(
    r"(^|_)(all_?reduce|all_?gather|all_?to_?all|reduce_?scatter|broadcast|barrier|gather|scatter|reduce|wait|recv|"
    r"synchronize|store_based_barrier|monitored_barrier|init_process_group|init_parallel_env|rendezvous)",
    re.IGNORECASE,
)
# How many frames from the innermost one are looked at for that.
_INNERMOST = 6


class Frame(NamedTuple):
    """A frame: its file, its line and its function."""

    file: str
    line: str
    function: str


class Thread(NamedTuple):
    """A thread's frames, the innermost first."""

    name: str
    frames: tuple[Frame, ...]


def parse(text: str) -> list[Thread]:
    """The threads that faulthandler wrote of, the main one first: it writes the oldest last.

    What is no line of its form is left out.
    """
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        head, frame = _THREAD.match(line), _FRAME.match(line)
        if head:
            threads.append((head[1] or "", []))
        elif frame and threads:
            threads[-1][1].append(Frame(frame[1], frame[2], frame[3]))
    return [Thread(name, tuple(frames)) for name, frames in reversed(threads)]


def grouped(stacks: dict[int, str], outer: tuple[str, ...] = (), inner: str = "/rlaunch/_") -> str:
    """The stacks of ranks, those that are alike together, the odd one's last, with all its threads.

    ``stacks``: what faulthandler wrote, by rank. ``outer``: parts of the names of a test runner's files: its
    outermost frames are left out, with what has started it. ``inner``: of the innermost frames in such files
    the outermost is told.
    """
    threads = {rank: parse(text) for rank, text in stacks.items()}
    alike: dict[tuple[Frame, ...], list[int]] = {}
    for rank in sorted(threads):
        frames = threads[rank][0].frames if threads[rank] else ()
        alike.setdefault(frames, []).append(rank)
    odd = odd_one(alike)
    blocks = []
    for frames, ranks in sorted(alike.items(), key=lambda item: (item[0] == odd, item[1])):
        note = (
            ", the odd one"
            if frames == odd and len(ranks) == 1
            else ", the odd ones"
            if frames == odd
            else ""
        )
        blocks.append(f"{named(ranks)}{note}:\n{_told(frames, outer, inner)}")
        # One rank alone: the others have ended, and wait for it.
        told = frames == odd or len(threads) == 1
        others = [thread for thread in threads[ranks[0]][1:] if thread.frames] if told else []
        for thread in others:
            blocks.append(
                f"{named(ranks)}, thread {thread.name or 'beside it'}:\n{_told(thread.frames, outer, inner)}"
            )
    return "\n".join(blocks)


def odd_one(alike: dict[tuple[Frame, ...], list[int]]) -> tuple[Frame, ...] | None:
    """Of stacks and the ranks that have them, the one that the others wait for; None if that cannot be said.

    It is the one that does not wait, or else the one of the fewest ranks.
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


def named(ranks: list[int]) -> str:
    """``rank 3``, ``ranks 0, 2-5``; of sorted numbers."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    told = [", ".join(map(str, span)) if len(span) < 3 else f"{span[0]}-{span[-1]}" for span in spans]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(told)}"


def _told(frames: tuple[Frame, ...], outer: tuple[str, ...], inner: str) -> str:
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
