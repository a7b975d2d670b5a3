"""Control sockets of stopped launchers, of other machines and users, removed ones, and with many clients."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import Jobs, request
from launching import become_user, environment, supervisor_of, until

QUIET = "tell('ready', os.getpid())\nawait_file('go')\n"
STATUS = b'{"version": 1, "request": "status"}\n'
STACKS = b'{"version": 1, "request": "stacks"}\n'


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


def second(jobs: Jobs) -> Jobs:
    other = Jobs(jobs.folder / "second", jobs.runtime)
    other.folder.mkdir()
    return other


@contextlib.contextmanager
def current_folder(folder: Path) -> Iterator[None]:
    """The path of a socket may be longer than its address."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def fill_queue(path: Path) -> None:
    """Connects and leaves until the server, which accepts nothing, has room for no more."""
    with current_folder(path.parent), contextlib.suppress(BlockingIOError):
        while True:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
                client.connect(path.name)


def test_no_job_and_no_command_waits_for_a_launcher_that_accepts_nothing(jobs: Jobs) -> None:
    other = second(jobs)
    with jobs.job("--job_id=stopped", script=QUIET, ranks=1) as launcher:
        supervisor = supervisor_of(launcher)
        supervisor.suspend()
        try:
            fill_queue(*jobs.sockets())
            with other.job("--job_id=other", script=QUIET, ranks=1) as running:
                (listed,) = until(lambda: other.json("ps"), "the job")
                assert listed["launcher"] == running.pid
                table = other.ask("ps").stdout.decode().splitlines()
                (silent,) = [line for line in table if line.startswith(f"{launcher.pid} ")]
                assert silent.split() == [str(launcher.pid), "-", "does", "not", "answer"]
                assert other.ask("stop", "other").status == 0
            assert jobs.ask("status", "stopped").status == 1
        finally:
            supervisor.resume()
        # Those that have filled its queue come first.
        until(lambda: jobs.ask("status", "stopped").status == 0, "an answer")


def leave_socket(path: Path) -> None:
    """As a launcher leaves it that was killed."""
    with current_folder(path.parent), socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


def test_sockets_of_other_machines_are_left_alone(jobs: Jobs) -> None:
    """On a network file system, a connection to them is refused here."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    with jobs.job(script=QUIET, ranks=1) as launcher:
        (own,) = jobs.sockets()
        assert own.name.endswith(f"-{boot}.sock")
        dead, foreign, unknown = (
            jobs.runtime / f"7-abcdef{end}.sock" for end in (f"-{boot}", "-0badf00d", "")
        )
        for path in (dead, foreign, unknown):
            leave_socket(path)
        (listed,) = until(lambda: jobs.json("ps"), "the job")
        assert listed["launcher"] == launcher.pid
        assert set(jobs.sockets()) == {own, foreign, unknown}
        leave_socket(dead)
        with second(jobs).job(script=QUIET, ranks=1):
            assert {foreign, unknown} < set(jobs.sockets())
            assert dead not in jobs.sockets()


@pytest.mark.parametrize("way", ["file", "folder", "moved"])
def test_a_socket_that_was_removed_is_found_and_made_again(way: str, jobs: Jobs) -> None:
    with jobs.job(script=QUIET, ranks=1) as launcher:
        (path,) = jobs.sockets()
        for turn in range(3):
            if way == "file":
                path.unlink()
            elif way == "folder":
                shutil.rmtree(jobs.runtime)
            else:
                jobs.runtime.rename(jobs.folder / f"moved-{turn}")
            assert jobs.json("status")["launcher"] == launcher.pid
            assert jobs.sockets() == [path]
            with jobs.connect() as client:
                assert request(client, STATUS)["answer"] == "status"
        shutil.rmtree(jobs.runtime)
        assert jobs.ask("stop").status == 0
        assert launcher.wait() == 143
        assert jobs.sockets() == []


def test_a_command_that_follows_a_job_outlives_its_socket(jobs: Jobs) -> None:
    with jobs.job(script="print('begun', flush=True)\n" + QUIET + "print('late', flush=True)\n", ranks=1):
        command = [*jobs.command("logs", "--follow")]
        with subprocess.Popen(command, env=jobs.env, cwd=jobs.folder, stdout=subprocess.PIPE) as logs:
            assert logs.stdout
            until(lambda: logs.stdout.readline() == b"begun\n", "its first line")
            shutil.rmtree(jobs.runtime)
            # It asks every two seconds whether the job runs.
            until(jobs.sockets, "the socket, made again for it")
            (jobs.folder / "go").touch()
            out, _ = logs.communicate(timeout=60)
        assert (logs.returncode, b"late" in out) == (0, True)


@contextlib.contextmanager
def start_as(user: int, jobs: Jobs, front_end: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, *front_end, jobs.script(QUIET)]
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    become = functools.partial(become_user, user)
    # torchrun's variables do not have it, by which a script tells its ranks apart.
    env = {**jobs.env, "PADDLE_TRAINER_ID": "0"} if "rlaunch.run" in front_end else jobs.env
    launcher = subprocess.Popen(command, env=env, cwd=jobs.folder, preexec_fn=become, **pipes)
    with jobs.cleaned(launcher):
        jobs.launcher = launcher
        jobs.ready(1)
        yield launcher


def taken_by_another_user(jobs: Jobs, front_end: list[str]) -> None:
    """A user who makes `/tmp/rlaunch-UID` first takes no control away."""
    user = random.randrange(2_000_000_000, 2_100_000_000)
    folder = Path(f"/tmp/rlaunch-{user}")
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, 12345, 12345)
    else:
        folder.chmod(0o777)
    jobs.env = environment(RLAUNCH_RUNTIME_DIR=None)
    run = functools.partial(jobs.ask, preexec_fn=functools.partial(become_user, user))
    try:
        with start_as(user, jobs, front_end) as launcher:
            (listed,) = json.loads(run("ps", "--json").stdout)
            assert listed["launcher"] == launcher.pid
            (own,) = Path("/tmp").glob(f"rlaunch-{user}-*")
            assert (len(list(own.glob("*.sock"))), list(folder.iterdir())) == (1, [])
            # The folder is free again, and a job uses it.
            folder.rmdir()
            again = second(jobs)
            again.env = jobs.env
            with start_as(user, again, front_end) as later:
                listed = json.loads(run("ps", "--json").stdout)
                assert {job["launcher"] for job in listed} == {launcher.pid, later.pid}
            assert run("stop", str(launcher.pid)).status == 0
            said = jobs.wait(launcher).stderr
            assert f"{folder} is no folder of this user alone" in said
    finally:
        for left in Path("/tmp").glob(f"rlaunch-{user}*"):
            shutil.rmtree(left)


@pytest.mark.parametrize("module", ["rlaunch", "rlaunch.run"])
def test_a_folder_that_another_user_has_made_is_replaced(module: str, jobs: Jobs) -> None:
    taken_by_another_user(jobs, ["-m", module, "--nproc_per_node=1"])


def test_a_client_that_sends_nothing_more_gets_its_answers(jobs: Jobs) -> None:
    """As `echo REQUEST | nc -U PATH` does."""
    with jobs.job(script=QUIET, ranks=1):
        nodes = b'{"version": 1, "request": "nodes", "question": "stacks"}\n'
        for text in (STATUS, STACKS, nodes, STACKS * 3 + STATUS):
            with jobs.connect() as client, client.makefile("rb") as lines:
                client.sendall(text)
                client.shutdown(socket.SHUT_WR)
                answers = sorted(json.loads(line)["answer"] for line in lines)
            asked = sorted(json.loads(line)["request"] for line in text.splitlines())
            assert answers == asked


def test_no_client_with_an_open_request_is_dropped(jobs: Jobs) -> None:
    """Those that ask nothing make room for others; those that ask are answered."""
    with jobs.job(script=QUIET, ranks=1), contextlib.ExitStack() as clients:
        for _ in range(300):
            clients.enter_context(jobs.connect())
        asking = [clients.enter_context(jobs.connect()) for _ in range(150)]
        for client in asking:
            client.sendall(STACKS)
        assert jobs.json("ps")[0]["phase"] == "running"
        answers = []
        for client in asking:
            with client.makefile("rb") as lines:
                answers.append(json.loads(lines.readline()))
        kinds = {answer["answer"] for answer in answers}
        assert "stacks" in kinds
        assert kinds <= {"stacks", "error"}
        assert all("try again" in answer["message"] for answer in answers if answer["answer"] == "error")


def test_many_commands_at_once_say_that_the_job_runs(jobs: Jobs) -> None:
    with jobs.job(script=QUIET, ranks=1):
        ends: list[int] = []
        threads = [threading.Thread(target=lambda: ends.append(jobs.ask("stacks").status)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ends == [0] * 12
