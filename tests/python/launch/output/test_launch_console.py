"""The console: every byte of local rank 0, in order; and whatever becomes of it, the job is not slowed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pty
import select
import shlex
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from launching import LIMIT, Place, await_line, environment, gone, unshare_users, until
from torch_launching import TorchPlace

MEBI = 1 << 20


def read_until(fd: int, mark: bytes | None = None) -> bytes:
    """The bytes from a descriptor until it ends, or until a mark has come."""
    data = b""
    deadline = time.monotonic() + LIMIT
    while mark is None or mark not in data:
        assert select.select([fd], [], [], deadline - time.monotonic())[0], data[-500:]
        try:
            piece = os.read(fd, MEBI)
        except OSError:  # A terminal whose other side is closed.
            break
        if not piece:
            break
        data += piece
    return data


PAYLOADS = {
    "every byte": bytes(range(256)) * 40,
    "no newline at the end": b"a\nb",
    "a lone newline": b"\n",
    "cut in a character": "né".encode()[:-1],
    "no utf-8": b"partial \xff\xfe\x80 END\nafter\n",
    "progress bar": b"".join(b"\r%3d%%" % i for i in range(101)),
    "nul bytes": b"\0" * 5000 + b"\n",
    "crlf": b"one\r\ntwo\r\n",
    "one long line": b"x" * (3 * MEBI) + b"\n",
    "many lines": b"".join(b"%d\n" % i for i in range(100_000)),
    "nothing": b"",
}


@pytest.mark.parametrize("what", PAYLOADS)
def test_stdout_is_byte_for_byte_the_output_of_rank_0(place: Place, what: str) -> None:
    payload = PAYLOADS[what]
    (place.folder / "payload").write_bytes(payload)
    place.script("""
        data = open("payload", "rb").read() if rank == 0 else b"only in its log"
        sys.stdout.buffer.write(data)
    """)
    before = b"from an earlier run \xff"
    (place.folder / "log").mkdir()
    (place.folder / "log" / "workerlog.0").write_bytes(before)
    ended = place.run("--nproc_per_node=2", "train.py")
    assert ended.status == 0
    assert ended.stdout == payload
    assert place.log() == before + payload
    assert place.log(1) == b"only in its log"


def test_stdout_and_stderr_of_the_rank_come_in_the_order_written(place: Place) -> None:
    place.script("""
        import subprocess
        for i in range(2000):
            (sys.stdout, sys.stderr)[i % 2].write(f"{i}\\n")
            (sys.stdout, sys.stderr)[i % 2].flush()
        subprocess.run(["sh", "-c", "echo from a child; echo and its stderr >&2"])
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    ended = place.run("train.py")
    assert ended.status == 128 + signal.SIGKILL
    lines = [str(i) for i in range(2000)]
    assert ended.stdout.decode().splitlines() == [*lines, "from a child", "and its stderr"]


BIG = """
    import hashlib
    block = bytes(range(256)) * 4096
    digest = hashlib.sha256()
    for i in range(50):
        data = block[i:] + block[:i]
        digest.update(data)
        os.write(1, data)
    tell("digest", digest.hexdigest())
"""


@pytest.mark.parametrize("through", ["pipe", "file"])
def test_fifty_megabytes_arrive(place: Place, through: str) -> None:
    place.script(BIG)
    if through == "pipe":
        ended = place.run("train.py")
        shown = ended.stdout
    else:
        with (place.folder / "out").open("wb") as out:
            ended = place.run("train.py", stdout=out)
        shown = (place.folder / "out").read_bytes()
    assert ended.status == 0
    assert len(shown) == 50 * MEBI
    assert hashlib.sha256(shown).hexdigest() == place.text("digest.0")
    assert place.log() == shown


def test_output_is_shown_as_it_comes(place: Place) -> None:
    place.script("""
        for i in range(3):
            sys.stdout.write(f"step {i} ")
            await_file(f"seen {i}")
    """)
    with place.start("train.py") as launcher:
        assert launcher.stdout is not None
        for i in range(3):
            assert read_until(launcher.stdout.fileno(), b" %d " % i) == b"step %d " % i
            (place.folder / f"seen {i}").touch()
        assert Place.wait(launcher).status == 0


def test_a_file_takes_both_the_ranks_bytes_and_the_launchers_messages(place: Place) -> None:
    place.script("print('x' * 100_000)")
    path = place.folder / "both"
    path.write_text("before\n")
    with path.open("ab") as both:
        ended = place.run("train.py", stdout=both, stderr=subprocess.STDOUT)
    text = path.read_text()
    assert ended.status == 0
    assert text.startswith("before\n")
    assert text.count("x" * 100_000 + "\n") == 1
    assert text.count("LAUNCH INFO") == text.count("\n") - 2
    assert text.endswith("Exit code 0\n")


# --- A console that takes nothing, or goes away. ---------------------------------------------------------

WRITE_A_LOT = """
    for i in range(10):
        os.write(1, bytes([65 + i]) * (1 << 20))
    tell("ready", os.getpid())
    await_file("end")
"""
A_LOT = b"".join(bytes([65 + i]) * MEBI for i in range(10))


def test_an_unread_stdout_slows_no_rank_and_keeps_no_launcher(place: Place) -> None:
    place.script(WRITE_A_LOT)
    with place.start("--nproc_per_node=2", "train.py") as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        place.ready(2)
        (place.folder / "end").touch()
        until(lambda: launcher.poll() is not None, "the launcher's end")
        warning = launcher.stderr.read().decode()
        shown = read_until(launcher.stdout.fileno())
    assert launcher.returncode == 0
    assert A_LOT.startswith(shown)
    missing = f"{len(A_LOT) - len(shown)} bytes of output in time"
    assert f"{missing}; they are only in {place.folder}/log/workerlog.0\n" in warning
    assert place.log() == place.log(1) == A_LOT


@pytest.mark.parametrize("end", ["by itself", "by a signal", "by a failure"])
def test_an_unread_pipe_for_stderr_too_keeps_no_launcher(place: Place, end: str) -> None:
    place.script(WRITE_A_LOT + "    sys.exit(3 * (rank == 1 and os.path.exists('fail')))")
    with place.start("--nproc_per_node=2", "train.py", stderr=subprocess.STDOUT) as launcher:
        ranks = place.ready(2)
        if end == "by a signal":
            launcher.send_signal(signal.SIGTERM)
            for process in ranks:
                until(lambda process=process: gone(process), "a rank's end")
        elif end == "by a failure":
            (place.folder / "fail").touch()
        (place.folder / "end").touch()
        status = {"by itself": 0, "by a signal": 143, "by a failure": 3}[end]
        until(lambda: launcher.poll() is not None, "the launcher's end")
    assert launcher.returncode == status


def test_a_reader_that_is_slow_gets_everything(place: Place) -> None:
    place.script(WRITE_A_LOT)
    with place.start("train.py") as launcher:
        assert launcher.stdout is not None
        (rank,) = place.ready(1)
        (place.folder / "end").touch()
        until(lambda: gone(rank), "the rank's end")
        shown = b""
        while piece := os.read(launcher.stdout.fileno(), 37 * 1024):
            shown += piece
        assert Place.wait(launcher).status == 0
    assert shown == A_LOT


@pytest.mark.parametrize(
    ("front_end", "options", "where"),
    [
        (Place, ["--console_drain_timeout=0.3"], ""),
        (TorchPlace, ["-t1", "--log-dir=log", "--console-drain-timeout=0.3"], "the logs in "),
    ],
)
def test_a_slow_console_holds_the_end_only_so_long(
    tmp_path: Path, front_end: type[Place], options: list[str], where: str
) -> None:
    place = front_end(tmp_path)
    place.script(WRITE_A_LOT)
    with place.start(*options, "train.py") as launcher:
        assert launcher.stdout is not None
        place.ready(1)
        (place.folder / "end").touch()
        end, shown = os.pidfd_open(launcher.pid), b""
        # 10 MiB of it would take a minute; a piece now and then keeps the console from being given up.
        while not select.select([end], [], [], 0.02)[0]:
            shown += os.read(launcher.stdout.fileno(), 4096)
        os.close(end)
        ended = Place.wait(launcher)
    assert (ended.status, len(shown + ended.stdout) < len(A_LOT)) == (0, True)
    assert f"bytes of output in time; they are only in {where}{place.folder}/log/" in ended.stderr


def test_a_log_that_is_emptied_is_shown_from_its_beginning(place: Place) -> None:
    """As `tail -f` does it; and a failure is explained by what is in it then."""
    place.script("""
        print("before " * 1000, flush=True)
        await_file("go")
        os.truncate("log/workerlog.0", 0)
        print("after", flush=True)
        await_file("end")
        raise RuntimeError("in the end")
    """)
    with place.start("train.py") as launcher:
        await_line(launcher.stdout, b"before")
        (place.folder / "go").touch()
        assert await_line(launcher.stdout, b"after") == b"after\n"
        (place.folder / "end").touch()
        ended = place.wait(launcher)
    assert ended.status == 1
    assert ended.stdout.endswith(b"RuntimeError: in the end\n")
    assert "  all it wrote:\n  | after\n" in ended.stderr


@pytest.mark.parametrize("redirect", ["", "2>&1"])
def test_head_ends_no_job(place: Place, redirect: str) -> None:
    place.script("""
        for i in range(1000):
            print("line", i)
        await_file("end")
        print("after")
    """)
    # The launcher is held back by the rank, and the rank by `end`, until head has gone.
    python = shlex.quote(sys.executable)
    line = f"exec 3< <({python} -m rlaunch train.py {redirect}; echo $? > status); head -1 <&3; "
    line += "exec 3<&-; touch end"
    done = subprocess.run(
        ["bash", "-c", line], cwd=place.folder, env=environment(), capture_output=True, timeout=LIMIT
    )
    status = place.folder / "status"
    until(lambda: status.exists() and status.read_text(), "the launcher's end")
    assert status.read_text() == "0\n", done.stderr.decode()
    assert len(done.stdout.splitlines()) == 1
    assert place.log().endswith(b"line 999\nafter\n")
    assert b"Traceback" not in done.stderr


def test_a_failure_that_stdout_did_not_show_is_shown_on_stderr(place: Place) -> None:
    place.script("print('hello'); await_file('end'); print('.' * 100_000); sys.exit('the cause')")
    with place.start("train.py") as launcher:
        assert launcher.stdout is not None
        read_until(launcher.stdout.fileno(), b"hello\n")
        launcher.stdout.close()
        launcher.stdout = None
        (place.folder / "end").touch()
        ended = Place.wait(launcher)
    assert ended.status == 1
    assert "\n  | the cause\n" in ended.stderr


def no_inotify() -> None:
    """As if all inotify instances of the user were taken; only for this process, between fork and exec."""
    unshare_users()
    Path("/proc/sys/user/max_inotify_instances").write_text("0")


def test_a_console_without_inotify_shows_lines_while_ranks_run(place: Place) -> None:
    place.script("""
        for number in range(3):
            print("line", number, flush=True)
            await_file(f"go-{number}")
    """)
    with place.start("train.py", preexec_fn=no_inotify) as launcher:
        assert launcher.stdout is not None
        for number in range(3):
            # Its rank cannot end before each has been seen.
            assert read_until(launcher.stdout.fileno(), b"\n") == f"line {number}\n".encode()
            (place.folder / f"go-{number}").touch()
        assert place.wait(launcher).status == 0


def test_a_console_without_inotify_shows_everything_too(place: Place) -> None:
    place.script("print('hello')")
    ended = place.run("train.py", preexec_fn=no_inotify)
    assert (ended.status, ended.stdout) == (0, b"hello\n"), ended.stderr


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_full_disk_under_the_console_ends_no_job(place: Place, stream: str) -> None:
    place.script("print('hello'); sys.exit(5)")
    with open("/dev/full", "wb") as full:
        ended = place.run("train.py", **{stream: full})
    assert ended.status == 5, ended.stderr
    assert place.log() == b"hello\n"


@pytest.mark.parametrize("fds", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
def test_closed_standard_descriptors_do_no_harm(place: Place, fds: tuple[int, ...]) -> None:
    place.script("""
        tell("ready", os.getpid())
        # As signal numbers, these would stop the job.
        os.write(1, bytes([15, 2, 1, 9, 104, 10]))
        os.write(2, b"err")
        await_file("end")
    """)

    def close() -> None:
        for fd in fds:
            os.close(fd)

    with place.start("--nproc_per_node=2", "train.py", preexec_fn=close) as launcher:
        place.ready(2)
        (place.folder / "end").touch()
        ended = Place.wait(launcher)
    assert ended.status == 0, ended.stderr
    payload = bytes([15, 2, 1, 9, 104, 10]) + b"err"
    assert ended.stdout == (b"" if 1 in fds else payload)
    assert ("Exit code 0" in ended.stderr) == (2 not in fds)
    for rank in range(2):
        assert place.log(rank) == payload


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["--dry_run", "train.py"], ["--nope"]])
def test_closed_standard_descriptors_do_no_harm_to_commands_that_run_nothing(
    place: Place, args: list[str]
) -> None:
    place.script("")
    ended = place.run(*args, preexec_fn=lambda: os.closerange(0, 3))
    assert (ended.status, ended.stdout, ended.stderr) == (2 if args == ["--nope"] else 0, b"", "")


@pytest.mark.parametrize("fds", [(1,), (0, 1), (0, 1, 2)])
def test_a_launcher_without_stdout_still_takes_its_ranks_along(place: Place, fds: tuple[int, ...]) -> None:
    place.script("""
        import subprocess
        tell("child", subprocess.Popen(["sleep", "600"]).pid)
        tell("ready", os.getpid())
        sleep()
    """)
    with place.start("train.py", preexec_fn=lambda: [os.close(fd) for fd in fds] and None) as launcher:
        (rank,) = place.ready(1)
        child = psutil.Process(int(place.text("child.0")))
        launcher.kill()
        for process in (rank, child):
            until(lambda process=process: gone(process), "the end of what belonged to the rank")


# --- Terminals and sockets. ------------------------------------------------------------------------------


def open_pty() -> tuple[int, int]:
    ours, theirs = pty.openpty()
    mode = termios.tcgetattr(theirs)
    mode[1] &= ~termios.OPOST  # Newlines as they are.
    termios.tcsetattr(theirs, termios.TCSANOW, mode)
    return ours, theirs


def open_socket() -> tuple[int, int]:
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


def nonblocking(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK)


@pytest.mark.parametrize("kind", [os.pipe, open_pty, open_socket])
def test_the_callers_description_stays_blocking(place: Place, kind: Callable[[], tuple[int, int]]) -> None:
    ours, theirs = kind()
    place.script("print('x' * 300_000); await_file('end'); print('.')")
    options: dict[str, Any] = {"stdout": theirs, "stderr": theirs}
    if kind is open_pty:
        options["stdin"] = theirs
    with place.start("train.py", **options) as launcher:
        data = read_until(ours, b"x" * 200_000)
        assert not nonblocking(theirs)
        (place.folder / "end").touch()
        data += read_until(ours, b"Exit code 0\n")
        until(lambda: launcher.poll() is not None, "the launcher's end")
        assert not nonblocking(theirs)
    assert launcher.returncode == 0
    shown = b"".join(line for line in data.splitlines(True) if not line.startswith(b"LAUNCH INFO"))
    assert shown == place.log()
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("kind", [open_pty, open_socket])
def test_a_terminal_or_socket_that_goes_away_ends_no_job(
    place: Place, kind: Callable[[], tuple[int, int]]
) -> None:
    ours, theirs = kind()
    place.script("print('hello'); await_file('end'); print('x' * 300_000)")
    with place.start("train.py", stdout=theirs) as launcher:
        os.close(theirs)
        read_until(ours, b"hello\n")
        os.close(ours)
        (place.folder / "end").touch()
        assert Place.wait(launcher).status == 0
    assert place.log() == b"hello\n" + b"x" * 300_000 + b"\n"
