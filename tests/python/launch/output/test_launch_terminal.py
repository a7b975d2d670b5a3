"""At a terminal, so is the rank that it shows: bars are live, and logs and reports have them too."""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path

import pytest
from launching import Place, until
from screen import COLUMNS, at_terminal
from torch_launching import TorchPlace

FRONT_ENDS = [Place, TorchPlace]


def log_of(place: Place, rank: int = 0) -> bytes:
    """The log of a rank, or what the launcher captured of it."""
    if isinstance(place, TorchPlace):
        (log,) = (place.folder / "log").glob(f"*/rlaunch/attempt_0/{rank}/output.log")
        return log.read_bytes()
    return place.log(rank)


BARS = {
    "tqdm": """
        from tqdm import tqdm
        for step in tqdm(range(3), mininterval=0, disable=rank != 0):
            await_file(f"go {step}")
    """,
    "rich": """
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress
        columns = BarColumn(bar_width=None), MofNCompleteColumn()
        console = Console(stderr=os.environ.get("RICH") == "stderr")
        with Progress(*columns, console=console, expand=True, disable=rank != 0) as progress:
            for step in progress.track(range(3), update_period=0.01):
                await_file(f"go {step}")
    """,
}


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("library", BARS)
def test_a_bar_is_one_line_as_wide_as_the_terminal(
    tmp_path: Path, library: str, front_end: type[Place]
) -> None:
    place = front_end(tmp_path)
    place.script(textwrap.dedent(BARS[library]) + "if rank == 0:\n    raise RuntimeError('in the end')\n")
    stream = "stderr" if front_end is TorchPlace else "stdout"
    with at_terminal(place, "--nproc-per-node=2", "--log-dir=log", "train.py", RICH=stream) as window:

        def bars() -> list[str]:
            return [line for line in window.lines() if re.search(r"\d/3( \[|$)", line)]

        for step in range(3):
            window.show_until(lambda step=step: any(f"{step}/3" in bar for bar in bars()))
            assert len(bars()) == 1
            assert len(bars()[0]) >= COLUMNS - 1
            (place.folder / f"go {step}").touch()
        assert window.show_all() == 1
    report = "\n".join(window.lines()).partition(
        "Root Cause" if front_end is TorchPlace else "ERROR LOG DETAIL"
    )[2]
    assert "RuntimeError: in the end" in report
    # The report of torchrun's front end does not repeat what stands above it.
    assert report.count("3/3") == (0 if front_end is TorchPlace else 1)
    assert not re.search("[012]/3", report)
    log = log_of(place)
    assert all(b"%d/3" % step in log for step in range(4))
    assert log.endswith(b"RuntimeError: in the end\n")


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_the_window_size_follows(tmp_path: Path, front_end: type[Place]) -> None:
    place = front_end(tmp_path)
    place.script("""
        def await_columns(columns):
            deadline = time.monotonic() + 60
            while os.get_terminal_size(2).columns != columns:
                assert time.monotonic() < deadline, os.get_terminal_size(2)
                time.sleep(0.005)
            tell(f"has {columns}")
        await_columns(90)
        await_columns(77)
    """)
    with at_terminal(place, "train.py") as window:
        until((place.folder / "has 90.0").exists, "the size at the start")
        window.resize(77)
        assert window.show_all() == 0
    assert (place.folder / "has 77.0").exists()


def test_every_byte_reaches_the_log_and_the_terminal(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.script("""
        for _ in range(200):
            sys.stdout.buffer.write(bytes(range(256)) * 4)
        sys.stdout.flush()
    """)
    payload = bytes(range(256)) * 800
    with at_terminal(place, "train.py") as window:
        assert window.show_all() == 0
    assert place.log() == payload
    assert payload.replace(b"\n", b"\r\n") in window.received


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_stopped_screen_stops_no_rank(tmp_path: Path, front_end: type[Place]) -> None:
    place = front_end(tmp_path)
    place.script("""
        await_file("go")
        for i in range(1000):
            print(f"{i:6}" + "x" * 1000, file=sys.stderr)
        tell("ready", os.getpid())
        await_file("end")
    """)
    with at_terminal(place, "--log-dir=log", "train.py") as window:
        window.press(b"\x13")
        (place.folder / "go").touch()
        place.ready(1)
        until(lambda: len(log_of(place)) == 1007 * 1000, "the whole log")
        window.press(b"\x11")
        window.show_until(lambda: b"   999xxx" in window.received)
        (place.folder / "end").touch()
        assert window.show_all() == 0
    assert all(b"\n%6dx" % i in window.received for i in range(1, 1000))


TELL = """
    print(f"rank {rank}: {[os.isatty(fd) for fd in range(3)]}", file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("front_end", "args", "stdout", "stderr"),
    [
        (Place, [], True, True),
        (Place, ["--pty=never"], False, False),
        (Place, ["--log_prefix=rank"], False, False),
        (TorchPlace, [], True, True),
        (TorchPlace, ["--pty=never"], True, False),
        (TorchPlace, ["--tee=0:2"], True, False),
    ],
)
def test_a_rank_is_at_a_terminal_where_its_bytes_are_shown(
    tmp_path: Path, front_end: type[Place], args: list[str], stdout: bool, stderr: bool
) -> None:
    place = front_end(tmp_path)
    place.script(TELL)
    with at_terminal(place, *args, "train.py") as window:
        assert window.show_all() == 0
    assert f"rank 0: [True, {stdout}, {stderr}]" in "\n".join(window.lines())


def test_several_ranks_of_torchrun_have_a_terminal_each(tmp_path: Path) -> None:
    place = TorchPlace(tmp_path)
    place.script(TELL)
    with at_terminal(place, "--nproc-per-node=2", "--log-dir=log", "train.py") as window:
        assert window.show_all() == 0
    for rank in range(2):
        assert f"rank {rank}: [True, True, True]" in window.lines()
    assert [log_of(place, rank) for rank in range(2)] == [
        b"rank %d: [True, True, True]\n" % rank for rank in range(2)
    ]


def test_a_rank_of_torchrun_reads_what_is_typed(tmp_path: Path) -> None:
    place = TorchPlace(tmp_path)
    place.script("""
        print("hello", input("name? "))
        breakpoint()
        print("on")
    """)
    with at_terminal(place, "train.py") as window:
        for prompt, keys in (
            (b"name? ", b"you\n"),
            (b"hello you", b""),
            (b"(Pdb) ", b"p 6 * 7\n"),
            (b"42", b"c\n"),
        ):
            window.show_until(lambda prompt=prompt: prompt in window.received)
            window.press(keys)
        assert window.show_all() == 0
    assert "on" in window.lines()


def test_a_process_outside_the_job_that_keeps_the_terminal_open_delays_no_end(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.script("print('hello'); tell('ready', os.getpid()); await_file('end'); print('bye')")
    with at_terminal(place, "train.py") as window:
        (rank,) = place.ready(1)
        kept = os.open(f"/proc/{rank.pid}/fd/1", os.O_WRONLY | os.O_NOCTTY)
        (place.folder / "end").touch()
        assert window.show_all() == 0
        with pytest.raises(OSError, match="Input/output error"):
            os.write(kept, b"not read")
        os.close(kept)
    assert place.log() == b"hello\nbye\n"


def test_a_restarted_rank_has_a_terminal_again(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.script("print(f'{os.isatty(1)} ' * 100_000, flush=True); sys.exit(3)")
    with at_terminal(
        place, "--max_restart=1", "--restart_delay=0", "--log_max_size=1M", "train.py"
    ) as window:
        assert window.show_all() == 3
    logs = [place.log(), (place.folder / "log/rlaunch/attempt-0/workerlog.0").read_bytes()]
    assert logs == [b"True " * 100_000 + b"\n"] * 2


def test_a_message_of_the_launcher_does_not_continue_a_bar(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.script("sys.stdout.write('  5%|##'); sys.stdout.flush(); await_file('end')")
    with at_terminal(place, "train.py") as window:
        window.show_until(lambda: "  5%|##" in window.lines())
        window.press(b"\x03")
        assert window.show_all() == 130
    (after,) = (window.lines()[line + 1] for line, text in enumerate(window.lines()) if "  5%|##" in text)
    assert after.startswith("rlaunch: SIGINT: ")


def test_a_killed_bar_leaves_a_usable_terminal(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.script("""
        sys.stdout.write("\\033[?25l\\033[31m  5%|##")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    with at_terminal(place, "train.py") as window:
        assert window.show_all() == 137
    assert not window.screen.cursor.hidden
    assert "  5%|##" in window.lines()
    assert window.screen.buffer[window.lines().index("  5%|##") + 1][0].fg == "default"
