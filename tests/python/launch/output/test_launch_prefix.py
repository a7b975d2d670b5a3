"""A console that several ranks share: the ranks that it shows, the prefix of their lines, whole lines."""

from __future__ import annotations

import os
import platform
import pty
import re

import pytest
from launching import Place, await_line, environment, until
from test_launch_console import read_until

MEBI = 1 << 20
ALL = ("--nproc_per_node=2", "--console_ranks=all")
HOST = platform.node()


def hello(place: Place, *args: str, ranks: int = 3, **changes: str) -> list[str]:
    place.script("print(f'rank {rank} here')")
    ended = place.run(f"--nproc_per_node={ranks}", *args, "train.py", env=environment(**changes))
    assert ended.status == 0, ended.stderr
    return sorted(ended.stdout.decode().splitlines())


@pytest.mark.parametrize(
    ("chosen", "ranks"),
    [
        ("all", [0, 1, 2]),
        ("0,2", [0, 2]),
        (" 2 , 0 ", [0, 2]),
        ("1,1,2", [1, 2]),
        ("none", []),
        ("", []),
        ("1,7", [1]),
    ],
)
def test_the_chosen_ranks_are_shown_and_all_are_logged(place: Place, chosen: str, ranks: list[int]) -> None:
    prefix = chosen in ("all", "0,2", " 2 , 0 ", "1,1,2")
    assert hello(place, f"--console_ranks={chosen}") == [
        f"[rank {rank}] rank {rank} here" if prefix else f"rank {rank} here" for rank in ranks
    ]
    assert [place.log(rank) for rank in range(3)] == [f"rank {rank} here\n".encode() for rank in range(3)]


def test_a_variable_chooses_too(place: Place) -> None:
    shown = hello(place, RLAUNCH_CONSOLE_RANKS="1,2", RLAUNCH_LOG_PREFIX="none")
    assert [line for line in shown if "LAUNCH WARNING" not in line] == ["rank 1 here", "rank 2 here"]


@pytest.mark.parametrize(
    "option",
    [
        "--console_ranks=x",
        "--console_ranks=1,,2",
        "--console_ranks=-1",
        "--console_ranks=1-3",
        "--log_prefix=x",
        "--pty=x",
    ],
)
def test_unreadable_console_options_are_refused(place: Place, option: str) -> None:
    place.script("tell('ready')")
    ended = place.run(option, "train.py")
    assert ended.status == 2
    (line,) = ended.error_lines()
    assert line.startswith(f"rlaunch: error: {option.replace('=', ' ')}: is not a ")
    assert "; give " in line
    assert place.names() == {"train.py"}


@pytest.mark.parametrize(
    ("prefix", "before"),
    [
        ("none", ""), ("rank", "[rank 1] "), ("host", f"[{HOST}] "), ("rank,host", f"[rank 1 {HOST}] "),
        ("host,rank", f"[rank 1 {HOST}] "), ("auto", ""),
    ],
)  # fmt: skip
def test_the_prefix_of_one_rank(place: Place, prefix: str, before: str) -> None:
    assert hello(place, "--console_ranks=1", f"--log_prefix={prefix}") == [f"{before}rank 1 here"]


# --- Whole lines. ----------------------------------------------------------------------------------------


def test_lines_of_ranks_that_write_at_once_never_mix(place: Place) -> None:
    place.script("""
        tell("ready")
        await_file("go")
        # In pieces that end anywhere but at the end of a line.
        text = b"".join(b"%d/%d %s\\n" % (rank, i, b"x" * (i % 97)) for i in range(2000))
        for at in range(0, len(text), 61 + rank):
            os.write(1, text[at : at + 61 + rank])
    """)
    with place.start("--nproc_per_node=8", "--console_ranks=all", "train.py") as launcher:
        until(lambda: all((place.folder / f"ready.{rank}").exists() for rank in range(8)), "all ranks")
        (place.folder / "go").touch()
        ended = Place.wait(launcher)
    assert ended.status == 0
    lines = ended.stdout.decode().splitlines()
    for rank in range(8):
        own = [line for line in lines if line.startswith(f"[rank {rank}] ")]
        assert own == [f"[rank {rank}] {rank}/{i} {'x' * (i % 97)}" for i in range(2000)]
    assert len(lines) == 8 * 2000


def shown_by(place: Place, payload: bytes, *args: str, env: dict[str, str] | None = None) -> bytes:
    """The lines of rank 0 on a shared console; its log has all of them, and rank 1 has a line of its own."""
    (place.folder / "payload").write_bytes(payload)
    place.script("""
        if rank == 0:
            os.write(1, open("payload", "rb").read())
        else:
            print("done")
    """)
    ended = place.run(*ALL, *args, "train.py", env=env)
    assert ended.status == 0
    assert place.log() == payload
    lines = ended.stdout.splitlines(True)
    assert lines.count(b"[rank 1] done\n") == 1
    return b"".join(line for line in lines if line != b"[rank 1] done\n")


ESC = b"\x1b"


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b"a\nb", b"[rank 0] a\n[rank 0] b\n"),
        (b"\n\n", b"[rank 0] \n[rank 0] \n"),
        (b"one\r\ntwo\r\n", b"[rank 0] one\n[rank 0] two\n"),
        (b"\r".join(b"%d%%" % i for i in range(101)) + b"\nend\n", b"[rank 0] 100%\n[rank 0] end\n"),
        (b"\r".join(b"%d%%" % i for i in range(101)), b"[rank 0] 100%\n"),
        (b"bad \xff\xfe utf-8 \xc3\n", b"[rank 0] bad \xff\xfe utf-8 \xc3\n"),
        ("né 漢 🙂\n".encode(), "[rank 0] né 漢 🙂\n".encode()),
        (b"red " + ESC + b"[31mtext" + ESC + b"[0m\n", b"[rank 0] red text\n"),
        (b"a" + ESC + b"[2J" + ESC + b"[H" + ESC + b"]0;title\x07b\n", b"[rank 0] ab\n"),
        (b"bell\x07 back\x08 null\0\n", b"[rank 0] bell back null\n"),
        (b"[rank 1] forged\n", b"[rank 0] [rank 1] forged\n"),
        (b"", b""),
    ],
)
def test_bytes_that_a_shared_console_shows(place: Place, payload: bytes, shown: bytes) -> None:
    assert shown_by(place, payload) == shown


def test_lines_of_a_megabyte_stay_behind_their_prefix(place: Place) -> None:
    """Beyond 64 KiB in pieces, each a line of its own."""
    place.script("""
        for i in range(3):
            os.write(1, bytes([97 + 3 * rank + i]) * (1 << 20) + b"\\n")
    """)
    ended = place.run(*ALL, "train.py")
    assert ended.status == 0
    lines = ended.stdout.splitlines()
    for rank in (0, 1):
        before = b"[rank %d] " % rank
        own = [line.removeprefix(before) for line in lines if line.startswith(before)]
        assert b"".join(own) == b"".join(bytes([97 + 3 * rank + i]) * MEBI for i in range(3))
        assert len(own) == 3 * 16
        assert {len(set(line)) for line in own} == {1}, "a piece has two lines"
    assert len(lines) == 2 * 3 * 16


@pytest.mark.parametrize("no_colour", [None, "1"])
def test_colours_on_a_terminal_end_with_their_line(place: Place, no_colour: str | None) -> None:
    place.script("""
        os.write(1, b"\\x1b[31mred, left open\\n") if rank == 0 else None
        os.write(1, b"clear\\x1b[2J\\n") if rank == 1 else None
    """)
    ours, theirs = pty.openpty()
    with place.start(*ALL, "train.py", stdout=theirs, env=environment(NO_COLOR=no_colour)) as launcher:
        os.close(theirs)
        text = read_until(ours)
        Place.wait(launcher)
    os.close(ours)
    red = b"red, left open" if no_colour else ESC + b"[31mred, left open" + ESC + b"[0m"
    assert sorted(text.splitlines()) == sorted([b"[rank 0] " + red, b"[rank 1] clear"])


# --- A console that takes nothing. -----------------------------------------------------------------------


def test_an_unread_shared_console_slows_no_rank_and_keeps_no_launcher(place: Place) -> None:
    place.script("""
        for i in range(20_000):
            os.write(1, b"%d/%d %s\\n" % (rank, i, b"x" * 100))
        tell("ready", os.getpid())
        await_file("end")
    """)
    with place.start("--nproc_per_node=4", "--console_ranks=all", "train.py") as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        place.ready(4)
        (place.folder / "end").touch()
        until(lambda: launcher.poll() is not None, "the launcher's end")
        warning = launcher.stderr.read().decode()
        shown = read_until(launcher.stdout.fileno())
    assert launcher.returncode == 0
    match = re.search(
        r"the console did not take (\d+) bytes of output in time; they are only in the logs in (\S+)", warning
    )
    assert match, warning
    assert match[2] == f"{place.folder}/log"
    logs = [place.log(rank) for rank in range(4)]
    assert all(log.count(b"\n") == 20_000 for log in logs)
    assert 0 < int(match[1]) <= sum(map(len, logs)) + 4 * 20_000 * len("[rank 0] ")
    whole = shown.splitlines()[:-1]
    assert all(re.fullmatch(rb"\[rank (\d)\] \1/\d+ x{100}", line) for line in whole)


def test_a_prompt_and_a_progress_bar_are_seen_before_their_line_ends(place: Place) -> None:
    """Behind a prefix too, where only whole lines are shown: after a second each is one as it stands."""
    place.script(
        """
        if rank == 0:
            sys.stdout.write("continue? ")
            sys.stdout.flush()
            await_file("answered")
            print("yes", flush=True)
        else:
            for step in range(30):
                sys.stdout.write(f"\\r{step} of 30")
                sys.stdout.flush()
            await_file("seen")
            print("\\rall of 30", flush=True)
        """
    )
    with place.start("--nproc_per_node=2", "--console_ranks=all", "train.py") as launcher:
        first = {await_line(launcher.stdout, b"]"), await_line(launcher.stdout, b"]")}
        assert first == {b"[rank 0] continue? \n", b"[rank 1] 29 of 30\n"}
        (place.folder / "answered").touch()
        assert await_line(launcher.stdout, b"]") == b"[rank 0] yes\n"
        (place.folder / "seen").touch()
        ended = place.wait(launcher)
    assert ended.status == 0
    assert ended.stdout == b"[rank 1] all of 30\n"
    assert place.log().startswith(b"continue? yes\n"), "the log has it as it was written"
