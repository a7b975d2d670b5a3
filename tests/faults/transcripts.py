"""Writes down what a user sees at a terminal when a job does not go well.

That is docs/transcripts.md, and the README's picture.

    python tests/faults/transcripts.py           # writes them anew
    python tests/faults/transcripts.py --check   # exit status 1, and a diff, if the page is not as it was

Each part is an interactive bash on a pseudo-terminal of 80 columns, with rlaunch as its foreground job. What
differs from run to run (pids, times, the host, paths) is replaced by fixed words. The page has no colours.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import marked
from job import Job, until
from launchers import LAUNCHERS, Launcher
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text
from terminal import Terminal, at_terminal

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "transcripts.md"
COMMAND = "python -m rlaunch --nproc_per_node=2 train.py"
LIMIT = 60.0
COLUMNS = 80


@dataclass(frozen=True)
class Bash(Launcher):
    """A shell to launch from; its argument is only `$0`."""

    def command(self, ranks: int, logs: Path) -> list[str]:
        path = f"PATH={logs.parent / 'bin'}:{os.environ['PATH']}"
        shell = ["bash", "--norc", "--noprofile", "--noediting", "-i", "-s"]
        return ["env", "--unset=NO_COLOR", "PS1=$ ", "TERM=xterm", "LC_ALL=C.UTF-8", path, *shell]


class Session:
    """A key sequence, and the output that is waited for before the next one."""

    def __init__(self, job: Job, terminal: Terminal) -> None:
        self.job, self.terminal = job, terminal
        self.read = 0

    def see(self, pattern: str) -> None:
        """Waits for something behind what was seen before."""

        def found() -> bool:
            match = re.compile(pattern.encode(), re.MULTILINE).search(self.terminal.screen, self.read)
            if match:
                self.read = match.end()
            return match is not None

        try:
            until(found, pattern, LIMIT)
        except Exception as error:
            raise AssertionError(f"{error}; the screen: {self.terminal.screen.decode()}") from error

    def enter(self, line: str) -> None:
        self.terminal.press(line.encode() + b"\n")
        self.see(re.escape(line) + "\r\n")

    def launch(self, *options: str) -> None:
        self.see(r"^\$ ")
        self.enter(COMMAND.replace("rlaunch", " ".join(["rlaunch", *options])))
        self.see("epoch 1.*\r\n")  # A key in between would be echoed before the line's end.
        self.job.await_files("ready")

    def ranks(self) -> list[marked.Member]:
        return [member for member in marked.members(self.job.mark) if member.kind == "rank"]

    def end(self) -> None:
        """The status, as a user asks for it."""
        self.see(r"^\$ ")
        self.enter("echo $?")
        self.see(r"^\d+\r\n\$ ")


# --- The scenes. -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    title: str
    text: str
    body: str
    act: Callable[[Session], None]


SCENES: list[Scene] = []


def scene(title: str, text: str, body: str) -> Callable[[Callable[[Session], None]], None]:
    return lambda act: SCENES.append(Scene(title, text, body, act))


EPOCH = """
if rank == 0:
    print("epoch 1: loss 0.53", flush=True)
"""


@scene(
    "A rank fails",
    "Rank 1 raises an exception; rank 0 waits for it.",
    f"""
def step(batch):
    raise ValueError("loss is nan in batch 17")

{EPOCH}
hold()
if rank == 1:
    step(17)
sleep()
""",
)
def fails(session: Session) -> None:
    session.launch()
    session.job.close_gate()


@scene(
    "Ctrl-C",
    "The ranks take a moment to stop.",
    f"""
def save(*_):
    time.sleep(0.2)
    if rank == 0:
        print("checkpoint saved", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
{EPOCH}
hold()
""",
)
def interrupted(session: Session) -> None:
    session.launch()
    session.terminal.press(b"\x03")
    session.see("checkpoint saved")


@scene(
    "Ctrl-C twice",
    "The ranks ignore SIGTERM; a second Ctrl-C, after a pause, kills them before the grace period is over.",
    f"""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{EPOCH}
hold()
""",
)
def interrupted_twice(session: Session) -> None:
    session.launch()
    session.terminal.press(b"\x03")
    session.see("waiting up to .*\r\n")
    time.sleep(2)  # Within 1.5 s it is the same request.
    session.terminal.press(b"\x03")


@scene(
    "Ctrl-Z and fg",
    "The ranks are suspended with the launcher, and `fg` continues them.",
    f"""
{EPOCH}
hold()
if rank == 0:
    print("epoch 2: loss 0.41", flush=True)
""",
)
def suspended(session: Session) -> None:
    session.launch()
    session.terminal.press(b"\x1a")
    session.see(r"Stopped .*\r\n\$ ")
    until(lambda: all(member.state == "T" for member in session.ranks()), "stopped ranks", LIMIT)
    session.enter("fg")
    until(lambda: all(member.state != "T" for member in session.ranks()), "running ranks", LIMIT)
    session.job.close_gate()
    session.see("epoch 2")


@scene("A rank is killed", "Another process sends SIGKILL to rank 1.", f"{EPOCH}\nhold()\n")
def killed(session: Session) -> None:
    session.launch()
    pid = session.job.await_files("ready")[1]
    marked.send(pid, session.job.mark, signal.SIGKILL)


@scene(
    "Leftovers",
    "Rank 0 ends well, but leaves two processes behind, one of them in a session of its own.",
    f"""
import subprocess

{EPOCH}
if rank == 0:
    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)
hold()
os._exit(0)
""",
)
def left(session: Session) -> None:
    session.launch()
    session.job.close_gate()


# --- The page. -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def session(folder: Path, body: str) -> Iterator[Session]:
    """A shell in the foreground of a terminal, whose `python` is this one."""
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{LAUNCHERS["rlaunch"].python}" "$@"\n')
    python.chmod(0o755)
    bash = Bash("bash", "", lambda ranks, logs: [], "", 0)
    with at_terminal(bash, folder, body, size=(24, COLUMNS)) as (job, terminal):
        yield Session(job, terminal)


def record(scene: Scene, colours: bool = False) -> str:
    with tempfile.TemporaryDirectory(prefix="transcript-") as name:
        folder = Path(name).resolve()
        with session(folder, scene.body) as there:
            scene.act(there)
            there.end()
            return normal(there.terminal.screen.decode(), folder, colours)


# Values that differ from run to run, and their placeholders. A sentence that is wrapped at 80 columns is
# wrapped elsewhere when a pid or a host's name is longer, so each is matched as a whole.
COLOURS = (r"\x1b\[[0-9;]*m", "")
FIXED = [
    (r"^(LAUNCH \w+) \S+ \S+ ", r"\1 2026-01-01 12:00:00,000 "),
    (r"Run Pod: \w+", "Run Pod: abcdef"),
    (r"(status ready; devices) .*", r"\1 cpu"),
    (
        r"^  on\s+\S+\s+local\s+rank\s+(\d+),\s+pid\s+\d+,\s+lived\s+[\d.]+\s+\w+(\s+\d+\s+s)?$",
        r"  on node, local rank \1, pid 4242, lived 1.0 s",
    ),
    (r"(train\.py(:|\", line ))\d+", r"\g<1>12"),
]
LIVES = re.compile(r"^(ranks? [\d, ]+(?:was|were|did)\s[^()]*)\(lived[^()]*\)", re.MULTILINE)


def normal(screen: str, folder: Path, colours: bool = False) -> str:
    """The same text for the same scene."""
    text = screen.replace("\r\n", "\n").replace(str(folder), "/home/you/job")
    text = text.replace(LAUNCHERS["rlaunch"].python, "/usr/bin/python")
    for pattern, fixed in FIXED if colours else [COLOURS, *FIXED]:
        text = re.sub(pattern, fixed, text, flags=re.MULTILINE)
    text = LIVES.sub(lambda match: " ".join(match[1].split()) + " (lived 1.0 s)", text)
    return text.removesuffix("\n$ ")


HEAD = """# What a user sees

This page shows what the terminal shows when a job of two ranks fails, is stopped, is suspended or is killed.
Made by `python tests/faults/transcripts.py`; do not edit.

The terminal has 80 columns. `^C` and `^Z` are keys that are pressed. Fixed words replace process ids, times,
paths, the host and the numbers of lines, and colors are left out. Lines that begin with LAUNCH keep Paddle's
texts, in which a pod is a node's launcher and a container is a rank.
"""


def page() -> str:
    parts = [f"## {scene.title}\n\n{scene.text}\n\n```console\n{record(scene)}\n```\n" for scene in SCENES]
    return "\n".join([HEAD, *parts])


# --- The picture. ----------------------------------------------------------------------------------------

PICTURES = {
    DOCS / "images/failed-job-light.svg": DEFAULT_TERMINAL_THEME,
    DOCS / "images/failed-job-dark.svg": SVG_EXPORT_THEME,
}


def fails_with_errors_alone(session: Session) -> None:
    session.launch("--log_level=ERROR")
    session.job.close_gate()


def picture_text() -> str:
    """The scene of the README's picture, with colours."""
    return record(Scene("", "", SCENES[0].body, fails_with_errors_alone), colours=True)


def picture(screen: str, theme: TerminalTheme) -> str:
    """An SVG of a terminal that needs no font but the reader's own."""
    console = Console(
        record=True, file=io.StringIO(), width=COLUMNS, force_terminal=True, color_system="standard"
    )
    for line in Text.from_ansi(screen).split("\n"):
        for row in line.divide(range(COLUMNS, len(line), COLUMNS)):
            console.print(row)
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = form.replace("Fira Code, monospace", "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace")
    svg = console.export_svg(title="a rank fails", theme=theme, code_format=form, unique_id="rlaunch")
    # The window's edge, which has to be seen on a white page too.
    return svg.replace("rgba(255,255,255,0.35)", "rgba(127,127,127,0.5)")


def changes(old: str, new: str) -> str:
    """A diff; empty if there is none."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), "committed", "seen now", lineterm="")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes down what a user sees at a terminal.")
    parser.add_argument("--check", action="store_true", help="write nothing, but tell what has changed")
    args = parser.parse_args()
    if not args.check:
        PAGE.write_text(page())
        screen = picture_text()
        for file, theme in PICTURES.items():
            file.write_text(picture(screen, theme))
        return 0
    diff = changes(PAGE.read_text(), page())
    if diff:
        print(f"{diff}\ntranscripts: docs/transcripts.md is not what is seen; write it anew, or mend what is")
    return int(bool(diff))


if __name__ == "__main__":
    sys.exit(main())
