"""Senders of the stop matrix that this machine has: each stops a job the way its users do."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import marked
import psutil
from job import namespaces, until
from kernel import Notebook
from stop_cell import LIMIT, StopCell, sender
from terminal import Terminal

BIN = Path(sys.executable).parent


@sender("kill", "`kill`", "SIGTERM to the launcher.")
def kill(job: StopCell) -> None:
    launcher = job.start()
    job.await_ready()
    job.sends()
    launcher.send_signal(signal.SIGTERM)
    job.await_status(launcher)


@sender("rlaunch-stop", "`rlaunch stop`", "The command, with the launcher's process id.", ours_alone=True)
def rlaunch_stop(job: StopCell) -> None:
    launcher = job.start()
    job.await_ready()
    job.sends()
    job.start(BIN / "rlaunch", "stop", str(launcher.pid))
    job.await_status(launcher)


@sender("ctrl-c", "Ctrl-C", "The key, once, at a terminal in whose foreground the launcher runs.")
def ctrl_c(job: StopCell) -> None:
    ours, theirs = pty.openpty()
    launcher = job.start(terminal=theirs)
    os.close(theirs)
    terminal = Terminal(ours)
    try:
        job.await_ready()
        job.sends()
        terminal.press(b"\x03")
        job.await_status(launcher)
    finally:
        terminal.close()


SUPERVISORD = """
[supervisord]
nodaemon = true
logfile = supervisord.log
pidfile = supervisord.pid

[unix_http_server]
file = supervisord.socket

[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface

[supervisorctl]
serverurl = unix://supervisord.socket

[program:job]
command = {command}
stopasgroup = true
stopwaitsecs = {seconds:g}
autorestart = false
startsecs = 0
"""


@sender(
    "supervisord",
    "supervisord",
    "`supervisorctl stop` with `stopasgroup=true`: SIGTERM to the launcher's process group. stopwaitsecs is "
    "{service:g}.",
)
def supervisord(job: StopCell) -> None:
    text = SUPERVISORD.format(command=job.line.replace("%", "%%"), seconds=job.times.service)
    (job.folder / "supervisord.conf").write_text(text)
    daemon = job.start(BIN / "supervisord", "--configuration=supervisord.conf")
    job.await_ready()
    job.sends()
    stop = job.start(BIN / "supervisorctl", "--configuration=supervisord.conf", "stop", "job")
    stop.wait(LIMIT)
    job.ended = time.monotonic()
    log = job.folder / "supervisord.log"
    until(lambda: "stopped: job (" in log.read_text(), "supervisord's word", LIMIT)
    said = log.read_text().partition("stopped: job (")[2].partition(")")[0]
    job.status = said.removeprefix("exit status ").removeprefix("terminated by ")
    daemon.terminate()
    daemon.wait(LIMIT)


@sender("uv-run", "`uv run`", "SIGTERM to the process group of `uv run ...`, which hands it on to its child.")
def uv_run(job: StopCell) -> None:
    options = ["run", "--no-project", "--offline", "--python", sys.executable]
    uv = job.start(BIN / "uv", *options, *job.command)
    job.await_ready()
    job.sends()
    os.killpg(uv.pid, signal.SIGTERM)
    job.await_status(uv)


@sender(
    "timeout",
    "GNU `timeout`",
    "Its time is up: SIGTERM to the launcher, then to the process group. The matrix sends it the SIGALRM of "
    "its timer, so that the ranks are ready before.",
)
def timeout(job: StopCell) -> None:
    process = job.start("timeout", "3600", *job.command)
    job.await_ready()
    job.sends()
    process.send_signal(signal.SIGALRM)
    job.await_status(process)


@sender(
    "notebook",
    "Jupyter's stop button",
    "A cell with `!...` in a real IPython kernel. IPython sends Ctrl-C, SIGHUP, SIGCONT, SIGINT and SIGKILL "
    "to the launcher within half a second.",
)
def notebook(job: StopCell) -> None:
    kernel = Notebook(job.folder)
    try:
        cell = threading.Thread(target=lambda: kernel.run(f"!{job.line}", limit=LIMIT), daemon=True)
        cell.start()
        job.await_ready()
        job.sends()
        kernel.interrupt()
        cell.join(LIMIT)
        job.await_launcher()
    finally:
        kernel.close()


@sender(
    "ci-cancel",
    "CI's cancel button",
    "As GitHub's runner cancels a step: SIGINT to the step's first process, {second:g} s later SIGTERM, "
    "{kill:g} s later SIGKILL to the tree of processes. The script has `exec` before the launcher, because "
    "bash hands no signal on.",
)
def ci_cancel(job: StopCell) -> None:
    launcher = job.start()
    job.await_ready()
    job.sends()
    for number, seconds in ((signal.SIGINT, job.times.second), (signal.SIGTERM, job.times.kill)):
        launcher.send_signal(number)
        if ends_within(launcher, seconds):
            break
    else:
        root = psutil.Process(launcher.pid)
        for process in [root, *root.children(recursive=True)]:
            marked.send(process.pid, job.mark, signal.SIGKILL)
    job.await_status(launcher)


def ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


@sender(
    "docker-stop",
    "`docker stop`",
    "SIGTERM to the launcher, which is PID 1 of a PID namespace. {docker:g} s later SIGKILL to all of it. "
    "The status is that of `unshare`: 1 where PID 1 was killed, for which docker has 137.",
)
def docker_stop(job: StopCell) -> None:
    outside = job.start(*namespaces("--pid", "--fork", "--mount-proc"), *job.command)
    job.await_ready()
    first = job.pid_of_launcher()
    job.sends()
    marked.send(first, job.mark, signal.SIGTERM)
    if not ends_within(outside, job.times.docker):
        marked.send(first, job.mark, signal.SIGKILL)
    job.await_status(outside)


@sender(
    "systemd",
    "systemd",
    "`systemctl stop` with `KillMode=control-group` and `SendSIGHUP=yes`. systemd itself does not run here: "
    "the matrix sends what systemd.kill(5) documents. SIGTERM and SIGCONT go to each process of the job, "
    "SIGHUP right after, and SIGKILL after TimeoutStopSec ({service:g} s).",
    to_all=True,
)
def systemd(job: StopCell) -> None:
    launcher = job.start()
    job.await_ready()
    processes = [member.pid for member in job.members()]
    job.sends()
    for numbers in ((signal.SIGTERM, signal.SIGCONT), (signal.SIGHUP,)):
        for pid in processes:
            for number in numbers:
                marked.send(pid, job.mark, number)
    # The unit is stopped when none of its processes is left.
    if marked.survivors(job.mark, job.times.service):
        marked.end_all(job.mark)
    job.await_status(launcher)


ENTRY_POINT = """#!/bin/sh
trap 'kill -TERM $child' TERM
{command} &
child=$!
wait $child
wait $child
"""


@sender(
    "entry-point",
    "Entry point that forwards",
    "SIGTERM to the process group of a script with `trap 'kill -TERM $child' TERM`. The launcher gets it "
    "twice.",
)
def entry_point(job: StopCell) -> None:
    (job.folder / "entry.sh").write_text(ENTRY_POINT.format(command=shlex.join(job.command)))
    entry = job.start("sh", "entry.sh")
    job.await_ready()
    job.sends()
    os.killpg(entry.pid, signal.SIGTERM)
    job.await_status(entry)
