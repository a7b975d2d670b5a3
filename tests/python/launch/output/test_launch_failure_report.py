"""The failure report: the last block on stderr of a job that failed, from unmodified scripts."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess

import pytest
from launching import Place, await_line, environment
from test_launch_console import read_until


def block(stderr: str) -> list[str]:
    """The lines of the failure report, to the very end of stderr."""
    _, mark, text = stderr.partition("- ERROR LOG DETAIL -------------------------\n")
    assert mark, stderr
    return text.splitlines()


def words(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


RAISES = """
    def load(path):
        raise ValueError(f"no data in {path}")

    if rank == 1:
        for i in range(30):
            print("step", i)
        await_file("ready.0")
        load("shard-7")
    tell("ready")
    sleep()
"""


def test_the_report_names_culprit_exception_last_lines_log_and_victims(place: Place) -> None:
    place.script(RAISES)
    ended = place.run("--nproc_per_node=3", "train.py")
    assert ended.status == 1
    lines = block(ended.stderr)
    assert lines[0] == "rank 1 failed: exit code 1"
    pid = place.result()["ranks"][1]["pid"]
    assert re.fullmatch(rf"  on \S+, local rank 1, pid {pid}, lived \d.*", lines[1])
    assert lines[2] == "  ValueError: no data in shard-7"
    assert re.fullmatch(rf"  at {place.folder}/train.py:\d+ in load", lines[3])
    assert lines[4] == "  its last 20 lines:"
    assert lines[5:25] == [f"  | {line}".rstrip() for line in place.log(1).decode().splitlines()[-20:]]
    assert lines[25] == f"  log: {place.folder}/log/workerlog.1"
    assert re.fullmatch(r"ranks 0, 2 were stopped because of it \(lived .*\)", lines[26])
    assert lines[27:] == ["exit status 1"]
    # The marks that scripts of Paddle's users look for stand before it.
    assert ended.stderr.index("Container failed !!!") < ended.stderr.index("rank 1 failed")


def test_a_rank_that_outlives_the_grace_is_a_victim(place: Place) -> None:
    place.script("""
        if rank == 1:
            await_file("ready.0")
            sys.exit("the reason")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        tell("ready")
        sleep()
    """)
    ended = place.run("--nproc_per_node=2", "--grace_period=3", "train.py")
    assert ended.status == 1
    lines = block(ended.stderr)
    assert "  | the reason" in lines
    assert "rank 0 did not end when asked and was killed" in words(lines)
    # After 2 of the 3 s.
    waiting = "rlaunch: rank 1 failed first, with exit code 1; waiting up to 1 s more for rank(s) 0 to stop\n"
    before, found, _ = ended.stderr.partition(waiting)
    assert found, ended.stderr
    assert "ERROR LOG DETAIL" not in before


# Rank 0 waits in what stands for a collective; its library words are gloo's.
COLLECTIVE = """
    import socket
    if rank == 0:
        server = socket.create_server(("127.0.0.1", 0))
        tell("port", server.getsockname()[1])
        peer, _ = server.accept()
        if not peer.recv(1):
            raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234")
    await_file("port.0")
    peer = socket.create_connection(("127.0.0.1", int(open("port.0").read())))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_rank_that_lost_its_peer_is_never_the_culprit(place: Place) -> None:
    place.script(COLLECTIVE)
    for _ in range(20):
        ended = place.run("--nproc_per_node=2", "train.py")
        assert ended.status == 137, ended.stderr
        lines = block(ended.stderr)
        assert "".join(lines).startswith("rank 1 failed: signal SIGKILL (not sent by rlaunch)")
        # Which comes first, its own end or the launcher's SIGTERM, is open.
        assert re.search(
            r"rank 0 (lost its connection to a dead peer|was stopped because of it)", words(lines)
        )
        (place.folder / "port.0").unlink()


def test_a_sigkill_is_explained(place: Place) -> None:
    place.script("os.kill(os.getpid(), signal.SIGKILL)")
    ended = place.run("train.py")
    lines = block(ended.stderr)
    assert lines[0] == "rank 0 failed: signal SIGKILL (not sent by rlaunch)"
    text = words(lines)
    assert "memory" in text
    assert "it wrote nothing" in text
    assert lines[-1] == "exit status 137"


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGTERM"])
def test_signals_are_named(place: Place, name: str) -> None:
    place.script(f"""
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.{name})
    """)
    ended = place.run("train.py")
    assert ended.status == 128 + signal.Signals[name]
    assert block(ended.stderr)[0].startswith(f"rank 0 failed: signal {name} (")


def test_swept_processes_are_in_the_report(place: Place) -> None:
    place.script("""
        import subprocess
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        sys.exit(3)
    """)
    ended = place.run("train.py")
    assert block(ended.stderr)[-2:] == ["swept 1 leftover process of rank 0 (sleep)", "exit status 3"]


def test_a_stop_from_outside_has_a_failure_report(place: Place) -> None:
    place.script("tell('ready', os.getpid())\nsleep()")
    with place.start("--nproc_per_node=2", "train.py") as launcher:
        place.ready(2)
        launcher.terminate()
        ended = Place.wait(launcher)
    lines = ended.stderr.splitlines()
    assert lines[-3] == "stopped by signal SIGTERM"
    assert re.fullmatch(r"ranks 0, 1 were stopped \(lived .*\)", lines[-2])
    assert lines[-1] == "exit status 143"


def test_a_stop_while_a_restart_is_waited_for_tells_of_the_failure(place: Place) -> None:
    place.script("sys.exit(3)")
    with place.start("--max_restart=2", "--restart_delay=600", "train.py") as launcher:
        await_line(launcher.stderr, b"restart 1")
        launcher.send_signal(signal.SIGINT)
        ended = Place.wait(launcher)
    lines = ended.stderr.splitlines()
    assert lines[-3] == "stopped by signal SIGINT"
    assert re.fullmatch(r"rank 0 failed, with exit code 3 \(lived .*\)", lines[-2])


def test_a_successful_job_has_no_failure_report(place: Place) -> None:
    place.script("print('Traceback (most recent call last):')")
    ended = place.run("train.py")
    assert ended.status == 0
    assert ended.stderr.splitlines()[-1].endswith("Exit code 0")


def test_output_of_a_rank_cannot_steer_the_terminal(place: Place) -> None:
    place.script(r"sys.exit('\x1b]0;title\x07\x1b[2Jred \x1b[31mtext\x1b[0m')")
    ended = place.run("train.py")
    assert "  | red text" in block(ended.stderr)
    assert "\x1b" not in ended.stderr


# --- Colours, silence, GitHub. ---------------------------------------------------------------------------


@pytest.mark.parametrize(("no_colour", "coloured"), [(None, True), ("", True), ("1", False)])
def test_colours_are_for_terminals_whose_users_want_them(
    place: Place, no_colour: str | None, coloured: bool
) -> None:
    place.script("raise ValueError('why')")
    ours, theirs = pty.openpty()
    env = environment(NO_COLOR=no_colour)
    with place.start("train.py", stderr=theirs, stdout=subprocess.DEVNULL, env=env) as launcher:
        os.close(theirs)
        text = read_until(ours)
        Place.wait(launcher)
    os.close(ours)
    headline = b"rank 0 failed: exit code 1"
    assert (b"\x1b[1;31m" + headline + b"\x1b[0m\r\n" in text) == coloured
    assert (b"\r\n" + headline + b"\r\n" in text) != coloured
    assert (b"\x1b" in text) == coloured


@pytest.mark.parametrize("set_to", ["true", "false", ""])
def test_github_gets_an_annotation_on_stdout(place: Place, set_to: str) -> None:
    place.script("print('words')\nraise ValueError('50% of\\n::it')")
    ended = place.run("train.py", env=environment(GITHUB_ACTIONS=set_to))
    said = [line for line in ended.stdout.decode().splitlines() if line.startswith("::error ")]
    if set_to != "true":
        assert said == []
        return
    (line,) = said
    properties, _, message = line.removeprefix("::error ").partition("::")
    assert properties.startswith("title=rank 0 failed%3A exit code 1,file=")
    assert re.search(r"/train\.py,line=\d+$", properties)
    assert message.startswith("ValueError: 50%25 of%0A::it%0A")
    assert message.endswith("%0Aexit status 1")


def test_log_level_critical_prints_nothing(place: Place) -> None:
    place.script("sys.exit(3)")
    ended = place.run("--log_level=CRITICAL", "train.py")
    assert (ended.status, ended.stderr) == (3, "")
