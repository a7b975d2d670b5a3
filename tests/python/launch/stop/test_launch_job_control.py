"""Job control, as a user has it: an interactive shell on a terminal of its own, Ctrl-Z, fg, bg, kill."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import psutil
import pytest
from launching import LIMIT, Place, await_gone, environment, gone, marked, until

RANKS = 2
# Each rank has a child in its own group, and counts as long as it runs.
COUNTS = """
    import subprocess
    child = subprocess.Popen(["sleep", "600"])
    tell("child", child.pid)
    tell("ready", os.getpid())
    while not os.path.exists("end"):
        tell("count", time.monotonic())
        time.sleep(0.005)
    child.kill()
"""
STUBBORN = "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + COUNTS


class Shell:
    """An interactive bash, and the user at its keyboard."""

    def __init__(self, place: Place, keyboard: int, bash: subprocess.Popen[bytes]) -> None:
        self.place = place
        self.keyboard = keyboard
        self.bash = bash
        self.screen = b""

    def press(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)

    def enter(self, line: str) -> None:
        self.press(line.encode() + b"\n")

    def await_text(self, mark: bytes) -> bytes:
        """The screen before a mark; the next call looks behind it."""
        deadline = time.monotonic() + LIMIT
        while mark not in self.screen:
            assert select.select([self.keyboard], [], [], deadline - time.monotonic())[0], self.screen
            self.screen += os.read(self.keyboard, 65536)
        before, _, self.screen = self.screen.partition(mark)
        return before

    def launch(self, script: str, *options: str) -> None:
        self.place.script(script)
        self.enter(
            f"{shlex.quote(sys.executable)} -m rlaunch {' '.join(options)} --nproc_per_node={RANKS} train.py"
        )
        for rank in range(RANKS):
            until((self.place.folder / f"ready.{rank}").exists, f"rank {rank}")
        pids = [
            int(self.place.text(f"{name}.{rank}")) for name in ("ready", "child") for rank in range(RANKS)
        ]
        self.processes = [psutil.Process(pid) for pid in pids]
        (front,) = (
            child for child in psutil.Process(self.bash.pid).children() if "rlaunch" in child.cmdline()
        )
        self.front = front
        (self.supervisor,) = front.children()

    def stop(self) -> None:
        """Ctrl-Z, until the shell says so and all processes are stopped."""
        self.press(b"\x1a")
        self.await_text(b"Stopped")
        for process in [self.front, *self.processes]:
            until(lambda process=process: process.status() == psutil.STATUS_STOPPED, f"the stop of {process}")

    def await_running(self) -> None:
        """That each rank counts on, and no process is stopped."""
        for rank in range(RANKS):
            before = self.place.text(f"count.{rank}")
            until(lambda rank=rank, before=before: self.place.text(f"count.{rank}") != before, f"rank {rank}")
        for process in [self.front, *self.processes]:
            assert process.status() != psutil.STATUS_STOPPED

    def status(self) -> int:
        """Of the last command; the prompt has to be there."""
        self.enter("echo status=$?.")
        self.await_text(b"status=$?.")  # The keys, as the terminal echoes them.
        self.await_text(b"status=")
        return int(self.await_text(b"."))

    def await_end(self, status: int) -> None:
        """The launcher's last line, and the status that the shell reports."""
        self.await_text(f"Exit code {status}".encode())
        assert self.status() == status


@pytest.fixture
def shell(place: Place, mark: str) -> Iterator[Shell]:
    """When it is left, nothing of the job may live."""
    ours, theirs = pty.openpty()
    bash = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "--noediting", "-i"], cwd=place.folder,
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env=environment(MARK=mark, PS1="$ ", TERM="dumb"),
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
    )  # fmt: skip
    os.close(theirs)
    shell = Shell(place, ours, bash)
    try:
        yield shell
        until(lambda: marked(mark) in ([bash.pid], []), "the end of all but the shell")
    finally:
        bash.kill()
        bash.wait()
        os.close(ours)


@pytest.fixture
def stopped(shell: Shell) -> Shell:
    """With a job that Ctrl-Z has stopped."""
    shell.launch(COUNTS)
    shell.stop()
    return shell


def test_ctrl_z_stops_all_and_fg_continues_them(place: Place, shell: Shell) -> None:
    shell.launch(COUNTS)
    for _ in range(2):
        shell.stop()
        counts = [place.text(f"count.{rank}") for rank in range(RANKS)]
        shell.enter("jobs; echo the $((1)) prompt")
        shell.await_text(b"the 1 prompt")
        assert counts == [place.text(f"count.{rank}") for rank in range(RANKS)]
        shell.enter("fg")
        shell.await_running()
    (place.folder / "end").touch()
    shell.await_end(0)


def test_bg_continues_them_and_fg_brings_them_back_for_ctrl_c(stopped: Shell) -> None:
    stopped.enter("bg")
    stopped.await_running()
    stopped.enter("fg")
    stopped.await_text(b"fg")
    # Only the foreground is reached by Ctrl-C.
    until(lambda: os.tcgetpgrp(stopped.keyboard) == os.getpgid(stopped.front.pid), "the foreground")
    stopped.press(b"\x03")
    stopped.await_text(b"SIGINT: waiting up to 30 s for rank(s) 0, 1")
    stopped.await_end(130)


def test_ctrl_c_after_ctrl_z_and_fg(stopped: Shell) -> None:
    stopped.enter("fg")
    stopped.await_running()
    stopped.press(b"\x03")
    stopped.await_end(130)


def test_a_sigterm_to_a_stopped_launcher_counts_when_it_is_continued(stopped: Shell) -> None:
    """As for every stopped process (signal(7)); no rank is asked to stop while it cannot."""
    stopped.front.send_signal(signal.SIGTERM)
    assert stopped.front.status() == psutil.STATUS_STOPPED
    assert not any(gone(process) for process in stopped.processes)
    stopped.enter("fg")
    stopped.await_text(b"SIGTERM: waiting up to 30 s for rank(s) 0, 1")
    stopped.await_end(143)


def test_kill_of_the_shell_ends_a_stopped_job(stopped: Shell) -> None:
    """bash continues a stopped job that it is asked to kill."""
    stopped.enter("kill %1")
    stopped.await_text(b"Exit code 143")
    await_gone(stopped.front)


def test_a_sigterm_to_the_supervisor_thaws_the_ranks_and_ends_the_job(stopped: Shell) -> None:
    stopped.supervisor.send_signal(signal.SIGTERM)
    await_gone(*stopped.processes, stopped.supervisor)
    stopped.enter("fg")
    stopped.await_end(143)


@pytest.mark.parametrize("victim", ["front", "supervisor"])
def test_a_stopped_launcher_that_is_killed_leaves_nothing(stopped: Shell, victim: str) -> None:
    getattr(stopped, victim).kill()
    await_gone(*stopped.processes)
    if victim == "supervisor":
        stopped.enter("fg")
        stopped.await_text(b"supervisor process ended by signal SIGKILL")


def test_the_grace_does_not_run_while_the_job_sleeps(shell: Shell) -> None:
    shell.launch(STUBBORN, "--grace_period=2")
    shell.press(b"\x03")
    shell.await_text(b"waiting up to 2 s")
    shell.stop()
    # It is time that has to pass here: more than the grace.
    time.sleep(2.5)
    assert not any(gone(process) for process in shell.processes)
    shell.enter("fg")
    shell.await_running()
    shell.await_text(b"sending SIGKILL to rank(s) 0, 1")
    shell.await_end(130)


def test_a_terminal_that_goes_away_ends_a_stopped_job(stopped: Shell) -> None:
    """The shell hangs up its jobs and continues those that are stopped."""
    stopped.bash.send_signal(signal.SIGHUP)
    stopped.bash.wait(LIMIT)
    await_gone(*stopped.processes, stopped.supervisor, stopped.front)
